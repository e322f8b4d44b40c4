"""What the pages of runs make of documents: steps, folders, charts over time, and the words of the filter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from reposync.api.web.run_charts import MAX_BARS, summary_of, time_chart
from reposync.api.web.run_filters import read_query
from reposync.api.web.run_view import MAX_DEPTH, folder_tree, steps_of
from reposync.operations.runs import RunDetail, RunStatus
from reposync.store.run_queries import RunPoint

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def detail(status: str, phase: str | None = None, **more: Any) -> RunDetail:
    fields: dict[str, Any] = dict.fromkeys(RunDetail.model_fields)
    lists = {"requests": [], "attempts": [], "problems": [], "asked_by": [], "problem_counts": {}, "change_counts": {}}
    progress = None if phase is None else {"phase": phase}
    return RunDetail.model_construct(
        **fields | lists | {"status": status, "attempt": 1, "removal": False, "progress": progress} | more
    )


@pytest.mark.parametrize(
    ("phase", "took", "states"),
    [
        ("listing", {}, "List now, Index next, Check next, Done next"),
        ("indexing", {"listing": 1.0}, "List done, Index now, Check next, Done next"),
        ("words", {"listing": 1.0}, "List done, Words now, Meaning next, Check next, Done next"),
        # The words are checked before their meaning is added.
        ("checking", {"words": 3.0}, "List done, Words now, Meaning next, Check next, Done next"),
        ("indexing", {"words": 3.0}, "List done, Words done, Meaning now, Check next, Done next"),
    ],
)
def test_a_first_sync_stores_words_before_their_meaning(phase: str, took: dict[str, float], states: str) -> None:
    steps = steps_of(detail("running", phase, step_seconds=took))
    assert ", ".join(f"{step.label} {step.state}" for step in steps) == states


def test_a_run_that_has_ended_is_done_or_stopped_where_it_was() -> None:
    took = {"listing": 1.0, "planning": 0.5, "indexing": 60.0}
    assert {step.state for step in steps_of(detail("completed", step_seconds=took))} == {"done"}
    stopped = steps_of(detail("failed", step_seconds=took))
    assert [(step.label, step.state, step.seconds) for step in stopped[:2]] == [
        ("List", "done", 1.5),
        ("Index", "stopped", 60.0),
    ]
    assert steps_of(detail("queued", attempt=0, step_seconds={})) == []


def test_folders_are_counted_also_if_not_all_files_are_listed_and_lonely_ones_are_one() -> None:
    tree = folder_tree(["lib/a/b/one.py", "lib/a/b/two.py", "test/x.py", "setup.py"], {"lib": 88, "test": 61, "": 1})
    assert tree.count == 150
    assert {name: (folder.name, folder.count) for name, folder in tree.folders.items()} == {
        "lib": ("lib", 88),
        "test": ("test", 61),
    }
    assert tree.folders["lib"].folders["a"].name == "a/b"
    assert tree.files == ["setup.py"]


# Charts ------------------------------------------------------------------------------------------------------------


def point(minutes_ago: float, status: str = "completed", seconds: float = 1.0, failed: int = 0) -> RunPoint:
    return RunPoint(NOW - timedelta(minutes=minutes_ago), status, failed, seconds, seconds / 2, 10)


def test_a_chart_covers_its_time_in_whole_units_and_stacks_results() -> None:
    points = [point(1), point(1, "failed"), point(2, failed=1), point(600, "blocked")]
    chart = time_chart("results", points, NOW - timedelta(hours=24), None, NOW)
    assert chart is not None
    assert 0 < len(chart.bars) <= MAX_BARS + 1
    assert dict(chart.bars[-1].parts) == {"completed": 1, "failed": 2}
    assert chart.highest == 3
    assert all(bar.until == later.since for bar, later in zip(chart.bars, chart.bars[1:], strict=False))
    assert chart.bars[-1].title == "2026-03-01 11:30 UTC: 1 completed, 2 failed"
    assert time_chart("results", [], None, None, NOW) is None


@pytest.mark.parametrize("minutes", [0.5, 2, 180, 60_000])
def test_no_time_stands_twice_at_the_axis(minutes: float) -> None:
    chart = time_chart("results", [point(part * minutes) for part in (0.1, 0.5, 1)], None, None, NOW)

    assert chart is not None
    assert len(chart.ticks) == len(set(chart.ticks)) >= 2


def test_durations_are_the_half_and_the_most_of_a_time() -> None:
    points = [point(1, seconds=seconds) for seconds in range(1, 101)]
    chart = time_chart("duration", points, None, None, NOW)
    assert chart is not None
    assert dict(chart.bars[-1].parts) == {"half": 50.0, "most": 45.0}
    waits = time_chart("wait", points, None, None, NOW)
    assert waits is not None and dict(waits.bars[-1].parts)["half"] == 25.0
    assert ("Success rate", "100%") in summary_of(points)


# The filter ----------------------------------------------------------------------------------------------------------


def test_the_field_and_parameters_of_before_are_the_same_filter() -> None:
    by_field = read_query(QueryParams("q=repo:a/b trigger:webhook&status=failed&status=blocked&range=24h"))
    by_parameters = read_query(QueryParams("repository=a/b&trigger=webhook&status=failed&status=blocked&range=24h"))
    assert by_field == by_parameters
    assert by_field.text == "repo:a/b trigger:webhook"
    assert by_field.conditions(NOW)["since"] == NOW - timedelta(hours=24)
    assert read_query(QueryParams(by_field.address().removeprefix("?"))) == by_field


def test_a_tab_adds_its_status_and_removes_it() -> None:
    asked = read_query(QueryParams("status=failed"))
    assert asked.toggled((RunStatus.FAILED,)) == ""
    assert asked.toggled((RunStatus.QUEUED, RunStatus.RETRYING)) == "?status=failed&status=queued&status=retrying"


@pytest.mark.parametrize("query", ["since=yesterday", "until=9999-12-31", "range=1y", "q=commit:xyz", "order=name"])
def test_what_is_not_understood_does_not_filter(query: str) -> None:
    conditions = read_query(QueryParams(query)).conditions(NOW)
    assert conditions == read_query(QueryParams("")).conditions(NOW)


def test_a_path_of_a_thousand_folders_does_not_nest_a_thousand_times() -> None:
    paths = [f"{'a/' * depth}x.py" for depth in range(1, 1_001)]
    tree = folder_tree(paths, {"a": 1_000})

    levels = 0
    folder = tree
    while folder.folders:
        (folder,) = folder.folders.values()
        levels += 1
    assert levels == MAX_DEPTH
    assert folder.count == len([path for path in paths if path.count("/") >= MAX_DEPTH])
    assert f"{'a/' * 970}x.py" in folder.files, "the rest of the path is part of the name"
