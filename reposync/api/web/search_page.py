"""The page of the search: one field with filters in it, how to match, and what was found, by file. `mode`: empty for
the best matches, `exact` for a text, `regex` for a pattern. Older links have the filters beside the field. Links of
agents may have several phrasings (`q` several times): the first is in the field, the others are below it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import Response

from reposync.api.web.found_files import MORE_LINES, FoundFile, files_of_hits, files_of_matches
from reposync.api.web.rendering import Page, query
from reposync.content.grammars import GRAMMAR_LANGUAGES
from reposync.content.symbols import KINDS
from reposync.errors import NothingIndexed, RepoSyncError, StoreUnavailable
from reposync.operations.core import read_arguments
from reposync.operations.pages import oldest_sync
from reposync.operations.search import (
    MAX_PASTE_CHARS,
    MAX_QUERY_CHARS,
    FacetedSearch,
    Grep,
    calls_asked_for,
    filters_of_nothing,
    grep_passages,
    search_shown,
)
from reposync.search.documents import Facet, Facets, MatchingFile, Missing
from reposync.search.query import FILTERS, read_filters, with_filters, written
from reposync.supervision import in_thread, together

MODES = ("", "exact", "regex")
LIMITS: Mapping[str, Sequence[int]] = {"": (10, 20, 50, 100), "exact": (50, 100, 300), "regex": (50, 100, 300)}
SHOWN_VALUES = 8
_PASTED_LIMIT = 20
_OFFERED = sorted({"css", "html", "json", "markdown", "sql", "yaml", *GRAMMAR_LANGUAGES})
"""Languages that are offered before something was found."""
_BESIDE = {"repository": "repo", "path": "path", "language": "lang", "symbol": "symbol", "kind": "kind", "like": "like"}
_WHERE = ("repo", "path", "lang")
"""Filters that a pattern may have beside it. What looks like another one is part of the pattern."""
_LOOKS_LIKE_A_PATTERN = re.compile(r"\\[bBdDsSwW.()\[]|\.[*+]|\[\^|^\^|\(\?|\w\|\w")


@dataclass(frozen=True, slots=True)
class Typed:
    """What the address says. `words`: without the filters, which are `values`. `others`: further phrasings of the
    words. `is_pasted`: it came by a form, as a text of several lines that has no filters."""

    words: str
    values: Mapping[str, Sequence[str]]
    mode: str
    matches_case: bool
    limit: int
    others: Sequence[str] = ()
    is_pasted: bool = False

    @property
    def text(self) -> str:
        """As the field has it."""
        return with_filters(self.words, self.values)

    @property
    def is_pattern(self) -> bool:
        return self.mode != ""

    @property
    def called(self) -> str | None:
        """The name whose calls are searched for."""
        return None if self.mode else next(iter(self.values.get("usages", ())), None)

    @property
    def finds_lines(self) -> bool:
        return self.is_pattern or self.called is not None

    def address(self, **changes: Any) -> str:
        """The query of the address with other values. Filters by their names; None: without it."""
        values = {key: list(each) for key, each in self.values.items()}
        for key in FILTERS:
            if key in changes:
                values[key] = [] if changes[key] is None else [changes[key]]
        mode = changes.get("mode", self.mode)
        limit = changes.get("limit", 0)
        others = changes.get("others", () if mode else self.others)
        given: dict[str, str | Sequence[str]] = {
            "q": [with_filters(changes.get("words", self.words), values), *others],
            "mode": mode,
            "case": "1" if self.matches_case and mode else "",
            "limit": str(limit) if limit else "",
        }
        given["q"] = [each for each in given["q"] if each]
        return query(given) or "?"

    def in_file(self) -> str:
        """The query of the page of a file, which finds the same there."""
        if self.called is not None:
            return query({"find": self.called, "mode": "exact", "case": "1"})
        return query({"find": self.words, "mode": self.mode, "case": "1" if self.matches_case else ""})

    def without(self, key: str, value: str) -> str:
        values = {each: [one for one in given if (each, one) != (key, value)] for each, given in self.values.items()}
        return replace(self, values=values).address()

    def without_phrasing(self, phrasing: str) -> str:
        return self.address(others=[each for each in self.others if each != phrasing])


def typed(page: Page) -> Typed:
    if page.form is not None:
        return Typed(page.form.get("q", "").strip(), {}, "", False, _PASTED_LIMIT, is_pasted=True)
    mode = page.query.get("mode", "")
    mode = mode if mode in MODES else ""
    first, *further = [each for each in map(str.strip, page.query.getlist("q")) if each] or [""]
    words, values = read_filters(first, _WHERE if mode else FILTERS)
    others = [] if mode else _add_phrasings(further, values)
    for field, key in _BESIDE.items():
        given = page.query.get(field, "").strip()
        if given and (key in _WHERE or not mode) and given not in values.get(key, ()):
            values[key] = [*values.get(key, ()), given]
    if page.query.get("definition") and words and not mode:
        words, values = "", {**values, "symbol": [words]}
    limits = LIMITS[mode]
    asked = page.query.get("limit", "")
    limit = int(asked) if asked.isdecimal() and int(asked) in limits else limits[0]
    return Typed(words, values, mode, bool(page.query.get("case")), limit, others)


def _add_phrasings(texts: Sequence[str], values: dict[str, list[str]]) -> list[str]:
    """Their words; their filters, which count for all phrasings, are added to `values`."""
    others = []
    for text in texts:
        words, given = read_filters(text)
        others += [words] if words else []
        for key, added in given.items():
            values[key] = list(dict.fromkeys([*values.get(key, ()), *added]))
    return others


@dataclass(frozen=True, slots=True)
class ShownFacet:
    """A value of a filter that narrows the search. `link`: adds it, or removes it if it `is_chosen`."""

    value: str
    count: int | None
    link: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Found:
    """`shown`: hits or lines that are on the page. `counted`: places in the index with words of the query, None if that
    is not known; `has_all`: whether these are all. `stopped`: why lines may be missing. `words_only`: repositories that
    are searched by words, with the share of their meaning that is indexed. `missing`: why there is no more. `used`:
    what was searched for of a pasted text."""

    files: Sequence[FoundFile]
    shown: int
    facets: Mapping[str, Sequence[ShownFacet]]
    counted: int | None
    has_all: bool
    stopped: str | None
    words_only: Mapping[str, float]
    synced_at: datetime | None
    milliseconds: float
    next_limit: int | None
    missing: Missing | None
    used: str | None

    @property
    def repositories(self) -> int:
        return len({file.repository for file in self.files})


async def show_search(page: Page) -> Response:
    asked = typed(page)
    found, problem, nothing_indexed, empty = None, None, False, list[str]()
    is_asked = bool(asked.words or (not asked.mode and {"symbol", "kind", "usages", "like"} & asked.values.keys()))
    if is_asked:
        try:
            found = await (_matching(page, asked) if asked.finds_lines else _best(page, asked))
            if not found.files and asked.values and not asked.finds_lines:
                empty = await filters_of_nothing(page.app, page.actor, _search(asked))
        except StoreUnavailable:
            raise
        except NothingIndexed as error:
            nothing_indexed, problem = not asked.values.get("repo"), str(error)
        except RepoSyncError as error:
            # Shown with the form: most of these are about its text.
            problem = str(error)
    return page.show(
        "search.html",
        asked=asked,
        longest=MAX_QUERY_CHARS,
        longest_paste=MAX_PASTE_CHARS,
        chips=[(key, value, asked.without(key, value)) for key in asked.values for value in asked.values[key]],
        found=found,
        problem=problem,
        nothing_indexed=nothing_indexed,
        empty_filters=empty,
        is_pattern_like=not asked.mode and _LOOKS_LIKE_A_PATTERN.search(asked.words) is not None,
        explain="explain" in page.query,
        more_lines=MORE_LINES,
        filter_names=FILTERS if not asked.mode else _WHERE,
        kinds=KINDS,
        languages=_OFFERED,
        written=written,
    )


def _search(asked: Typed, **more: Any) -> FacetedSearch:
    return read_arguments(FacetedSearch, {"q": [asked.text, *asked.others], **more})


async def _best(page: Page, asked: Typed) -> Found:
    began = time.perf_counter()
    wanted = _search(asked, limit=asked.limit, facets=True)
    answer, shown = await search_shown(page.app, page.actor, wanted, files_of_hits)
    took = time.perf_counter() - began
    synced_at = await oldest_sync(page.app, page.actor, names={hit.repository for hit in answer.items})
    facets, full = answer.facets, len(answer.items) >= asked.limit
    return Found(
        files=shown,
        shown=sum(len(each.hits) for each in shown),
        # A pasted text is in no address that could narrow it.
        facets=_facets(asked, {} if facets is None or asked.is_pasted else _counts(facets)),
        counted=facets.counted if facets is not None else None,
        has_all=facets is not None and facets.is_complete,
        stopped=None,
        used=answer.used,
        words_only={hit.repository: hit.meaning_indexed for hit in answer.items if hit.meaning_indexed is not None},
        synced_at=synced_at,
        milliseconds=1000 * took,
        next_limit=_next(asked) if full and not asked.is_pasted else None,
        missing=answer.missing,
    )


def _counts(facets: Facets) -> dict[str, Sequence[Facet]]:
    return {"repo": facets.repository, "lang": facets.language, "path": facets.folder, "kind": facets.kind}


async def _matching(page: Page, asked: Typed) -> Found:
    began = time.perf_counter()
    wanted = (None if asked.is_pattern else calls_asked_for(_search(asked))) or _pattern(asked)
    answer, passages = await grep_passages(page.app, page.actor, wanted)
    took = time.perf_counter() - began
    names = {file.repository for file in answer.items}
    shown, synced_at = await together(
        in_thread(partial(files_of_matches, answer.items, passages)), oldest_sync(page.app, page.actor, names=names)
    )
    lines = sum(len(file.matches) for file in answer.items)
    return Found(
        files=shown,
        shown=lines,
        facets=_facets(asked, _counts_of(answer.items)),
        counted=lines,
        has_all=answer.is_complete,
        stopped=answer.stopped,
        used=None,
        words_only={},
        synced_at=synced_at,
        milliseconds=1000 * took,
        next_limit=_next(asked) if asked.is_pattern and lines >= asked.limit else None,
        missing=answer.missing,
    )


def _pattern(asked: Typed) -> Grep:
    where = {"repository": asked.values.get("repo"), "path": _one(asked, "path"), "language": _one(asked, "lang")}
    fixed = {"fixed": asked.mode == "exact", "ignore_case": not asked.matches_case}
    return read_arguments(Grep, {"q": asked.words, **where, **fixed, "limit": asked.limit})


def _one(asked: Typed, key: str) -> str | None:
    """The last value of the filter, which a pattern has one of."""
    return next(reversed(asked.values.get(key, ())), None)


def _counts_of(files: Sequence[MatchingFile]) -> dict[str, Sequence[Facet]]:
    """Lines by repository, language and folder."""
    counts: dict[str, Counter[str]] = {"repo": Counter(), "lang": Counter(), "path": Counter()}
    for file in files:
        number = len(file.matches)
        counts["repo"][file.repository] += number
        if file.language:
            counts["lang"][file.language] += number
        folder, slash, _ = file.path.partition("/")
        if slash:
            counts["path"][f"/{folder}/"] += number
    return {key: [Facet(*each) for each in values.most_common()] for key, values in counts.items()}


def _facets(asked: Typed, counts: Mapping[str, Collection[Facet]]) -> dict[str, list[ShownFacet]]:
    """The chosen values first. A single value that is not chosen narrows nothing."""
    shown: dict[str, list[ShownFacet]] = {}
    for key, facets in counts.items():
        chosen = asked.values.get(key, ())
        known = {each.value: each.count for each in facets}
        values = [ShownFacet(each, known.get(each), asked.without(key, each), True) for each in chosen]
        others = [each for each in facets if each.value not in chosen][:SHOWN_VALUES]
        values += [ShownFacet(each.value, each.count, asked.address(**{key: each.value}), False) for each in others]
        if chosen or len(values) > 1:
            shown[key] = values
    return shown


def _next(asked: Typed) -> int | None:
    return next((each for each in LIMITS[asked.mode] if each > asked.limit), None)
