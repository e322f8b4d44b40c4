"""What Prometheus is reported: that it exists, and that the rules speak of what the program exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.dashboard import dashboard
from reposync.store.status import RunStatus, RunTrigger
from reposync.telemetry.metrics import HEALTH_STATUSES, Metrics
from tests.fixtures.chart import NAME, NAMESPACE, ROOT, render, together
from tests.unit.chart.matrix import INGRESS, MONITORED, REDIS, SCALED, SERVERS

pytestmark = pytest.mark.full

RULES = {"metrics": {"rules": {"enabled": True}}}
ADDED_BY_PROMETHEUS = {"namespace", "job", "pod"}
SELECTOR = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


def rules(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    rendered = render(together(REDIS, RULES, values or {}))
    return [rule for group in rendered.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


@cache
def exported() -> dict[str, dict[str, set[str]]]:
    """Every sample that a pod shows which has done a bit of everything: its labels, and their values."""
    metrics = Metrics(
        version="1", run_statuses=[each.value for each in RunStatus], run_triggers=[each.value for each in RunTrigger]
    )
    metrics.show("queue_runs", dict.fromkeys([str(status) for status in _watched()], 1))
    metrics.show("queue_oldest_seconds", 1)
    metrics.freshness({"payments-api": None}, datetime.now(UTC))
    metrics.show("repositories", {"active": 1})
    metrics.show("files_failed", {"payments-api": 3})
    metrics.show("repository_late", {"payments-api": 1})
    metrics.show("secrets_found", {"payments-api": 2})
    metrics.show("index_versions", {"live": 1, "building": 1})
    metrics.show("index_change_repositories", {("code", "done"): 1})
    metrics.dependencies({"database": "ok", "registry": "degraded", "clock": "ok"})
    metrics.show("clock_skew_seconds", 0.1)
    for result in ("ok", "failed"):
        metrics.count("group_discoveries", result)
    for reason in ("unreachable", "taken"):
        metrics.count("lock_losses", reason)
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def _watched() -> tuple[RunStatus, ...]:
    from reposync.app import daemon

    return daemon._WATCHED


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"\b(reposync_\w+)\{([^}]*)\}", expression)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_speaks_of_metrics_labels_and_values_that_the_program_exports(rule: dict[str, Any]):
    expression = rule["expr"]
    named = list(selectors(expression))
    assert named
    assert {name for name, _ in named} == set(re.findall(r"\breposync_\w+", expression)), "each has a selector"
    for name, matchers in named:
        labels = exported()[name]
        matched = SELECTOR.findall(matchers)
        assert ",".join(f'{label}{how}"{value}"' for label, how, value in matched) == matchers
        assert {label for label, *_ in matched} <= labels.keys() | ADDED_BY_PROMETHEUS
        assert {label: value for label, _, value in matched}["job"] == NAME
        assert {label: value for label, _, value in matched}["namespace"] == NAMESPACE
        for label, _, value in matched:
            if label in labels:
                known = labels[label] | (set(HEALTH_STATUSES) if label == "status" else set())
                assert set(value.split("|")) <= known, f"{name} has no {label} {value}"
    by = {label.strip() for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in found.split(",")}
    known = ADDED_BY_PROMETHEUS.union(*(exported()[name] for name, _ in named))
    assert by <= known
    if "alert" in rule:
        assert rule["labels"]["severity"] in ("warning", "critical")
        for text in rule["annotations"].values():
            for template in re.findall(r"\{\{(.*?)\}\}", text):
                shown = re.fullmatch(r" \$(?:value|labels\.(\w+))(?: \| (?:humanize|humanizeDuration))? ", template)
                assert shown is not None and shown[1] in {None, *by}


def test_commands_in_alert_descriptions_exist():
    from tests.docs.program import complaint

    typed = [
        command
        for rule in rules()
        for command in re.findall(r"`(reposync [^`]*)`", rule.get("annotations", {}).get("description", ""))
    ]

    assert typed
    assert [said for command in typed if (said := complaint(command.split(), complete=True))] == []


def test_every_alert_is_explained():
    page = (ROOT / "docs" / "observe.md").read_text()

    assert [rule["alert"] for rule in rules() if "alert" in rule and f"`{rule['alert']}`" not in page] == []


def test_thresholds_and_labels_are_the_values():
    values = {
        "staleSeconds": 10_000_000,
        "queueWaitSeconds": 60,
        "failedRunsPerHour": 0,
        "eventLoopSeconds": 0.5,
        "filesFailMinutes": 15,
        "alertLabels": {"team": "search", "severity": "ignored"},
        "disabled": ["ReposyncDown"],
        "extra": [{"alert": "Mine", "expr": "vector(1)"}],
    }
    found = {rule.get("alert"): rule for rule in rules({"metrics": {"rules": values}})}

    assert found["ReposyncRepositoryStale"]["expr"].endswith("> 10000000")
    assert found["ReposyncQueueWaits"]["expr"].endswith("> 60")
    assert found["ReposyncRunsFail"]["expr"].endswith("> 0")
    assert found["ReposyncEventLoopLate"]["expr"].endswith("> 0.5")
    assert found["ReposyncFilesFail"]["for"] == "15m"
    assert found["ReposyncQueueWaits"]["labels"] == {"severity": "warning", "team": "search"}
    assert "ReposyncDown" not in found
    assert found["Mine"]["expr"] == "vector(1)"


def test_metrics_are_scraped_and_behind_a_token_with_the_one_that_may_read():
    (endpoint,) = render(together(MONITORED, INGRESS)).one("ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["port"], endpoint["interval"]) == ("/metrics", "http", "30s")
    opened = {"registry": {"http": {"metrics": "open"}}}
    (endpoint,) = render(together(MONITORED, opened)).one("ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint
    rendered = render(MONITORED)
    (endpoint,) = rendered.one("ServiceMonitor")["spec"]["endpoints"]
    secret = rendered.one("Secret")
    assert endpoint["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "read"}
    assert "read" in secret["data"]
    own = {"metrics": {"serviceMonitor": {"token": {"existingSecret": "prometheus", "key": "bare"}}}}
    (endpoint,) = render(together(MONITORED, own)).one("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "prometheus", "key": "bare"}


def test_grafana_finds_the_dashboard_by_its_label():
    values = {"metrics": {"dashboard": {"enabled": True, "labels": {"team": "search"}}}}
    (found,) = (
        each
        for each in render(together(REDIS, values)).documents
        if each["kind"] == "ConfigMap" and "grafana_dashboard" in each["metadata"]["labels"]
    )

    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["labels"]["team"] == "search"
    assert json.loads(found["data"]["reposync.json"]) == dashboard()


def test_pods_follow_the_series_that_the_rule_records():
    rendered = render(together(SERVERS, SCALED))

    spec = rendered.one("HorizontalPodAutoscaler")["spec"]
    (metric,) = spec["metrics"]
    assert metric["type"] == "External"
    assert metric["external"]["metric"]["name"] == "reposync_queue_depth"
    selected = metric["external"]["metric"]["selector"]["matchLabels"]
    (recorded,) = (rule for rule in rules() if "record" in rule)
    assert recorded["record"] == "reposync:queue_depth"
    assert selected == {"job": NAME}
    assert all(f'{label}="{value}"' in recorded["expr"] for label, value in selected.items())
    page = (ROOT / "docs" / "deploy-on-kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml prometheus\n(.*?)```", page, re.DOTALL)
    (adapted,) = yaml.safe_load(text)["rules"]["external"]
    assert (adapted["seriesQuery"], adapted["name"]["as"]) == (recorded["record"], metric["external"]["metric"]["name"])
    assert re.search(r"sum by \(namespace, job\)", recorded["expr"]), "the labels by which it is asked for stay"
