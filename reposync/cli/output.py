"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from reposync.store.run import Run

PIPED_WIDTH = 200
FAILED_FILE = "failed"
"""The reason of a problem with a file that could not be read or embedded (`Skip.FAILED`)."""

Cell = str | tuple[str, str]
"""A text, or a text and its style."""


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


def print_table(titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, fold: Sequence[str] = ()) -> None:
    """Print `rows` under `titles`; a title that starts with `>` aligns its column to the right.

    Cells of the columns in `fold` are folded on a narrow terminal, other cells are cut. Control characters are escaped.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        name = title.removeprefix(">")
        table.add_column(name, justify="right" if title != name else "left", no_wrap=name not in fold, overflow="fold")
    for row in rows:
        pairs = (cell if isinstance(cell, tuple) else (cell, "") for cell in row)
        table.add_row(*(Text(escape_unprintable(text), style) for text, style in pairs))
    table_console().print(table)


def print_fields(fields: Iterable[tuple[str, Any]], width: int) -> None:
    """One `name: value` per line. The values have to be escaped by the caller: they may be styled."""
    for name, value in fields:
        click.echo(f"{name + ':':<{width}}{value}")


def reason(code: str | None, message: str | None) -> str:
    """Why a run ended as it did, or, without a code, the notice of a completed run."""
    text = escape_unprintable(message or "")
    return f"{code}: {text}" if code else text


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"


def summary(run: Run) -> str:
    """`payments-api: completed at 1a2b3c4d5e: 12 files stored, 3 deleted, ... in 4 s`, or why it was not completed."""
    from reposync.words import duration

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


def summary_colour(run: Run) -> str | None:
    """Red on a terminal if the run needs attention."""
    return "red" if run.files_failed or run.status == "failed" else None
