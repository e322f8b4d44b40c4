"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from reposync.words import duration, escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from reposync.store.run import Run
    from reposync.sync.progress import RunProgress, Watch

PIPED_WIDTH = 200
LINE_SECONDS = 5.0
NO_REPOSITORY = "No repository yet. `reposync sync .` adds the one of this folder."
FAILED_FILE = "failed"
"""The reason of a problem with a file that could not be read or embedded (`Skip.FAILED`)."""

Cell = str | tuple[str, str]
"""A text, or a text and its style."""


@dataclass(frozen=True)
class Result:
    """What a command prints: `document` with --json, otherwise `text`, and `hint` on stderr. `failed`: exit code 1.
    Bytes in `text` are printed as they are, without a line break."""

    document: Any
    text: Iterable[str | bytes | Table]
    hint: str | None = None
    failed: bool = False

    def print(self, *, as_json: bool) -> None:
        if as_json:
            print_json(self.document)
            return
        for each in self.text:
            if isinstance(each, str | bytes):
                click.echo(each, nl=isinstance(each, str))
            else:
                table_console().print(each)
        if self.hint is not None:
            click.echo(self.hint, err=True)


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table_console() -> Console:
    """Output to a pipe is not folded at the width of a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def table(titles: Sequence[str], rows: Iterable[Iterable[Cell]], *, fold: Sequence[str] = ()) -> Table:
    """`rows` under `titles`; a title that starts with `>` aligns its column to the right.

    Cells of the columns in `fold` are folded on a narrow terminal, other cells are cut. Control characters are escaped.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        name = title.removeprefix(">")
        made.add_column(name, justify="right" if title != name else "left", no_wrap=name not in fold, overflow="fold")
    for row in rows:
        pairs = (cell if isinstance(cell, tuple) else (cell, "") for cell in row)
        made.add_row(*(Text(escape_unprintable(text), style) for text, style in pairs))
    return made


def field_lines(fields: Iterable[tuple[str, Any]], width: int) -> Iterator[str]:
    """One `name: value` per line. The values have to be escaped by the caller: they may be styled."""
    for name, value in fields:
        yield f"{name + ':':<{width}}{value}"


def reason(code: str | None, message: str | None) -> str:
    """Why a run ended as it did, or, without a code, the notice of a completed run."""
    text = escape_unprintable(message or "")
    return f"{code}: {text}" if code else text


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"


def summary(run: Run) -> str:
    """`payments-api: completed at 1a2b3c4d5e: 12 files stored, 3 deleted, ... in 4 s`, or why it was not completed."""
    head = f"{escape_unprintable(run.repository)}: {run.status}"
    if run.status != "completed":
        return f"{head}: {escape_unprintable(run.error_message or run.error_code or 'no reason was given')}"
    if run.files_failed:
        head += f" with {run.files_failed:,} {'file' if run.files_failed == 1 else 'files'} failed"
    counts = [
        (run.files_processed, "file stored" if run.files_processed == 1 else "files stored"),
        (run.files_deleted, "deleted"),
        (run.files_skipped, "skipped"),
        (run.chunks_embedded, "chunk embedded" if run.chunks_embedded == 1 else "chunks embedded"),
        (run.chunks_reused, "reused"),
    ]
    counted = ", ".join(f"{number:,} {what}" for number, what in counts if number) or "nothing to do"
    notice = f"\n  {escape_unprintable(run.error_message)}" if run.error_message else ""
    return f"{head} at {short(run.commit_after)}: {counted}, in {duration(run.duration_seconds)}{notice}"


def summary_line(run: Run) -> str:
    """The same, red on a terminal if the run needs attention."""
    return click.style(summary(run), fg="red" if run.files_failed or run.status == "failed" else None)


@contextlib.contextmanager
def open_display(name: str) -> Iterator[Watch]:
    """The progress of a run, on stderr: a bar on a terminal, plain lines otherwise."""
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
        if progress.phase != "done" and (state != last or now - printed_at >= LINE_SECONDS):
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
            doing = f"waiting for {progress.waiting_for}" if progress.waiting_for else progress.phase
            counts = f"{progress.files_done:,}/{progress.files_total:,} files" if progress.files_total else ""
            if progress.chunks_total and progress.phase == "indexing":
                counts += f", {progress.chunks_words()}, {progress.chunks_per_second:.1f}/s"
            display.update(
                task,
                description=escape_unprintable(doing),
                # Only chunks move while a model works on a batch.
                total=progress.chunks_total or progress.files_total or None,
                completed=progress.chunks_embedded if progress.chunks_total else progress.files_done,
                counts=counts,
            )

        yield watch
