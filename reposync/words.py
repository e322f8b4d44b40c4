"""Durations and ages in readable form, and text of others made safe to show."""

from __future__ import annotations

from datetime import UTC, datetime


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
    """`0.24 s`, `41 s`, `3 min 12 s`, `2 h 5 min`; a dash for None."""
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


def escape_unprintable(text: str) -> str:
    """`text` with everything that is not printable as an escape (`\\n`, `\\x1b`, `\\u202e`): line breaks of every kind,
    terminal sequences, overrides of the writing direction, lone surrogates. A backslash is not escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
