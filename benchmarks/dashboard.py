"""The Grafana dashboard, from the table of metrics: a query of a metric or a label that does not exist is an error.

python -m benchmarks.dashboard            # writes config/grafana-dashboard.json and the chart's copy
python -m benchmarks.dashboard --check    # writes nothing; exit code 1 where they are out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reference import metrics

ROOT = Path(__file__).resolve().parents[1]
FILES = (ROOT / "config" / "grafana-dashboard.json", ROOT / "helm" / "reposync" / "dashboards" / "reposync.json")
SCHEMA_VERSION = 39
"""Of Grafana 10.4; later versions migrate it when they load it."""
SELECTOR = 'namespace=~"$namespace",job=~"$job"'
ADDED_BY_PROMETHEUS = {"namespace", "job", "pod", "le"}
COLUMNS, HEIGHT = 3, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_QUANTILES = (0.5, 0.95)
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "graphMode": "area",
        "colorMode": "value",
        "justifyMode": "auto",
        "textMode": "auto",
        "wideLayout": True,
        "percentChangeColorMode": "standard",
        "orientation": "auto",
        "showPercentChange": False,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
}
"""By type of panel; Grafana's schema requires them."""


@dataclass(frozen=True)
class Panel:
    """`queries`: PromQL with `@` in place of the selector of the installation, by legend."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{@}}[$__rate_interval]))"


def quantiles(metric: str, by: str = "") -> dict[str, str]:
    labels = ", ".join(filter(None, ("le", by)))
    name = f" {{{{{by}}}}}" if by else ""
    return {
        f"p{share * 100:.0f}{name}": f"histogram_quantile({share:g}, "
        f"sum by ({labels}) (rate({metric}_bucket{{@}}[$__rate_interval])))"
        for share in _QUANTILES
    }


# Gauges of the database by their maximum, not their sum: every pod exports the same ones.
ROWS: dict[str, tuple[Panel, ...]] = {
    "Freshness": (
        Panel(
            "Oldest sync",
            "The repository whose last successful sync is longest ago.",
            {"": "max(reposync_repository_freshness_seconds{@} < +Inf)"},
            "s",
            "stat",
        ),
        Panel(
            "Repositories with an old index",
            "Not synced at their last two ticks, behind the newest known head, or never synced.",
            {
                "late": "count(max by (repository) (reposync_repository_late{@})) or vector(0)",
                "behind": "count(max by (repository) (reposync_repository_behind_since_timestamp_seconds{@})) "
                "or vector(0)",
                "never": "count(max by (repository) (reposync_repository_freshness_seconds{@}) == +Inf) or vector(0)",
            },
        ),
        Panel(
            "Longest without a sync",
            "The ten repositories whose last successful sync is longest ago.",
            {"{{repository}}": "topk(10, max by (repository) (reposync_repository_freshness_seconds{@} < +Inf))"},
            "s",
        ),
    ),
    "Runs": (
        Panel(
            "Queue",
            "Runs that are not over.",
            {"{{status}}": "max by (status) (reposync_queue_runs{@})"},
        ),
        Panel("Oldest in the queue", "", {"waiting": "max(reposync_queue_oldest_seconds{@})"}, "s"),
        Panel(
            "Workers",
            "Runs at a time: possible, and now.",
            {"slots": "sum(reposync_workers_slots{@})", "busy": "sum(reposync_workers_busy{@})"},
        ),
        Panel(
            "Runs by result",
            "Attempts that ended.",
            {"{{status}}": "sum by (status) (increase(reposync_runs_total{@}[$__rate_interval]))"},
        ),
        Panel("Duration of runs", "", quantiles("reposync_run_duration_seconds"), "s"),
        Panel(
            "Errors of runs by code",
            "Each code is explained in the page of errors.",
            {"{{code}}": "sum by (code) (increase(reposync_run_errors_total{@}[$__rate_interval]))"},
        ),
    ),
    "Search and requests": (
        Panel(
            "Searches and greps",
            "Per second.",
            {"{{kind}} {{outcome}}": rate("reposync_search_duration_seconds_count", "kind, outcome")},
            "ops",
        ),
        Panel(
            "Search latency", "With the wait for a turn.", quantiles("reposync_search_duration_seconds", by="kind"), "s"
        ),
        Panel(
            "Calls of agents",
            "Per second.",
            {"{{tool}} {{outcome}}": rate("reposync_mcp_call_duration_seconds_count", "tool, outcome")},
            "ops",
        ),
        Panel(
            "Requests", "Responses per second.", {"{{status}}": rate("reposync_http_requests_total", "status")}, "reqps"
        ),
        Panel(
            "Slowest routes",
            "95th percentile until the response begins.",
            {
                "{{method}} {{route}}": "topk(10, histogram_quantile(0.95, sum by (le, method, route) "
                "(rate(reposync_http_request_duration_seconds_bucket{@}[$__rate_interval]))))"
            },
            "s",
        ),
        Panel(
            "Errors of requests by code",
            "Each code is explained in the page of errors.",
            {"{{code}}": "sum by (code) (increase(reposync_http_errors_total{@}[$__rate_interval]))"},
        ),
    ),
    "Index and embedding": (
        Panel(
            "Embedded tokens",
            "As the servers report them, per second.",
            {"{{provider}} {{kind}}": rate("reposync_embedding_tokens_total", "provider, kind")},
        ),
        Panel(
            "Embedded characters",
            "Per second.",
            {"{{provider}} {{kind}}": rate("reposync_embedding_characters_total", "provider, kind")},
        ),
        Panel(
            "Time of embedding",
            "Seconds per second: 2 means that two requests are under way.",
            {
                "{{provider}} {{kind}} {{outcome}}": rate(
                    "reposync_embedding_duration_seconds_sum", "provider, kind, outcome"
                )
            },
            "s",
        ),
        Panel(
            "Chunks", "Embedded, or reused from known content.", {"{{source}}": rate("reposync_chunks_total", "source")}
        ),
        Panel("Points", "Of each collection.", {"{{collection}}": "max by (collection) (reposync_index_points{@})"}),
        Panel("Index on disk", "Of the embedded engine.", {"": "max(reposync_index_size_bytes{@})"}, "bytes"),
        Panel(
            "Repositories by progress of a change of the model",
            "",
            {"{{collection}} {{state}}": "max by (collection, state) (reposync_index_change_repositories{@})"},
        ),
    ),
    "Health": (
        Panel("Dependencies", "1 while usable.", {"{{dependency}}": "min by (dependency) (reposync_dependency_up{@})"}),
        Panel(
            "Event loop",
            "The worst delay of a minute, by pod.",
            {"{{pod}}": "max by (pod) (reposync_event_loop_lag_seconds{@})"},
            "s",
        ),
        Panel(
            "Rate limits",
            "Waits that servers required, seconds per second.",
            {"": "sum(rate(reposync_rate_limit_wait_seconds_total{@}[$__rate_interval]))"},
            "s",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Raises SystemExit for a query of what the program does not export."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": []})
        panels[-1]["gridPos"] = {"x": 0, "y": y, "w": 24, "h": 1}
        y += 1
        width = 24 // COLUMNS
        for start in range(0, len(row), COLUMNS):
            for column, panel in enumerate(row[start : start + COLUMNS]):
                place = {"x": column * width, "y": y, "w": width, "h": HEIGHT}
                panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            y += HEIGHT
    return {
        "uid": "reposync",
        "title": "reposync",
        "tags": ["reposync"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [*_variables()]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def queries() -> Iterator[str]:
    for row in ROWS.values():
        for panel in row:
            yield from (query.replace("@", SELECTOR) for query in panel.queries.values())


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": query.replace("@", SELECTOR),
            "legendFormat": legend or "__auto",
            "range": True,
        }
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": targets,
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    for name, within in (("namespace", ""), ("job", '{namespace=~"$namespace"}')):
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values(reposync_build_info{within}, {name})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
        }


def unknown(query: str) -> list[str]:
    """Metrics and labels of the query that the program does not export."""
    exported: dict[str, set[str]] = {}
    for name, labels, kind, _ in metrics():
        exported.update(
            {
                f"{name}{suffix}": set(labels)
                for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
            }
        )
    named = set(re.findall(r"\breposync_\w+", query))
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
    known = ADDED_BY_PROMETHEUS.union(*(exported.get(name, set()) for name in named))
    return sorted(named - exported.keys()) + sorted(grouped - known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for query in queries():
        if wrong := unknown(query):
            sys.exit(f"{query}: the program exports no {', '.join(wrong)}")
    text = json.dumps(dashboard(), indent=2) + "\n"
    for file in FILES:
        if options.check and (not file.exists() or file.read_text() != text):
            sys.exit(f"{file.relative_to(ROOT)} is out of date: make reference")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
