"""Durations and ages in readable form, text of others made safe to show, addresses, and the name that was probably
meant."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

LISTED_NAMES = 30
_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4}|[nrt])")

_LINES_OF_URL = re.compile(r"#L\d+(?:-\d+)?$")

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def ago(when: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in the largest fitting unit: `12 s ago`, `3 h ago`, `never`."""
    return "never" if when is None else f"{_largest_unit((now or datetime.now(UTC)) - when) or '0 s'} ago"


def until(when: datetime | None, now: datetime | None = None) -> str:
    """How long until then: `in 12 s`, `in 3 h`, `now`; a dash for never."""
    if when is None:
        return "-"
    left = _largest_unit(when - (now or datetime.now(UTC)))
    return f"in {left}" if left else "now"


def next_attempt(when: datetime) -> str:
    """`next attempt at 2026-03-01 12:00:00 UTC`."""
    return f"next attempt at {when:%Y-%m-%d %H:%M:%S} UTC"


def _largest_unit(span: timedelta) -> str:
    """`3 h`; empty below a second."""
    seconds = int(span.total_seconds())
    return next((f"{seconds // size} {unit}" for size, unit in _UNITS if seconds >= size), "")


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


def roughly(seconds: float) -> str:
    """A rounded estimate: `a few seconds`, `about 40 s`, `about 12 min`, `about 2 h 30 min`."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 55:
        return f"about {math.ceil(seconds / 10) * 10} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"about {minutes} min"
    hours, rest = divmod(math.ceil(minutes / 10) * 10, 60)
    return f"about {hours:,} h{f' {rest} min' if rest else ''}"


def escape_unprintable(text: str) -> str:
    """`text` with everything that is not printable as an escape (`\\n`, `\\x1b`, `\\u202e`): line breaks of every kind,
    terminal sequences, overrides of the writing direction, lone surrogates. A backslash is not escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def with_unprintable(text: str) -> str:
    """The text that `escape_unprintable` may have made `text` of: escapes of what is not printable become that again.
    Text that has such escapes itself is changed, too."""

    def char(escape: re.Match[str]) -> str:
        found = escape[0].encode("ascii").decode("unicode_escape")
        return escape[0] if found.isprintable() else found

    return _ESCAPE.sub(char, text)


def file_address(repository: str, path: str) -> str:
    """The file as the end of the address of a page or route (`reposync.api.routing`)."""
    return f"/files/{quote(repository).replace('/-/', '%2F-/')}/-/{quote(path)}"


def url_of_lines(url: str, start: int, end: int) -> str:
    """The url of other lines of the same file."""
    return _LINES_OF_URL.sub(f"#L{start}-{end}" if start < end else f"#L{start}", url)


def visible(text: str) -> str:
    """As `escape_unprintable`, for several lines: line feeds and tabs stay, and `\\r\\n` becomes a line feed."""
    return "\n".join(
        "\t".join(map(escape_unprintable, line.split("\t"))) for line in text.replace("\r\n", "\n").split("\n")
    )


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was most likely meant to be, ignoring case. None if no name is near."""
    by_folded = {name.casefold(): name for name in known}
    # difflib compares every character with every other, so a value of megabytes is cut first.
    found = difflib.get_close_matches(word[:200].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """A clause to append to an error: the nearest known name, or the known names if none is near."""
    names = sorted(set(known))
    if near := nearest(word, names):
        return f"; did you mean `{near}`?"
    if not names:
        return "; there is none"
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return f"; known here: {', '.join(names[:LISTED_NAMES])}{more}"


def phrasings_words(numbers: Sequence[int]) -> str:
    """`phrasings 1, 3`: those of a search that find a hit; empty if it has one."""
    if not numbers:
        return ""
    return f"{'phrasing' if len(numbers) == 1 else 'phrasings'} {', '.join(map(str, sorted(numbers)))}"
