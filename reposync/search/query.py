"""What a query asks for: words, and filters by definitions among them.

`symbol:parse_config` finds chunks that define this name, `kind:function` chunks that define a function. A filter is a
word of its own; its value is in double quotes if it holds spaces. A word that only contains a colon (`std::vector`,
`http://...`) is text, and so is a filter inside double quotes.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

from reposync.content.symbols import KINDS, MAX_NAME_CHARS
from reposync.errors import UsageError

MAX_QUERY_CHARS: Final = 2_000

_FILTER: Final = re.compile(r'(?<!\S)(symbol|kind):(?:"([^"]+)"|([^\s"]+))(?!\S)')
_QUALIFIERS: Final = re.compile(r"::|->|[.#]")


@dataclass(frozen=True, slots=True)
class SearchText:
    """`words`: what is searched for; the name of the symbol or the kind, if the query has filters alone."""

    words: str
    symbol: str | None = None
    kind: str | None = None


def read_query(text: str, *, symbol: str | None = None, kind: str | None = None) -> SearchText:
    """`symbol`, `kind`: filters that were given beside the text. Names are compared without qualifiers, as they are
    defined: `Session::close()` is `close`.

    Raises UsageError if nothing is left, if the query is too long, for an unknown kind, and for two values of a filter.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise UsageError(f"The query has {len(text):,} characters; at most {MAX_QUERY_CHARS:,} are searched for.")
    values: dict[str, set[str]] = {"symbol": {symbol} if symbol else set(), "kind": {kind} if kind else set()}
    for match in _FILTER.finditer(text):
        values[match[1]].add(match[2] or match[3])
    for key, given in values.items():
        if len(given) > 1:
            raise UsageError(f"A search has one `{key}`, and this one has {len(given)}.")
    name = next((_plain(each) for each in values["symbol"]), None)
    of_kind = next((_known(each) for each in values["kind"]), None)
    words = " ".join(_FILTER.sub(" ", text).split()) if values["symbol"] or values["kind"] else text.strip()
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
    near = difflib.get_close_matches(wanted, KINDS, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else f"Kinds are {', '.join(KINDS)}."
    raise UsageError(f"No kind of definition is known as {kind[:50]!r}.", remedy=remedy)
