"""Figures of runs: how far one is, and what bar charts show. `charts.html` draws columns of bars; a bar has a class, a
value and a title."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from reposync.operations.runs import Run
from reposync.words import duration

Column: TypeAlias = list[tuple[str, float, str]]
"""Bars from the bottom up."""
_NUMBERS = (
    *("files_total", "files_done", "chunks_total", "chunks_embedded", "bytes_read", "chunks_per_second"),
    *("elapsed_seconds", "eta_seconds"),
)


def run_chart(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Figures and bar charts (caption, greatest value, columns) of the runs that were executed and have ended; None if
    none has. `runs`: the newest first."""
    ended = [run for run in reversed(runs) if run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    files = [run.files_processed for run in ended]
    chunks = [run.chunks_embedded + run.chunks_reused for run in ended]
    completed = sum(run.status == "completed" and not run.files_failed for run in ended)
    charts = [
        ("Duration, oldest first", duration(max(seconds)), _columns(ended, seconds, map(duration, seconds))),
        ("Files stored", f"{max(files):,}", _columns(ended, files, (f"{each:,} files" for each in files))),
    ]
    if any(chunks):  # none without a model
        words = (f"{run.chunks_embedded:,} chunks embedded, {run.chunks_reused:,} reused" for run in ended)
        charts.append(("Chunks embedded or reused", f"{max(chunks):,}", _columns(ended, chunks, words)))
    return {
        "runs": len(ended),
        "success_rate": f"{100 * completed / len(ended):.0f}%",
        "mean": duration(sum(seconds) / len(seconds)),
        # Nearest rank: the smallest value that 95% of all do not exceed.
        "p95": duration(sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]),
        "charts": charts,
    }


def _columns(runs: Sequence[Run], values: Sequence[float], words: Iterable[str]) -> list[Column]:
    columns = []
    for run, value, text in zip(runs, values, words, strict=True):
        ending = f"{run.status}, {run.files_failed:,} failed" if run.files_failed else run.status
        css = "failed" if run.files_failed else run.status
        columns.append([(css, value, f"{run.repository}: {ending}, {text}")])
    return columns


def progress(run: Run | None) -> dict[str, Any] | None:
    """The figures of the running attempt as its events have them, so that the first event does not move the page; zero
    if its worker has not reported any. A different version of this program may have written them. None if the run is
    not running."""
    if run is None or run.status != "running":
        return None
    reported = run.progress or {}
    found = {key: reported.get(key) if isinstance(reported.get(key), int | float) else 0 for key in _NUMBERS}
    stages, file = reported.get("stage_seconds"), reported.get("file")
    phase = str(reported.get("phase", "starting"))
    # The words of a first sync are stored by file, and nothing is embedded; its meaning follows, from the beginning.
    embeds = bool(found["chunks_total"]) and phase != "words"
    return {
        **found,
        "phase": phase,
        "stage": {"words": "words, then meaning", "indexing": "meaning" if embeds else None}.get(phase),
        "embeds": embeds,
        "bar_done": found["chunks_embedded"] if embeds else found["files_done"],
        "bar_total": found["chunks_total"] if embeds else found["files_total"],
        "file": file if isinstance(file, str) else "",
        "stage_seconds": {
            str(name): seconds
            for name, seconds in (stages.items() if isinstance(stages, dict) else ())
            if isinstance(seconds, int | float)
        },
    }
