"""Charts of the history over time: runs by result, how long they took and waited, and what they embedded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reposync.words import duration

if TYPE_CHECKING:
    from reposync.operations.run_overview import RunPoint

MAX_BARS = 60
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_WIDTHS_SECONDS = (
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 4 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY),
)
_RESULTS = ("completed", "cancelled", "blocked", "failed")
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """The runs that were queued from `since` until `until`. `parts`: class and value, from the bottom up."""

    since: datetime
    until: datetime
    parts: Sequence[tuple[str, float]]
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """`highest`: at the top of its axis, in words `top`. `ticks`: texts along the time axis, in UTC. `legend`: class
    and word of each part."""

    bars: Sequence[Bar]
    highest: float
    top: str
    ticks: Sequence[str]
    legend: Sequence[tuple[str, str]]


def time_chart(
    kind: str, points: Sequence[RunPoint], since: datetime | None, until: datetime | None, now: datetime
) -> Chart | None:
    """The chart of `points`, the newest first; None if there are none. Without bounds it begins at the oldest one."""
    if not points:
        return None
    last = min(until, now) if until is not None else now
    first = since or points[-1].queued_at
    width = _width((last - first).total_seconds())
    start = math.floor(first.timestamp() / width) * width
    number = max(1, math.ceil((last.timestamp() - start) / width))
    groups: list[list[RunPoint]] = [[] for _ in range(number)]
    for point in points:
        position = int((point.queued_at.timestamp() - start) // width)
        if 0 <= position < number:
            groups[position].append(point)
    bars = [
        _bar(kind, group, _at(start + position * width), _at(start + (position + 1) * width))
        for position, group in enumerate(groups)
    ]
    highest = max(sum(value for _, value in bar.parts) for bar in bars)
    # Of few bars, an edge may be the nearest of two positions.
    steps = sorted({round(position * number / (_TICKS - 1)) for position in range(_TICKS)})
    texts = [_label(_at(start + step * width), width) for step in steps]
    return Chart(bars, highest or 1.0, _words(kind)(highest), texts, _LEGENDS[kind])


_LEGENDS: dict[str, Sequence[tuple[str, str]]] = {
    "results": [(name, name) for name in _RESULTS],
    "duration": [("half", "half of the runs (p50)"), ("most", "95% of the runs (p95)")],
    "wait": [("half", "half of the runs (p50)"), ("most", "95% of the runs (p95)")],
    "chunks": [("half", "chunks embedded")],
}


def _bar(kind: str, runs: Sequence[RunPoint], since: datetime, until: datetime) -> Bar:
    when = f"{since:%Y-%m-%d %H:%M} UTC"
    if kind == "results":
        counts = Counter(result_of(run) for run in runs)
        parts: list[tuple[str, float]] = [(name, counts[name]) for name in _RESULTS if counts[name]]
        said = ", ".join(f"{number:,.0f} {name}" for name, number in parts) or "no run has ended"
    elif kind == "chunks":
        total = sum(run.chunks_embedded for run in runs)
        parts, said = [("half", total)] if total else [], f"{total:,} chunks"
    else:
        values = sorted(value for run in runs if (value := _seconds(kind, run)) is not None)
        half, most = _rank(values, 0.5), _rank(values, 0.95)
        parts = [("half", half), ("most", most - half)] if values else []
        said = f"p50 {duration(half)}, p95 {duration(most)}, {len(values):,} runs" if values else "no run"
    return Bar(since, until, parts, f"{when}: {said}")


def result_of(run: RunPoint) -> str:
    return "failed" if run.files_failed and run.status == "completed" else run.status


def _seconds(kind: str, run: RunPoint) -> float | None:
    value = run.duration_seconds if kind == "duration" else run.began_after
    return None if value is None else max(0.0, value)


def _rank(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that this share of all does not exceed."""
    return values[math.ceil(share * len(values)) - 1] if values else 0.0


def _width(seconds: float) -> int:
    return next((width for width in _WIDTHS_SECONDS if seconds / width <= MAX_BARS), math.ceil(seconds / MAX_BARS))


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _label(when: datetime, width: int) -> str:
    return f"{when:%b %d}" if width >= _DAY else f"{when:%b %d %H:%M}" if width >= _HOUR else f"{when:%H:%M}"


def _words(kind: str) -> Callable[[float], str]:
    return duration if kind in ("duration", "wait") else "{:,.0f}".format


def summary_of(points: Sequence[RunPoint]) -> list[tuple[str, str]]:
    """Figures of the runs that ended, for one row."""
    ended = [point for point in points if point.duration_seconds is not None]
    if not ended:
        return []
    good = sum(point.status == "completed" and not point.files_failed for point in ended)
    seconds = sorted(point.duration_seconds or 0.0 for point in ended)
    waits = sorted(point.began_after for point in points if point.began_after is not None)
    return [
        ("Success rate", f"{100 * good / len(ended):.0f}%"),
        ("Duration p50", duration(_rank(seconds, 0.5))),
        ("p95", duration(_rank(seconds, 0.95))),
        *([("Queue wait p95", duration(max(0.0, _rank(waits, 0.95))))] if waits else []),
        ("Chunks embedded", f"{sum(point.chunks_embedded for point in ended):,}"),
    ]
