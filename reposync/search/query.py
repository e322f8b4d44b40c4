"""What a query asks for: words, and filters among them.

`repo:payments path:src/** lang:go` limits where is searched. `symbol:parse_config` finds chunks that define this name,
`kind:function` chunks that define a function. In place of words, `like:src/session.py:42` finds code like that at this
place, and `usages:parse_config` the lines that call this name. A filter is a word of its own; its value is in double
quotes if it holds spaces. A word that only contains a colon (`std::vector`, `http://...`) is text, and so is a filter
inside double quotes.

A question may have several phrasings, whose hits are ranked together. The filters of each count for all of them.

A pasted traceback, compiler output or issue may be longer than a query: see `pastes`. It has no filters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from reposync.content.searched_definitions import MAX_NAME_CHARS
from reposync.content.symbols import KINDS
from reposync.errors import UsageError
from reposync.search.pastes import MAX_PASTE_CHARS, Paste, read_paste
from reposync.search.similar import Place, read_place
from reposync.words import nearest

MAX_QUERY_CHARS: Final = 2_000
MAX_PHRASINGS: Final = 8
FILTERS: Final = ("repo", "path", "lang", "kind", "symbol", "usages", "like")
"""Their names, as they are written."""

_SAME: Final = {"repository": "repo", "language": "lang"}
"""What people know from other searches."""
_FILTER: Final = re.compile(rf'(?<!\S)({"|".join([*FILTERS, *_SAME])}):(?:"((?:\\"|[^"])+)"|([^\s"]+))(?!\S)\s?')
_NEEDS_NO_QUOTES: Final = re.compile(r'[^\s"]+')
_CALLED: Final = re.compile(r"[\w$@?!'-]+")
_QUALIFIERS: Final = re.compile(r"::|->|[.#]")


class By(StrEnum):
    """What finds candidates. Everything else of a search is the same."""

    WORDS = "words"
    MEANING = "meaning"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class SearchText:
    """`words`: what is searched for; the name of the symbol or the kind, if the query has filters alone. `like`: in
    place of words; `usages`, too. `repositories`: by name; empty: all. `others`: further phrasings of `words`. `paste`:
    what they are of."""

    words: str
    symbol: str | None = None
    kind: str | None = None
    like: Place | None = None
    usages: str | None = None
    repositories: tuple[str, ...] = ()
    path: str | None = None
    language: str | None = None
    others: tuple[str, ...] = ()
    paste: Paste | None = None

    @property
    def phrasings(self) -> tuple[str, ...]:
        return self.words, *self.others

    @property
    def all_words(self) -> str:
        """The words of all phrasings."""
        return " ".join(self.phrasings)


def read_filters(text: str, keys: Collection[str] = FILTERS) -> tuple[str, dict[str, list[str]]]:
    """The text without its filters, and the distinct values of each filter that it has, in their order. Filters other
    than `keys` are text."""
    values: dict[str, list[str]] = {}

    def taken(match: re.Match[str]) -> str:
        key = _SAME.get(match[1], match[1])
        if key not in keys:
            return match[0]
        value = match[3] or match[2].replace('\\"', '"')
        if value not in (known := values.setdefault(key, [])):
            known.append(value)
        return ""

    rest = _FILTER.sub(taken, text)
    return (rest.strip(), values) if values else (text, values)


def written(key: str, value: str) -> str:
    """The filter as a query has it."""
    if _NEEDS_NO_QUOTES.fullmatch(value):
        return f"{key}:{value}"
    quoted = value.replace('"', '\\"')
    return f'{key}:"{quoted}"'


def with_filters(words: str, values: Mapping[str, Sequence[str]]) -> str:
    """The inverse of `read_filters`."""
    return " ".join([*([words] if words else []), *(written(key, each) for key in values for each in values[key])])


def read_query(
    asked: str | Sequence[str],
    *,
    repository: str | Sequence[str] | None = None,
    path: str | None = None,
    language: str | None = None,
    symbol: str | None = None,
    kind: str | None = None,
    like: str | None = None,
) -> SearchText:
    """`asked`: the text, or those of several phrasings, of which equal ones count once. The keywords are filters that
    were given beside the text. Of repositories given in both ways, those that are
    named in both are searched: a text does not leave what its program limits it to. Names of symbols are compared
    without qualifiers, as they are defined: `Session::close()` is `close`.

    Raises UsageError if nothing is left, if the query is too long, for an unknown kind, a place that is none, for two
    values of a filter, and for too many phrasings, or one without words.
    """
    texts = [asked] if isinstance(asked, str) else list(asked) or [""]
    if len(texts) > MAX_PHRASINGS:
        raise UsageError(f"A search has at most {MAX_PHRASINGS} phrasings, and this one has {len(texts)}.")
    paste = read_paste(texts[0]) if len(texts) == 1 else None
    for text in texts:
        _check_length(len(text), MAX_QUERY_CHARS if paste is None else MAX_PASTE_CHARS)
    rests, values = (list(paste.phrasings), {}) if paste is not None else _read_together(texts)
    rest, *others = rests
    beside = {"path": path, "lang": language, "symbol": symbol, "kind": kind, "like": like, "usages": None}
    one = {key: _only(key, [*([given] if given else []), *values.get(key, ())]) for key, given in beside.items()}
    name = None if one["symbol"] is None else plain_name(one["symbol"], "symbol")
    of_kind = None if one["kind"] is None else _known(one["kind"])
    place = None if one["like"] is None else read_place(one["like"])
    called = None if one["usages"] is None else plain_name(one["usages"], "usages")
    named = [repository] if isinstance(repository, str) else repository or ()
    where = SearchText("", name, of_kind, place, called, _both(named, values.get("repo", ())), one["path"], one["lang"])
    words = " ".join(rest.split()) if values or name or of_kind or place or others else rest.strip()
    if called is not None:
        if words or others or name or of_kind or place:
            raise UsageError("A search is for words or for the calls of a name.", remedy="Leave one of them out.")
        return where
    if place is not None:
        if words or others:
            raise UsageError("A search is for words or for code like that at a place.", remedy="Leave one of them out.")
        return where
    if not (words or name or of_kind):
        raise UsageError("The query is empty.", remedy="Say in words what the code does, or name an identifier.")
    return replace(where, words=words or name or of_kind or "", others=tuple(others), paste=paste)


def _check_length(chars: int, most: int) -> None:
    if chars <= most:
        return
    raise UsageError(
        f"The query has {chars:,} characters; at most {most:,} are searched for.",
        remedy=f"A pasted traceback, compiler output or issue of several lines may have {MAX_PASTE_CHARS:,}.",
    )


def _read_together(texts: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The distinct texts without their filters, and the filters of all."""
    if len(texts) == 1:
        rest, values = read_filters(texts[0])
        return [rest], values
    rests, values = dict[str, None](), dict[str, list[str]]()
    for number, text in enumerate(texts, 1):
        rest, of_text = read_filters(text)
        if not (words := " ".join(rest.split())):
            raise UsageError(
                f"Phrasing {number} of {len(texts)} has no words.",
                remedy="Leave it out. Filters count for all phrasings, and may be in any one that has words.",
            )
        rests[words] = None
        for key, given in of_text.items():
            values[key] = list(dict.fromkeys([*values.get(key, ()), *given]))
    return list(rests), values


def _only(key: str, given: Sequence[str]) -> str | None:
    distinct = dict.fromkeys(given)
    if len(distinct) > 1:
        raise UsageError(
            f"A search has one `{key}`, and this one has {len(distinct)}.",
            remedy="A filter counts for all phrasings of a search: give it once.",
        )
    return next(iter(distinct), None)


def _both(beside: Sequence[str], within: Sequence[str]) -> tuple[str, ...]:
    if not beside or not within:
        return tuple(dict.fromkeys([*beside, *within]))
    both = tuple(each for each in dict.fromkeys(within) if each in beside)
    if not both:
        raise UsageError("The repositories of the query are not among those that are searched.")
    return both


def plain_name(name: str, what: str) -> str:
    """Without qualifiers, as names are stored. Raises UsageError if it is none."""
    plain = _QUALIFIERS.split(name.strip().removesuffix("()"))[-1].strip()
    if not plain or len(plain) > MAX_NAME_CHARS or (what == "usages" and not _CALLED.fullmatch(plain)):
        of = "what is called" if what == "usages" else "a definition"
        raise UsageError(f"This is not the name of {of}.", remedy=f"Give a name, as in `{what}:parse_config`.")
    return plain


def _known(kind: str) -> str:
    """Raises UsageError, which names the nearest kind."""
    wanted = kind.strip().lower()
    if wanted in KINDS:
        return wanted
    near = nearest(wanted, KINDS)
    remedy = f"Did you mean {near!r}?" if near else f"Kinds are {', '.join(KINDS)}."
    raise UsageError(f"No kind of definition is known as {kind[:50]!r}.", remedy=remedy)
