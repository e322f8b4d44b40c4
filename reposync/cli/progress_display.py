"""The progress of a run: a bar on a terminal, plain lines otherwise. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import click

from reposync.sync.progress import RunProgress, Watch
from reposync.words import escape_unprintable

LINE_SECONDS = 5.0


@contextlib.contextmanager
def open_display(name: str) -> Iterator[Watch]:
    if sys.stderr.isatty():
        with _bar(escape_unprintable(name)) as watch:
            yield watch
    else:
        yield _lines(escape_unprintable(name))


def _lines(name: str) -> Watch:
    """Print a line at each new phase or new reason to wait, and every few seconds within one."""
    last, printed_at = ("", ""), time.monotonic()

    def watch(progress: RunProgress) -> None:
        nonlocal last, printed_at
        now, state = time.monotonic(), (progress.phase, progress.waiting_for or last[1])
        if progress.phase == "done" or (state == last and now - printed_at < LINE_SECONDS):
            return
        last, printed_at = state, now
        click.echo(f"{name}: {escape_unprintable(progress.words())}", err=True)

    return watch


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[name]}", markup=False, style="bold"),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None, name=name, counts="")

        def watch(progress: RunProgress) -> None:
            counts = f"{progress.files_done:,}/{progress.files_total:,} files, {progress.chunks_done:,} chunks"
            display.update(
                task,
                description=escape_unprintable(
                    f"waiting for {progress.waiting_for}" if progress.waiting_for else progress.phase
                ),
                total=progress.files_total or None,
                completed=progress.files_done,
                counts=counts if progress.files_total else "",
            )

        yield watch
