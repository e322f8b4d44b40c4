"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias

import click

from reposync.cli.tables import Table, table_width
from reposync.cli.terminal import width_of, wrapped
from reposync.words import duration, escape_unprintable

if TYPE_CHECKING:
    from reposync.operations.runs import Run

P = ParamSpec("P")
NOTHING = "nothing to do"
FAILED_FILE = "failed"
"""The reason of a problem with a file that could not be read or embedded (`Skip.FAILED`)."""
NO_REPOSITORY = "No repository yet. `reposync sync .` adds the one of this folder."


@dataclass(frozen=True)
class Code:
    """A line of a file, or of a document: it is not wrapped."""

    text: str


Line: TypeAlias = str | bytes | Code | Table
"""Bytes are printed as they are, without a line break. Text wraps at spaces on a terminal."""


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
                note(result.hint)
        click.get_current_context().exit(result.exit_code)

    return command


def is_json() -> bool:
    """Whether the command prints a document."""
    return bool(click.get_current_context().params["as_json"])


def say(*lines: Line) -> None:
    """Print lines before the result of a command, or as its text; nothing with --json."""
    if is_json():
        return
    for line in lines:
        if isinstance(line, bytes):
            click.echo(line, nl=False)
        else:
            for row in rendered(line):
                click.echo(row)


def rendered(line: Line) -> Iterator[str]:
    """The lines that stdout shows of it, styled."""
    match line:
        case bytes():
            yield line.decode(errors="replace")
        case str():
            yield wrapped(line, width_of(sys.stdout))
        case Code():
            yield line.text
        case Table():
            yield from line.lines(table_width())


def note(text: str, *, hang: int = 2, color: bool | None = None) -> None:
    """Print a sentence on stderr."""
    click.echo(wrapped(text, width_of(sys.stderr), hang), err=True, color=color)


def warn(about: str, text: str) -> None:
    note(f"{escape_unprintable(about)}: {escape_unprintable(text)}")


def print_json(document: Any) -> None:
    click.echo(as_json(document))


def as_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def reason(code: str | None, message: str | None) -> str:
    """Why a run ended as it did, or, without a code, the notice of a completed run."""
    text = escape_unprintable(message or "")
    return f"{code}: {text}" if code else text


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"


def changes(run: Run) -> str | None:
    """`12 files stored, 3 deleted, 40 chunks embedded`; None without any."""
    counts = [
        (run.files_processed, "file stored" if run.files_processed == 1 else "files stored"),
        (run.files_deleted, "deleted"),
        (run.files_skipped, "skipped"),
        (run.chunks_embedded, "chunk embedded" if run.chunks_embedded == 1 else "chunks embedded"),
        (run.chunks_reused, "reused"),
    ]
    return ", ".join(f"{number:,} {what}" for number, what in counts if number) or None


def summary(run: Run) -> str:
    """`payments-api: completed at 1a2b3c4d5e: 12 files stored, 3 deleted, ... in 4 s`, or why it was not completed. Red
    on a terminal if the run needs attention."""
    head = f"{escape_unprintable(run.repository)}: {run.status}"
    if run.status != "completed":
        why = f"{head}: {escape_unprintable(run.error_message or run.error_code or 'no reason was given')}"
        return click.style(why, fg="red") if run.status == "failed" else why
    if run.files_failed:
        head += f" with {run.files_failed:,} {'file' if run.files_failed == 1 else 'files'} failed"
    notice = f"\n  {escape_unprintable(run.error_message)}" if run.error_message else ""
    attempts = f" in {run.attempt:,} attempts" if run.attempt > 1 else ""
    took = f"in {duration(run.duration_seconds)}{attempts}"
    text = f"{head} at {short(run.commit_after)}: {changes(run) or NOTHING}, {took}{notice}"
    return click.style(text, fg="red") if run.files_failed else text
