"""Charts of runs as SVG, drawn on the server: without scripts, and without style attributes, which the CSP would
refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from reposync.store.run import Run, RunCount
from reposync.store.status import FINAL, RunStatus
from reposync.words import duration

_WIDTH, CHART_HEIGHT, _GAP = 300, 80, 1
MIN_BAR_HEIGHT = 2.0
"""A bar that is too low to see would look like a missing run."""
_MIN_BARS = 40
_HOURS = 24
# From the bottom of a bar up.
_KINDS = ("completed", "cancelled", "failed")

_VIEW = Markup('viewBox="0 0 {} {}" preserveAspectRatio="none"').format(_WIDTH, CHART_HEIGHT)
_SVG = Markup('<svg class="bars" {} role="img" aria-label="{}">{}</svg>')
_RECT = Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"><title>{}</title></rect>')


def run_chart(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Bar charts and figures of the runs that were executed and have ended; None if none has. `runs`: the newest
    first."""
    ended = [run for run in reversed(runs) if run.status in FINAL and run.attempt and run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    completed = sum(run.status is RunStatus.COMPLETED and not run.files_failed for run in ended)
    files = [float(run.files_processed) for run in ended]
    chunks = [float(run.chunks_embedded + run.chunks_reused) for run in ended]
    return {
        "runs": len(ended),
        "success_rate": f"{100 * completed / len(ended):.0f}%",
        "mean": duration(sum(seconds) / len(seconds)),
        "p95": duration(_percentile(seconds, 0.95)),
        "longest": duration(max(seconds)),
        "most_files": f"{max(files):,.0f}",
        "most_chunks": f"{max(chunks):,.0f}",
        "durations": _bars(ended, seconds, lambda run: f"{_ending(run)}, {duration(run.duration_seconds)}"),
        "files": _bars(ended, files, lambda run: f"{run.files_processed:,} files"),
        # None without a model.
        "chunks": _bars(ended, chunks, _chunks) if any(chunks) else None,
    }


def _ending(run: Run) -> str:
    return f"{run.status}, {run.files_failed:,} failed" if run.files_failed else str(run.status)


def _chunks(run: Run) -> str:
    return f"{run.chunks_embedded:,} chunks embedded, {run.chunks_reused:,} reused"


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _bars(runs: Sequence[Run], values: Sequence[float], label: Callable[[Run], str]) -> Markup:
    highest = max(values) or 1.0
    # A few runs do not fill the chart, so that bars are never wide.
    step = _WIDTH / max(len(values), _MIN_BARS)
    left = _WIDTH - step * len(values)
    bars = []
    for number, (run, value) in enumerate(zip(runs, values, strict=True)):
        height = max(MIN_BAR_HEIGHT, CHART_HEIGHT * value / highest)
        place = left + number * step, CHART_HEIGHT - height, max(step - _GAP, 0.5), height
        bars.append(
            _RECT.format("failed" if run.files_failed else run.status, *place, f"{run.repository}: {label(run)}")
        )
    return _SVG.format(_VIEW, f"{len(values)} runs", Markup().join(bars))


# By hour --------------------------------------------------------------------------------------------------------------


def first_hour(now: datetime) -> datetime:
    """The beginning of the chart."""
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=_HOURS - 1)


def hour_chart(counts: Sequence[RunCount], now: datetime) -> Markup | None:
    """A bar for each of the last 24 hours, its failures at the top and in red; None without runs."""
    first = first_hour(now)
    hours = [dict.fromkeys(_KINDS, 0) for _ in range(_HOURS)]
    for each in counts:
        number = int((each.hour - first) / timedelta(hours=1))
        if each.kind in _KINDS and 0 <= number < _HOURS:
            hours[number][each.kind] += each.runs
    highest = max(sum(runs.values()) for runs in hours)
    if not highest:
        return None
    step, bars = _WIDTH / _HOURS, []
    for number, runs in enumerate(hours):
        top = float(CHART_HEIGHT)
        for kind, count in runs.items():
            if count:
                height = max(MIN_BAR_HEIGHT, CHART_HEIGHT * count / highest)
                top -= height
                title = f"{first + timedelta(hours=number):%H:00} UTC: {count:,} {kind}"
                bars.append(_RECT.format(kind, number * step, max(top, 0), step - _GAP, height, title))
    return _SVG.format(_VIEW, f"Runs of the last {_HOURS} hours", Markup().join(bars))
