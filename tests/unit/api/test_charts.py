"""The figures above the history of a repository, and the bars beside them."""

from __future__ import annotations

import re
from typing import Any

from reposync.api.web.figures import Column, run_chart
from reposync.api.web.rendering import environment
from reposync.store.run import Run
from reposync.store.status import RunStatus

CHART_HEIGHT, MIN_BAR_HEIGHT = 80, 2


def drawn(columns: list[Column]) -> str:
    return str(environment().get_template("charts.html").module.bars(columns, "runs", 24))  # type: ignore[attr-defined]


def run(seconds: float | None, files: int = 0, status: RunStatus = RunStatus.COMPLETED, attempt: int = 1) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    told = {
        "status": status,
        "attempt": attempt,
        "duration_seconds": seconds,
        "files_processed": files,
    }
    told |= {"chunks_embedded": files, "chunks_reused": 0, "repository": "web"}
    return Run.model_construct(**every | told)


def heights(svg: str) -> list[float]:
    return [float(each) for each in re.findall(r'height="([\d.]+)"', svg)]


def test_success_rate_mean_and_p95_are_those_of_the_runs_that_ended() -> None:
    durations = [float(number) for number in range(1, 21)]
    ended = [run(seconds, status=RunStatus.FAILED if seconds > 15 else RunStatus.COMPLETED) for seconds in durations]
    # One that goes on, one that waits, and a tick that was missed: it ended, and nobody executed it.
    others = [run(None, status=RunStatus.RUNNING), run(None, attempt=0, status=RunStatus.QUEUED)]
    missed = run(None, attempt=0, status=RunStatus.CANCELLED)

    chart = run_chart([*others, missed, *ended])

    assert chart is not None
    assert (chart["runs"], chart["success_rate"]) == (20, "75%")
    assert (chart["mean"], chart["p95"], chart["charts"][0][1]) == ("10 s", "19 s", "20 s")


def test_files_over_time_stand_from_the_oldest_to_the_newest_in_proportion() -> None:
    chart = run_chart([run(1.0, 40, RunStatus.FAILED), run(1.0, 0), run(1.0, 20)])

    assert chart is not None
    _, most, files = chart["charts"][1]
    assert most == "40"
    assert heights(drawn(files)) == [CHART_HEIGHT / 2, MIN_BAR_HEIGHT, CHART_HEIGHT]
    assert re.findall(r'class="(\w+)" x', drawn(files)) == ["completed", "completed", "failed"]
    titles = ["web: completed, 20 files", "web: completed, 0 files", "web: failed, 40 files"]
    assert re.findall("<title>(.*?)</title>", drawn(files)) == titles


def test_where_nothing_ended_there_is_no_chart() -> None:
    assert run_chart([]) is None
    assert run_chart([run(None, status=RunStatus.RUNNING)]) is None


def test_a_run_that_could_not_read_every_file_is_no_success_and_its_bar_says_why() -> None:
    chart = run_chart([run(2.0).model_copy(update={"files_failed": 3}), run(1.0)])

    assert chart is not None
    assert chart["success_rate"] == "50%"
    durations = drawn(chart["charts"][0][2])
    assert '<rect class="failed"' in durations
    assert "web: completed, 3 failed, 2.00 s" in durations
