"""The values: mistakes are refused with what to do before anything changes, the registry arrives at the program as it
is, and the chart's pages and schema say what is in it."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from reposync.config.document import read_document
from reposync.config.loading import load_registry
from reposync.config.sections import DaemonConfig
from tests.fixtures.chart import CHART, ROOT, Refused, render, together
from tests.unit.chart.matrix import (
    DATABASE,
    GITLAB,
    INGRESS,
    INSTALLATIONS,
    MONITORED,
    QDRANT,
    REDIS,
    SCALED,
    SERVERS,
    SIGN_IN,
)

pytestmark = pytest.mark.full

THREE = {"replicas": 3}
OFF, BY_TOKEN = {"registry": {"http": {"metrics": "off"}}}, {"registry": {"http": {"metrics": "token"}}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # Several pods
        (together(THREE, QDRANT, REDIS), ["replicas is 3", "its own database", "database.existingSecret"]),
        (together(THREE, DATABASE, REDIS), ["its own index", "qdrant.url"]),
        (together(THREE, DATABASE, QDRANT), ["no Redis", "redis.required to false"]),
        (SCALED, ["autoscaling is enabled", "its own database", "its own index", "no Redis"]),
        (together(SERVERS, {"autoscaling": {"enabled": True}}), ["reposync:queue_depth", "metrics.rules.enabled"]),
        # The registry
        ({"registry": GITLAB["registry"]}, ["${GITLAB_TOKEN}", "secretEnv.GITLAB_TOKEN"]),
        ({"registry": "gitlab: ["}, ["registry is no YAML mapping"]),
        (together(GITLAB, {"existingRegistry": {"configMap": "x"}}), ["registry and existingRegistry.configMap"]),
        ({"registry": {"daemon": {"shutdown_grace_seconds": "${GRACE:-9}"}}}, ["terminationGracePeriodSeconds"]),
        ({"registry": {"defaults": {"schedule": "61 * * * *"}}}, ["registry.defaults.schedule", "minute", '"61"']),
        (
            {"registry": {"repositories": [{"name": "a", "git": "https://h/a.git", "schedule": "0 25 * * 1-8"}]}},
            ["registry.repositories[0].schedule", 'hour "25"', 'day of the week "1-8"'],
        ),
        # Variables
        ({"extraEnv": [{"name": "DATABASE_URL", "value": "x"}]}, ["DATABASE_URL", "database.existingSecret"]),
        ({"extraEnv": [{"name": "HF_TOKEN", "value": "x"}]}, ["HF_TOKEN in the clear", "secretEnv: {HF_TOKEN:"]),
        (
            {"registry": {"embedding": {"api_key": "${MODELS}"}}, "extraEnv": [{"name": "MODELS", "value": "x"}]},
            ["MODELS in the clear"],
        ),
        ({"secretEnv": {"POD_NAME": {"secret": "x", "key": "y"}}}, ["POD_NAME is the chart's own:"]),
        (
            {"secretEnv": {"A": {"secret": "x", "key": "y"}}, "extraEnv": [{"name": "A", "value": "b"}]},
            ["set a variable twice"],
        ),
        ({"proxy": {"http": "http://p:1"}, "extraEnv": [{"name": "NO_PROXY", "value": "x"}]}, ["proxy.noProxy"]),
        # The sign-in at GitLab
        (together(SIGN_IN, {"signIn": {"existingSecret": ""}}), ["${GITLAB_SIGN_IN_SECRET}", "signIn.existingSecret"]),
        (together(GITLAB, {"signIn": {"existingSecret": "x"}}), ["nobody would use it", "http.sign_in.client_secret"]),
        (
            together(SIGN_IN, {"secretEnv": {"GITLAB_SIGN_IN_SECRET": {"secret": "x", "key": "y"}}}),
            ["GITLAB_SIGN_IN_SECRET is the chart's own, and comes from signIn.existingSecret"],
        ),
        # What excludes each other
        (together(REDIS, {"redis": {"url": "redis://redis"}}), ["redis.existingSecret and redis.url"]),
        ({"ca": {"configMap": "a", "secret": "b"}}, ["ca.configMap and ca.secret"]),
        ({"podDisruptionBudget": {"minAvailable": 1}}, ["both minAvailable and maxUnavailable"]),
        # What keeps nodes from being drained
        (together(SERVERS, THREE, {"podDisruptionBudget": {"maxUnavailable": 0}}), ["maxUnavailable is 0", "drained"]),
        (
            together(SERVERS, THREE, {"podDisruptionBudget": {"maxUnavailable": None, "minAvailable": 3}}),
            ["minAvailable is 3 of 3"],
        ),
        (together(SERVERS, {"persistence": {"existingClaim": "x"}}), ["it would stay empty"]),
        ({"qdrant": {"apiKey": {"existingSecret": "x"}}}, ["no qdrant.url"]),
        # Addresses
        ({"qdrant": {"url": "qdrant:6333"}}, ["qdrant.url", "http://"]),
        # How it ends, how it is reached
        ({"terminationGracePeriodSeconds": 30}, ["terminationGracePeriodSeconds is 30", "Set at least 45"]),
        ({"ingress": {"enabled": True}}, ["ingress.hosts names no host"]),
        (
            together(INGRESS, {"registry": {"http": {"allowed_hosts": ["other.example.com"]}}}),
            ["tools.example.com", "allowed_hosts", "421"],
        ),
        (together(MONITORED, OFF), ["registry.http.metrics is off"]),
        (
            together(MONITORED, {"auth": {"existingSecret": "x"}}),
            ["metrics.serviceMonitor.token.existingSecret"],
        ),
        # What the schema says
        ({"replica": 3}, ["additional properties 'replica' not allowed"]),
        ({"image": {"tga": "1"}}, ["at '/image'", "'tga' not allowed"]),
        ({"replicas": "3"}, ["at '/replicas': got string, want integer"]),
        ({"metrics": {"rules": {"disabled": ["ReposyncDwn"]}}}, ["ReposyncDown"]),
        # What the registry's own schema says
        ({"registry": {"daemn": {}}}, ["at '/registry'", "'daemn' not allowed"]),
        (
            {"registry": {"repositories": [{"name": "x", "git": "https://g.example.com/x.git", "shedule": "@daily"}]}},
            ["/registry/repositories/0", "'shedule' not allowed"],
        ),
    ],
    ids=str,
)
def test_a_mistake_is_refused_with_what_to_do(values: dict[str, Any], said: list[str]):
    with pytest.raises(Refused) as refusal:
        render(values)

    assert [each for each in said if each not in str(refusal.value)] == []


@pytest.mark.parametrize(
    "values",
    [
        together(THREE, DATABASE, QDRANT, {"redis": {"required": False}}),
        together(THREE, DATABASE, QDRANT, {"redis": {"url": "redis://redis:6379/0"}}),
        together({"registry": GITLAB["registry"]}, {"envFrom": [{"secretRef": {"name": "tokens"}}]}),
        {"registry": {"defaults": {"exclude": ["$${NOT_A_VARIABLE}"]}}},
        {"terminationGracePeriodSeconds": 30, "registry": {"daemon": {"shutdown_grace_seconds": 5}}},
        together(INGRESS, {"registry": {"http": {"allowed_hosts": ["*.example.com"]}}}),
        together(MONITORED, BY_TOKEN),
        {"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": None}},
        {"registry": None},
    ],
    ids=str,
)
def test_what_is_no_mistake_is_rendered(values: dict[str, Any]):
    assert render(values).has("Deployment")


# The registry ----------------------------------------------------------------------------------------------------

EXAMPLE = (ROOT / "config" / "repositories.yaml").read_text()


@pytest.mark.parametrize(
    "text", [EXAMPLE, "  daemon:\n    concurrency: 2\n", "daemon: {concurrency: 2}\n\n# end\n", "{}"]
)
def test_a_file_arrives_as_it_is(text: str):
    values = {"registry": text, "secretEnv": {"GITLAB_TOKEN": {"secret": "gitlab", "key": "token"}}}

    assert render(values).registry.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize(
    "registry",
    [
        # Helm reads numbers as floats: 1e+07 in a file would be no whole number.
        {"defaults": {"max_file_bytes": 12_345_678, "exclude": ["*.snap", "a: b", "#x", "it's", "ü"]}},
        {"daemon": {"history_days": 0.5}},
        # A null that means something: not the default.
        {"daemon": {"history_days": None}, "http": {"secure_cookies": None}},
    ],
    ids=["numbers and texts", "a fraction", "null"],
)
def test_values_of_the_registry_arrive_as_they_were(registry: dict[str, Any]):
    assert read_document(render({"registry": registry}).registry.encode(), "registry", {}).data == registry


@pytest.mark.parametrize("name", [name for name, values in INSTALLATIONS.items() if "existingRegistry" not in values])
def test_the_program_accepts_what_is_rendered(name: str, tmp_path):
    rendered = render(INSTALLATIONS[name])
    variables = dict.fromkeys(re.findall(r"\$\{(\w+)", rendered.registry), "a-value-that-is-long-enough")
    file = tmp_path / "repositories.yaml"
    file.write_text(rendered.registry)

    loaded = load_registry(file, variables)

    assert [problem.message for problem in loaded.warnings if "on this machine" not in problem.message] == []


def test_what_helm_refuses_in_a_registry_the_program_refuses_too_but_for_two_rules_of_the_chart():
    """The schema is the program's own; the chart adds that secrets come from Secrets and that variables are set."""
    assert json.loads((CHART / "values.schema.json").read_text())["$defs"]["registry"]["$defs"].keys() == (
        json.loads((ROOT / "config" / "schema.json").read_text())["$defs"].keys()
    )
    with pytest.raises(Refused, match="'tokn' not allowed"):
        render({"registry": {"gitlab": [{"name": "main", "url": "https://gitlab.example.com", "tokn": "${T}"}]}})


# What the program knows ---------------------------------------------------------------------------------------------


def test_what_the_chart_takes_for_the_programs_defaults_are_its_defaults():
    from reposync.api.server import HttpLimits
    from reposync.runs.execution import LAST_WRITE_SECONDS

    daemon, rendered = DaemonConfig(), render()
    slept = rendered.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = daemon.shutdown_grace_seconds + 2 * LAST_WRITE_SECONDS + HttpLimits().grace_seconds + 2
    assert rendered.pod["terminationGracePeriodSeconds"] >= slept + needed
    scaled = together(SERVERS, {"autoscaling": {"enabled": True}, "metrics": {"rules": {"enabled": True}}})
    (metric,) = render(scaled).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["target"]["averageValue"] == str(daemon.concurrency)
    more = together(scaled, {"registry": {"daemon": {"concurrency": 9}}})
    (metric,) = render(more).one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["external"]["target"]["averageValue"] == "9"


@pytest.mark.parametrize(("grace", "whole"), [(0, 25), (5, 30), (20.5, 46), (100, 125)])
def test_a_pod_has_the_time_that_the_program_takes_to_end(grace: float, whole: int):
    rendered = render({"registry": {"daemon": {"shutdown_grace_seconds": grace}}})
    assert rendered.pod["terminationGracePeriodSeconds"] == whole


# The pages of the chart ------------------------------------------------------------------------------------------

spec = importlib.util.spec_from_file_location("generate", ROOT / "helm" / "generate.py")
assert spec is not None and spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize(
    ("path", "made"), [(generate.README, generate.readme), (generate.SCHEMA, generate.values_schema)]
)
def test_what_is_made_from_something_else_is_up_to_date(path, made):
    assert path.read_text() == made(), "run `python helm/generate.py`"
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(VALUES)) == []
