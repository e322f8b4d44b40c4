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
    """A line when a phase begins, and one each few seconds within it."""
    phase, spoken = "", time.monotonic()

    def watch(progress: RunProgress) -> None:
        nonlocal phase, spoken
        now = time.monotonic()
        if progress.phase == "done" or (progress.phase == phase and now - spoken < PLAIN_SECONDS):
            return
        phase, spoken = progress.phase, now
        far = f" {progress.files_done:,} of {progress.files_total:,} files" if progress.files_total else ""
        click.echo(f"{name}: {phase}{far}", err=True)

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
                description=progress.phase,
                total=progress.files_total or None,
                completed=progress.files_done,
                figures=figures if progress.files_total else "",
            )

        yield watch
