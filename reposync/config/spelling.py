"""Hints for a person who misspelt a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED_AT_MOST = 30


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was most likely meant to be; None where nothing is near. Case does not count."""
    by_folded = {name.casefold(): name for name in known}
    # difflib compares every character with every other: a value of megabytes must not be compared at all.
    found = difflib.get_close_matches(word[:200].casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def hint(word: str, known: Iterable[str]) -> str:
    """A clause to put behind an error: the nearest known name, or all of them where none is near."""
    names = sorted(set(known))
    if near := nearest(word, names):
        return f"; did you mean `{near}`?"
    if not names:
        return "; there is none"
    more = f" and {len(names) - _LISTED_AT_MOST} more" if len(names) > _LISTED_AT_MOST else ""
    return f"; known here: {', '.join(names[:_LISTED_AT_MOST])}{more}"
