"""Mistakes in the values: Helm stops before it changes anything, and the message says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.chart import Refused, render, together
from tests.unit.chart.matrix import DATABASE, GITLAB, INGRESS, MONITORED, QDRANT, REDIS, SCALED, SERVERS

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
            together(MONITORED, BY_TOKEN, {"auth": {"existingSecret": "x"}}),
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
