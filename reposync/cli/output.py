"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias

import click

from reposync.words import ago, duration, escape_unprintable, until

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from reposync.operations.following import RunProgress, Watch
    from reposync.operations.runs import Run

P = ParamSpec("P")
Line: TypeAlias = "str | bytes | Table"
"""Bytes are printed as they are, without a line break."""

PIPED_WIDTH = 200
LINE_SECONDS = 5.0
FAILED_FILE = "failed"
"""The reason of a problem with a file that could not be read or embedded (`Skip.FAILED`)."""
NO_REPOSITORY = "No repository yet. `reposync sync .` adds the one of this folder."

STYLES = {
    **dict.fromkeys(("completed", "live", "held"), "green"),
    **dict.fromkeys(("failed", "foreign"), "red"),
    **dict.fromkeys(("blocked", "cancelled", "stale"), "yellow"),
    **dict.fromkeys(("running", "building", "database"), "cyan"),
    "retired": "dim",
}
"""Of cells with these texts."""


@dataclass(frozen=True)
class Result:
    """What a command prints: `document` with --json, otherwise `text`, and `hint` on stderr. `text` may be a generator,
    which is not read with --json: it must not decide anything."""

    document: Any
    text: Iterable[Line]
    hint: str | None = None
    exit_code: int = 0


def prints(act: Callable[P, Result]) -> Callable[P, None]:
    """A command that prints what `act` returns, as text or, with the option --json, as JSON."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
    @functools.wraps(act)
    def command(*args: P.args, **options: P.kwargs) -> None:
        as_json = options.pop("as_json")
        result = act(*args, **options)
        if as_json:
            print_json(result.document)
        else:
            say(*result.text)
            if result.hint is not None:
                click.echo(result.hint, err=True)
        click.get_current_context().exit(result.exit_code)

    return command


def say(*lines: Line) -> None:
    """Print lines before the result of a command, or as its text; nothing with --json."""
    if click.get_current_context().params["as_json"]:
        return
    for line in lines:
        if isinstance(line, str | bytes):
            click.echo(line, nl=isinstance(line, str))
        else:
            table_console().print(line)


def warn(about: str, text: str) -> None:
    click.echo(f"{escape_unprintable(about)}: {escape_unprintable(text)}", err=True)


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def table_console() -> Console:
    """Output to a pipe is not folded at the width of a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def table(rows: Sequence[Mapping[str, Any]], *, fold: Sequence[str] = ()) -> Table:
    """The keys of the first row are the titles; `failed` is left out if it is zero everywhere. Cells of the columns in
    `fold` are folded on a narrow terminal, other cells are cut. Control characters are escaped."""
    from rich.table import Table
    from rich.text import Text

    if not any(row.get("failed") for row in rows):
        rows = [{key: value for key, value in row.items() if key != "failed"} for row in rows]
    made = Table(box=None, header_style="bold", pad_edge=False)
    for title, value in rows[0].items():
        side = "right" if isinstance(value, int | float) else "left"
        made.add_column(title, justify=side, no_wrap=title not in fold, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in map(_brief, row.values())))
    return made


def field_lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """One `name: value` per line, in the order of the document, without what is empty. Lists of things and nested
    documents follow their name, each thing indented."""
    given = {key: value for key, value in document.items() if value not in ("", [], {})}
    width = max(map(len, given), default=0) + 2
    for key, value in given.items():
        name = f"{indent}{key}:"
        match value:
            case dict():
                yield name
                yield from field_lines(value, f"{indent}  ")
            case [dict(), *_]:
                yield name
                for each in value:
                    yield f"{indent}  {', '.join(_in_words(each))}"
            case _:
                yield f"{name:<{len(indent) + width}}{_shown(value)}"


def _in_words(document: Mapping[str, Any]) -> Iterator[str]:
    for key, value in document.items():
        if value not in (None, "", [], {}, False, 0):
            yield f"{key} {_shown(value)}"


def _shown(value: Any) -> str:
    match value:
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} UTC ({_brief(value)})"
        case list():
            return ", ".join(map(_shown, value))
        case None | bool():
            return "yes" if value else "-" if value is None else "no"
        case float():
            return f"{value:g}"
        case _:
            return escape_unprintable(str(value))


def _brief(value: Any) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return ago(value) if value <= datetime.now(UTC) else until(value)
        case int() | float():
            return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        case _:
            return escape_unprintable(str(value))


def reason(code: str | None, message: str | None) -> str:
    """Why a run ended as it did, or, without a code, the notice of a completed run."""
    text = escape_unprintable(message or "")
    return f"{code}: {text}" if code else text


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"


def summary(run: Run) -> str:
    """`payments-api: completed at 1a2b3c4d5e: 12 files stored, 3 deleted, ... in 4 s`, or why it was not completed. Red
    on a terminal if the run needs attention."""
    head = f"{escape_unprintable(run.repository)}: {run.status}"
    if run.status != "completed":
        why = f"{head}: {escape_unprintable(run.error_message or run.error_code or 'no reason was given')}"
        return click.style(why, fg="red") if run.status == "failed" else why
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
    attempts = f" in {run.attempt:,} attempts" if run.attempt > 1 else ""
    text = f"{head} at {short(run.commit_after)}: {counted}, in {duration(run.duration_seconds)}{attempts}{notice}"
    return click.style(text, fg="red") if run.files_failed else text


@contextlib.contextmanager
def open_display(name: str) -> Iterator[Watch]:
    """The progress of a run, on stderr: a bar in one line on a terminal, otherwise a line at each new phase or new
    reason to wait, and every few seconds within one."""
    name = escape_unprintable(name)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.table import Column

        one_line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        columns = (BarColumn(20), TaskProgressColumn(), one_line)
        with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
            task = bar.add_task(name, total=None)

            def update(progress: RunProgress) -> None:
                left = f", about {duration(progress.eta_seconds)} left" if progress.eta_seconds else ""
                text = f"{name}: {escape_unprintable(progress.words())}{left}"
                done, total = progress.steps
                bar.update(task, description=text, completed=done, total=total or None)

            yield update
        return
    last, printed_at = ("", ""), time.monotonic()

    def watch(progress: RunProgress) -> None:
        nonlocal last, printed_at
        now, state = time.monotonic(), (progress.phase, progress.waiting_for or last[1])
        if progress.phase != "done" and (state != last or now - printed_at >= LINE_SECONDS):
            last, printed_at = state, now
            click.echo(f"{name}: {escape_unprintable(progress.words())}", err=True)

    yield watch
