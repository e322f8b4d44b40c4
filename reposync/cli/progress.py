"""What moves on a terminal: the progress of runs, and a table that is kept up to date."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import click

from reposync.cli.output import Line, rendered
from reposync.cli.terminal import has_color
from reposync.words import escape_unprintable, roughly

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from reposync.operations.following import RunProgress

LINE_SECONDS = 5.0
LOOK_SECONDS = 2.0
WIDE = 100
"""Columns of a terminal that has room for a longer bar."""


class Display(Protocol):
    """The progress of runs, by the names of their repositories."""

    shows_others: bool
    """Whether it has room for runs other than the one that is followed."""

    def update(self, name: str, progress: RunProgress) -> None: ...

    def keep(self, names: Iterable[str]) -> None:
        """Remove the others, which have ended."""


@contextlib.contextmanager
def open_display() -> Iterator[Display]:
    """On stderr: a bar with percentage, time left and rate in one line a run on a terminal, otherwise a line at each
    new phase or new reason to wait, and every few seconds within one."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    one_line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    left, rate = (
        TextColumn(f"{{task.fields[{field}]}}", markup=False, table_column=Column(no_wrap=True))
        for field in ("left", "rate")
    )
    console = Console(stderr=True, no_color=not has_color(sys.stderr))
    columns = (BarColumn(20 if console.width >= WIDE else 10), TaskProgressColumn(), left, rate, one_line)
    with Progress(*columns, console=console, transient=True, expand=True) as bars:
        yield _Bars(bars)


class _Bars:
    shows_others = True

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def update(self, name: str, progress: RunProgress) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", total=None, left="", rate="")
        done, total = progress.steps
        eta, rate = progress.eta_seconds, progress.chunks_per_second
        self._bars.update(
            self._tasks[name],
            description=f"{escape_unprintable(name)}: {escape_unprintable(progress.words())}",
            rate=f"{rate:,.{0 if rate >= 10 else 1}f} chunks/s" if rate and total else "",
            left=f"{roughly(eta)} left" if eta else "",
            completed=done,
            total=total or None,
        )

    def keep(self, names: Iterable[str]) -> None:
        for name in self._tasks.keys() - set(names):
            self._bars.remove_task(self._tasks.pop(name))


class _Lines:
    shows_others = False

    def __init__(self) -> None:
        self._last, self._printed_at = ("", ""), time.monotonic()

    def update(self, name: str, progress: RunProgress) -> None:
        now, state = time.monotonic(), (progress.phase, progress.waiting_for or self._last[1])
        if progress.phase != "done" and (state != self._last or now - self._printed_at >= LINE_SECONDS):
            self._last, self._printed_at = state, now
            click.echo(f"{escape_unprintable(name)}: {escape_unprintable(progress.words())}", err=True)

    def keep(self, names: Iterable[str]) -> None:
        pass


def show_until_interrupted(read: Callable[[], Iterable[Line]]) -> None:
    """Show what `read` gives, again and again in the same place of the terminal. Ctrl-C is the way to end it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, no_color=not has_color())
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            text = "\n".join(line for each in read() for line in rendered(each))
            live.update(Text.from_ansi(text, no_wrap=True), refresh=True)
            time.sleep(LOOK_SECONDS)
