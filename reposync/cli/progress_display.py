"""How a run under way looks: a bar on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import click

from reposync.cli.output import visible
from reposync.sync.progress import RunProgress, Watch

PLAIN_SECONDS = 5.0


@contextlib.contextmanager
def open_display(name: str) -> Iterator[Watch]:
    if sys.stderr.isatty():
        with _bar(visible(name)) as watch:
            yield watch
    else:
        yield _lines(visible(name))


def _lines(name: str) -> Watch:
    """A line when a phase begins or something else is waited for, and one each few seconds within it."""
    known, spoken = ("", ""), time.monotonic()

    def watch(progress: RunProgress) -> None:
        nonlocal known, spoken
        now, news = time.monotonic(), (progress.phase, progress.waiting_for or known[1])
        if progress.phase == "done" or (news == known and now - spoken < PLAIN_SECONDS):
            return
        known, spoken = news, now
        click.echo(f"{name}: {visible(progress.words())}", err=True)

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
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("starting", total=None, name=name, figures="")

        def watch(progress: RunProgress) -> None:
            figures = f"{progress.files_done:,}/{progress.files_total:,} files, {progress.chunks_done:,} chunks"
            display.update(
                task,
                description=visible(f"waiting for {progress.waiting_for}" if progress.waiting_for else progress.phase),
                total=progress.files_total or None,
                completed=progress.files_done,
                figures=figures if progress.files_total else "",
            )

        yield watch
