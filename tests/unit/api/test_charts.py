"""The figures above the history of a repository, and the bars beside them."""

from __future__ import annotations

import re
from typing import Any

from reposync.api.web.charts import CHART_HEIGHT, MIN_BAR_HEIGHT, run_chart
from reposync.store.run import Run
from reposync.store.status import RunStatus


def run(seconds: float | None, files: int = 0, status: RunStatus = RunStatus.COMPLETED, attempt: int = 1) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    told = {"status": status, "attempt": attempt, "duration_seconds": seconds, "files_processed": files}
    told |= {"chunks_embedded": files, "chunks_reused": 0, "repository": "web"}
    return Run.model_construct(**every | told)


def heights(svg: str) -> list[float]:
    return [float(each) for each in re.findall(r'height="([\d.]+)"', svg)]


def test_success_rate_mean_and_p95_are_those_of_the_runs_that_ended() -> None:
    durations = [float(number) for number in range(1, 21)]
    ended = [run(seconds, status=RunStatus.FAILED if seconds > 15 else RunStatus.COMPLETED) for seconds in durations]
    # One that goes on, one that waits, and a tick that was missed: it ended, and nobody executed it.
    others = [run(None, status=RunStatus.RUNNING), run(None, attempt=0, status=RunStatus.QUEUED)]
    missed = run(0.0, attempt=0, status=RunStatus.CANCELLED)

    chart = run_chart([*others, missed, *ended])

    assert chart is not None
    assert (chart["runs"], chart["success_rate"]) == (20, "75%")
    assert (chart["mean"], chart["p95"], chart["longest"]) == ("10 s", "19 s", "20 s")


def test_files_over_time_stand_from_the_oldest_to_the_newest_in_proportion() -> None:
    chart = run_chart([run(1.0, 40, RunStatus.FAILED), run(1.0, 0), run(1.0, 20)])

    assert chart is not None and chart["most_files"] == "40"
    assert heights(chart["files"]) == [CHART_HEIGHT / 2, MIN_BAR_HEIGHT, CHART_HEIGHT]
    assert re.findall(r'class="(\w+)" x', chart["files"]) == ["completed", "completed", "failed"]
    assert re.findall("<title>(.*?)</title>", chart["files"]) == ["web: 20 files", "web: 0 files", "web: 40 files"]


def test_where_nothing_ended_there_is_no_chart() -> None:
    assert run_chart([]) is None
    assert run_chart([run(None, status=RunStatus.RUNNING)]) is None


def test_a_run_that_could_not_read_every_file_is_no_success_and_its_bar_says_why() -> None:
    chart = run_chart([run(2.0).model_copy(update={"files_failed": 3}), run(1.0)])

    assert chart is not None
    assert chart["success_rate"] == "50%"
    assert '<rect class="failed"' in chart["durations"]
    assert "completed, 3 failed, 2.00 s" in chart["durations"]
