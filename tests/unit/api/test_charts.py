"""The figures above the history of a repository, and the bars beside them."""

from __future__ import annotations

import re
from typing import Any

from reposync.api.web.charts import CHART_HEIGHT, MIN_BAR_HEIGHT, run_chart
from reposync.store.run import Run
from reposync.store.status import RunStatus


def run(seconds: float | None, status: RunStatus = RunStatus.COMPLETED, attempt: int = 1, failed: int = 0) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    told = {"status": status, "attempt": attempt, "duration_seconds": seconds, "files_failed": failed}
    return Run.model_construct(**every | told | {"repository": "web"})


def test_success_rate_mean_and_p95_are_those_of_the_runs_that_ended() -> None:
    durations = [float(number) for number in range(1, 21)]
    ended = [run(seconds, RunStatus.FAILED if seconds > 15 else RunStatus.COMPLETED) for seconds in durations]
    # One that goes on, one that waits, and a tick that was missed: it ended, and nobody executed it.
    others = [run(None, RunStatus.RUNNING), run(None, RunStatus.QUEUED, 0), run(0.0, RunStatus.CANCELLED, 0)]

    chart = run_chart([*others, *ended])

    assert chart is not None
    assert (chart["runs"], chart["success_rate"]) == (20, "75%")
    assert (chart["mean"], chart["p95"], chart["longest"]) == ("10 s", "19 s", "20 s")
    assert run_chart(others) is None


def test_bars_stand_from_the_oldest_to_the_newest_and_say_what_failed() -> None:
    chart = run_chart([run(40.0, RunStatus.FAILED), run(0.0, failed=3), run(20.0)])

    assert chart is not None and chart["success_rate"] == "33%"
    heights = [float(each) for each in re.findall(r'height="([\d.]+)"', chart["bars"])]
    assert heights == [CHART_HEIGHT / 2, MIN_BAR_HEIGHT, CHART_HEIGHT]
    assert re.findall(r'class="(\w+)" x', chart["bars"]) == ["completed", "failed", "failed"]
    titles = ["web: completed, 20 s", "web: completed, 3 failed, 0.00 s", "web: failed, 40 s"]
    assert re.findall("<title>(.*?)</title>", chart["bars"]) == titles
