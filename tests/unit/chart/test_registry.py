"""The registry on its way from the values to the program."""

from __future__ import annotations

import json
import re

import pytest

from reposync.config.loading import load_registry
from reposync.config.sections import DaemonConfig
from tests.fixtures.chart import CHART, ROOT, Refused, render, together
from tests.unit.chart.matrix import INSTALLATIONS, SERVERS

pytestmark = pytest.mark.full

EXAMPLE = (ROOT / "config" / "repositories.yaml").read_text()


@pytest.mark.parametrize(
    "text", [EXAMPLE, "  daemon:\n    concurrency: 2\n", "daemon: {concurrency: 2}\n\n# end\n", "{}"]
)
def test_a_file_arrives_as_it_is(text: str):
    values = {"registry": text, "secretEnv": {"GITLAB_TOKEN": {"secret": "gitlab", "key": "token"}}}

    assert render(values).registry.rstrip("\n") == text.rstrip("\n")


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
