"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reposync.store.run_keys import RUN_KEYS, run_json
from reposync.words import ago, duration, until
from reposync.words import escape_unprintable as visible

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "RUN_KEYS",
    "ago",
    "duration",
    "json_option",
    "print_json",
    "run_json",
    "short",
    "table_console",
    "told_reason",
    "until",
    "visible",
]

PIPED_WIDTH = 200

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def table_console() -> Console:
    """Piped somewhere, a table must not be folded at the width of a terminal that is not there."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def told_reason(code: str | None, message: str | None) -> str:
    """Why a run ended so, or, with no code, what a completed one has to say."""
    said = visible(message or "")
    return f"{code}: {said}" if code else said


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"
