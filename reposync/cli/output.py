"""How commands print: JSON for programs (one document, nothing else on stdout), tables and sentences for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from reposync.store.run_keys import RUN_KEYS, run_json

__all__ = ["RUN_KEYS", "ago", "duration", "json_option", "print_json", "run_json", "short", "until", "visible"]

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def visible(text: str) -> str:
    """`text` with control characters shown as escapes: a file name must not move the cursor or ring the bell."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text if _kept(char)
    )


def _kept(char: str) -> bool:
    # Bidirectional overrides turn a line around; they are dropped, as editors do.
    return unicodedata.bidirectional(char) not in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def ago(when: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in the largest fitting unit: `12 s ago`, `3 h ago`, `never`."""
    if when is None:
        return "never"
    seconds = int(((now or datetime.now(UTC)) - when).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{max(seconds, 0)} s ago"


def until(when: datetime | None, now: datetime | None = None) -> str:
    """How long until then: `in 12 s`, `in 3 h`, `now`; a dash for never."""
    if when is None:
        return "-"
    seconds = int((when - (now or datetime.now(UTC))).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"in {seconds // size} {unit}"
    return "now"


def duration(seconds: float | None) -> str:
    """`0.24 s`, `41 s`, `3 min 12 s`, `2 h 5 min`; a dash where there is none yet."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def short(sha: str | None) -> str:
    return sha[:10] if sha else "-"
