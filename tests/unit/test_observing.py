"""The page about Prometheus and Grafana: its rules, its dashboard and its alerts are those that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from benchmarks.dashboard import ROWS, unknown
from tests.docs.pages import ROOT, Fence, pages
from tests.fixtures.patience import PATIENCE_SECONDS

PROMTOOL = shutil.which("promtool")
RULES = ROOT / "helm" / "reposync" / "templates" / "prometheusrule.yaml"
(PAGE,) = (page for page in pages() if page.name == "docs/observe.md")
SNIPPETS = [fence for fence in PAGE.fences if fence.words == ("yaml", "prometheus")]


def rows(heading: str) -> list[str]:
    """The first cells of the table that begins with it."""
    text = (ROOT / PAGE.name).read_text()
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)


def expressions() -> list[str]:
    found = [yaml.safe_load(fence.text) for fence in SNIPPETS]
    groups = [group for document in found for group in document.get("groups", [])]
    return [rule["expr"] for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("expression", expressions())
def test_a_documented_rule_asks_for_metrics_and_labels_that_the_program_exports(expression: str) -> None:
    assert "reposync_" in expression
    assert unknown(expression) == []


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
@pytest.mark.parametrize("fence", SNIPPETS, ids=lambda fence: str(fence.at))
def test_prometheus_accepts_what_is_documented(fence: Fence, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(fence.text)
    check = ("rules",) if "groups:" in fence.text else ("config", "--syntax-only")
    command = [str(PROMTOOL), "check", *check, "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_says_what_to_do_about_each_alert_of_the_chart() -> None:
    alerts = re.findall(r"^- alert: (\w+)", RULES.read_text(), re.MULTILINE)

    assert [row.strip("`") for row in rows("alert")] == alerts


def test_the_panels_that_the_page_explains_are_on_the_dashboard() -> None:
    titles = {panel.title for row in ROWS.values() for panel in row}

    assert {row.strip("*") for row in rows("panel")} <= titles
