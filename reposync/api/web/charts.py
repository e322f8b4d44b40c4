"""Small bar charts as SVG, drawn on the server: they need no script, and no style attribute that a CSP would refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reposync.store.run import Run
from reposync.store.status import FINAL, RunStatus
from reposync.words import duration

WIDTH, HEIGHT, GAP = 300, 80, 1
# Shorter runs than this are drawn as tall: a bar that cannot be seen looks like a run that is missing.
LEAST_HEIGHT = 2.0
LEAST_SLOTS = 40


@dataclass(frozen=True, slots=True)
class RunChart:
    """Of the latest runs that were executed and have ended."""

    runs: int
    success_rate: str
    mean: str
    p95: str
    longest: str
    most_files: str
    durations: Markup
    files: Markup


def run_chart(runs: Sequence[Run]) -> RunChart | None:
    """`runs`: the newest first. None where none has ended."""
    ended = [run for run in reversed(runs) if run.status in FINAL and run.attempt and run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    completed = sum(run.status is RunStatus.COMPLETED and not run.files_failed for run in ended)
    files = [float(run.files_processed) for run in ended]
    return RunChart(
        runs=len(ended),
        success_rate=f"{100 * completed / len(ended):.0f}%",
        mean=duration(sum(seconds) / len(seconds)),
        p95=duration(percentile(seconds, 0.95)),
        longest=duration(max(seconds)),
        most_files=f"{max(files):,.0f}",
        durations=bars(seconds, [f"{_ending(run)}, {duration(run.duration_seconds)}" for run in ended], ended),
        files=bars(files, [f"{run.files_processed:,} files" for run in ended], ended),
    )


def _ending(run: Run) -> str:
    return f"{run.status}, {run.files_failed:,} failed" if run.files_failed else str(run.status)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def bars(values: Sequence[float], words: Sequence[str], runs: Sequence[Run]) -> Markup:
    highest = max(values) or 1.0
    # A few runs do not fill the chart: a bar stays a bar.
    step = WIDTH / max(len(values), LEAST_SLOTS)
    left = WIDTH - step * len(values)
    rects = []
    for number, (value, told, run) in enumerate(zip(values, words, runs, strict=True)):
        kind = "failed" if run.files_failed else escape(run.status)
        height = max(LEAST_HEIGHT, HEIGHT * value / highest)
        rects.append(
            f'<rect class="{kind}" x="{left + number * step:.2f}" y="{HEIGHT - height:.2f}" '
            f'width="{max(step - GAP, 0.5):.2f}" height="{height:.2f}"><title>{escape(told)}</title></rect>'
        )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return Markup(f'<svg class="bars" {box} role="img" aria-label="{len(values)} runs">{"".join(rects)}</svg>')  # noqa: S704
