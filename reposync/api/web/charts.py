"""Charts of runs as SVG, drawn on the server: without scripts, and without style attributes, which the CSP would
refuse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from reposync.operations.pages import HOURS, RunCount, first_hour
from reposync.operations.runs import Run
from reposync.words import duration

_WIDTH, CHART_HEIGHT = 300, 80
MIN_BAR_HEIGHT = 2.0
"""A bar that is too low to see would look like a missing run."""
_MIN_BARS = 40
# From the bottom of a bar up.
_KINDS = ("completed", "cancelled", "failed")
_SVG = Markup('<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>')
_RECT = Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"><title>{}</title></rect>')


def run_chart(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Figures and bar charts (caption, greatest value, SVG) of the runs that were executed and have ended; None if none
    has. `runs`: the newest first."""
    ended = [run for run in reversed(runs) if run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    files = [run.files_processed for run in ended]
    chunks = [run.chunks_embedded + run.chunks_reused for run in ended]
    completed = sum(run.status == "completed" and not run.files_failed for run in ended)
    charts = [
        ("Duration, oldest first", duration(max(seconds)), _bars(ended, seconds, map(duration, seconds))),
        ("Files stored", f"{max(files):,}", _bars(ended, files, (f"{each:,} files" for each in files))),
    ]
    if any(chunks):  # none without a model
        words = (f"{run.chunks_embedded:,} chunks embedded, {run.chunks_reused:,} reused" for run in ended)
        charts.append(("Chunks embedded or reused", f"{max(chunks):,}", _bars(ended, chunks, words)))
    return {
        "runs": len(ended),
        "success_rate": f"{100 * completed / len(ended):.0f}%",
        "mean": duration(sum(seconds) / len(seconds)),
        # Nearest rank: the smallest value that 95% of all do not exceed.
        "p95": duration(sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]),
        "charts": charts,
    }


def _bars(runs: Sequence[Run], values: Sequence[float], words: Iterable[str]) -> Markup:
    # A few runs do not fill the chart, so that bars are never wide.
    step = _WIDTH / max(len(runs), _MIN_BARS)
    bars = []
    for number, (run, value, text) in enumerate(zip(runs, values, words, strict=True)):
        height = _height(value, max(values))
        place = _WIDTH - step * (len(runs) - number), CHART_HEIGHT - height, max(step - 1, 0.5), height
        ending = f"{run.status}, {run.files_failed:,} failed" if run.files_failed else run.status
        bars.append(
            _RECT.format("failed" if run.files_failed else run.status, *place, f"{run.repository}: {ending}, {text}")
        )
    return _SVG.format(_WIDTH, CHART_HEIGHT, f"{len(runs)} runs", Markup().join(bars))


def _height(value: float, highest: float) -> float:
    return max(MIN_BAR_HEIGHT, CHART_HEIGHT * value / (highest or 1.0))


def hour_chart(counts: Sequence[RunCount], now: datetime) -> Markup | None:
    """A bar for each of the last 24 hours, its failures at the top and in red; None without runs."""
    first = first_hour(now)
    hours = [dict.fromkeys(_KINDS, 0) for _ in range(HOURS)]
    for each in counts:
        number = int((each.hour - first) / timedelta(hours=1))
        if each.kind in _KINDS and 0 <= number < HOURS:
            hours[number][each.kind] += each.runs
    highest = max(sum(runs.values()) for runs in hours)
    if not highest:
        return None
    step, bars = _WIDTH / HOURS, []
    for number, runs in enumerate(hours):
        top = float(CHART_HEIGHT)
        for kind, count in runs.items():
            if count:
                height = _height(count, highest)
                top -= height
                title = f"{first + timedelta(hours=number):%H:00} UTC: {count:,} {kind}"
                bars.append(_RECT.format(kind, number * step, max(top, 0), step - 1, height, title))
    return _SVG.format(_WIDTH, CHART_HEIGHT, f"Runs of the last {HOURS} hours", Markup().join(bars))
