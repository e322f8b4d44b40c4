"""What a query asks for: words, and filters by definitions among them.

`symbol:parse_config` finds chunks that define this name, `kind:function` chunks that define a function. In place of
words, `like:src/session.py:42` finds code like that at this place. A filter is a word of its own; its value is in
double quotes if it holds spaces. A word that only contains a colon (`std::vector`, `http://...`) is text, and so is a
filter inside double quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from reposync.content.symbols import KINDS, MAX_NAME_CHARS
from reposync.errors import UsageError
from reposync.search.similar import Place, read_place
from reposync.words import nearest

MAX_QUERY_CHARS: Final = 2_000

_FILTER: Final = re.compile(r'(?<!\S)(symbol|kind|like):(?:"([^"]+)"|([^\s"]+))(?!\S)')
_QUALIFIERS: Final = re.compile(r"::|->|[.#]")


@dataclass(frozen=True, slots=True)
class SearchText:
    """`words`: what is searched for; the name of the symbol or the kind, if the query has filters alone. `like`: in
    place of words."""

    words: str
    symbol: str | None = None
    kind: str | None = None
    like: Place | None = None


def read_query(text: str, *, symbol: str | None = None, kind: str | None = None, like: str | None = None) -> SearchText:
    """`symbol`, `kind`, `like`: filters that were given beside the text. Names are compared without qualifiers, as they
    are defined: `Session::close()` is `close`.

    Raises UsageError if nothing is left, if the query is too long, for an unknown kind, a place that is none, and for
    two values of a filter.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise UsageError(f"The query has {len(text):,} characters; at most {MAX_QUERY_CHARS:,} are searched for.")
    values = {key: {given} if given else set() for key, given in (("symbol", symbol), ("kind", kind), ("like", like))}
    for match in _FILTER.finditer(text):
        values[match[1]].add(match[2] or match[3])
    for key, given in values.items():
        if len(given) > 1:
            raise UsageError(f"A search has one `{key}`, and this one has {len(given)}.")
    name = next((_plain(each) for each in values["symbol"]), None)
    of_kind = next((_known(each) for each in values["kind"]), None)
    place = next((read_place(each) for each in values["like"]), None)
    words = " ".join(_FILTER.sub(" ", text).split()) if any(values.values()) else text.strip()
    if place is not None:
        if words:
            raise UsageError("A search is for words or for code like that at a place.", remedy="Leave one of them out.")
        return SearchText("", name, of_kind, place)
    if not (words or name or of_kind):
        raise UsageError("The query is empty.", remedy="Say in words what the code does, or name an identifier.")
    return SearchText(words or name or of_kind or "", name, of_kind)


def _plain(name: str) -> str:
    plain = _QUALIFIERS.split(name.strip().removesuffix("()"))[-1].strip()
    if not plain or len(plain) > MAX_NAME_CHARS:
        raise UsageError("`symbol` is not the name of a definition.", remedy="Give a name: `symbol:parse_config`.")
    return plain


def _known(kind: str) -> str:
    """Raises UsageError, which names the nearest kind."""
    wanted = kind.strip().lower()
    if wanted in KINDS:
        return wanted
    near = nearest(wanted, KINDS)
    remedy = f"Did you mean {near!r}?" if near else f"Kinds are {', '.join(KINDS)}."
    raise UsageError(f"No kind of definition is known as {kind[:50]!r}.", remedy=remedy)
