"""The Grafana dashboard: it shows what the program exports."""

import json

import pytest

from benchmarks.dashboard import FILES, dashboard, queries, unknown


@pytest.mark.parametrize("query", list(queries()))
def test_a_panel_asks_for_metrics_and_labels_that_the_program_exports(query: str):
    assert unknown(query) == []


def test_a_metric_or_a_label_that_is_renamed_is_noticed():
    query = "sum by (result) (rate(reposync_run_total[1m]))"

    assert unknown(query) == ["reposync_run_total", "result"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_dashboard_is_the_one_that_is_generated(file):
    assert json.loads(file.read_text()) == dashboard(), "run: make reference"
