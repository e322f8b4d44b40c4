"""A chart of runs as SVG, drawn on the server: without scripts, and without style attributes, which the CSP would
refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from reposync.store.run import Run
from reposync.store.status import FINAL, RunStatus
from reposync.words import duration

_WIDTH, CHART_HEIGHT = 300, 80
MIN_BAR_HEIGHT = 2.0
"""A bar that is too low to see would look like a missing run."""
_MIN_BARS = 40
_SVG = Markup('<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>')
_RECT = Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"><title>{}</title></rect>')


def run_chart(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Bars of the durations, and figures, of the runs that were executed and have ended; None if none has. `runs`: the
    newest first."""
    ended = [run for run in reversed(runs) if run.status in FINAL and run.attempt and run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    completed = sum(run.status is RunStatus.COMPLETED and not run.files_failed for run in ended)
    # A few runs do not fill the chart, so that bars are never wide.
    step = _WIDTH / max(len(ended), _MIN_BARS)
    bars = []
    for number, (run, value) in enumerate(zip(ended, seconds, strict=True)):
        height = max(MIN_BAR_HEIGHT, CHART_HEIGHT * value / (max(seconds) or 1.0))
        place = _WIDTH - step * (len(ended) - number), CHART_HEIGHT - height, max(step - 1, 0.5), height
        failed = f", {run.files_failed:,} failed" if run.files_failed else ""
        title = f"{run.repository}: {run.status}{failed}, {duration(value)}"
        bars.append(_RECT.format("failed" if failed else run.status, *place, title))
    return {
        "runs": len(ended),
        "success_rate": f"{100 * completed / len(ended):.0f}%",
        "mean": duration(sum(seconds) / len(seconds)),
        # Nearest rank: the smallest value that 95% of all do not exceed.
        "p95": duration(sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]),
        "longest": duration(max(seconds)),
        "bars": _SVG.format(_WIDTH, CHART_HEIGHT, f"Durations of {len(ended)} runs", Markup().join(bars)),
    }
