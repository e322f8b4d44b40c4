"""The pages of code: of search, with the lines of each hit that match best, by file; and of an indexed file,
`/files/{name}/-/{path}`: its lines with numbers, and its definitions. `?lines=10-20` marks lines, `#L10` one line. A
long file is shown in parts of `PAGE_LINES`: the one with the marked lines, or with the line `from`."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fastapi import Response
from markupsafe import Markup

from reposync.api.web.highlighting import highlighted_lines, snippet_rows
from reposync.api.web.rendering import Page
from reposync.embedding.sparse import query_terms
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.operations.core import read_arguments
from reposync.operations.search import MAX_QUERY_CHARS, FileLines, Hit, Lines, Search, read, search
from reposync.search.snippets import Snippet, best_snippet
from reposync.symbol import Symbol

PAGE_HITS = 10
SHOWN_LINES = 8
SHOWN_SYMBOLS = 6


async def show_search(page: Page) -> Response:
    fields = ("q", "repository", "path", "language")
    given: dict[str, Any] = {key: page.query.get(key, "").strip() or None for key in fields}
    found: Sequence[Hit] = ()
    files: Collection[list[ShownHit]] = ()
    problem = None
    if given["q"]:
        try:
            repository = [given["repository"]] if given["repository"] else None
            asked = read_arguments(Search, {**given, "repository": repository, "limit": PAGE_HITS})
            answer = await search(page.app, page.actor, asked)
            found = answer.items
            files = await asyncio.to_thread(by_file, found, answer.words)
        except StoreUnavailable:
            raise
        except RepoSyncError as error:
            # Shown with the form: most of these are about its fields.
            problem = str(error)
    facets = [(key, _links(page, key, found)) for key in ("repository", "language")]
    return page.show("search.html", **given, longest=MAX_QUERY_CHARS, files=files, facets=facets, problem=problem)


def _links(page: Page, key: str, found: Sequence[Hit]) -> list[tuple[str, int, str]]:
    """For each value of `key`, if the hits have several: their number, and the search of these alone."""
    counts = Counter(value for hit in found if (value := getattr(hit, key)))
    if len(counts) < 2:
        return []
    return [
        (value, number, f"?{page.request.url.include_query_params(**{key: value}).query}")
        for value, number in counts.most_common()
    ]


class ShownHit(NamedTuple):
    """`snippet`: the lines that match best; `rows`: their HTML."""

    hit: Hit
    snippet: Snippet
    rows: Sequence[Markup]

    @property
    def end_line(self) -> int:
        return self.snippet.lines[-1].number if self.snippet.lines else self.snippet.start_line

    @property
    def symbols(self) -> list[Symbol]:
        """Those of the shown lines."""
        start, end = self.snippet.start_line, self.end_line
        return [each for each in self.hit.symbols if each.start_line <= end and start <= each.end_line][:SHOWN_SYMBOLS]


def by_file(found: Sequence[Hit], words: str) -> Collection[list[ShownHit]]:
    """The hits of each file, at the place of the best one, with the lines that match `words` best."""
    files: dict[tuple[str, str], list[ShownHit]] = {}
    for hit in found:
        snippet, rows = _shown(
            hit.text, hit.start_line, words, hit.language, tuple(hit.symbols), tuple(hit.definitions)
        )
        files.setdefault((hit.repository, hit.path), []).append(ShownHit(hit, snippet, rows))
    return files.values()


# People go back to a search, and narrow it: its hits stay the same then.
@lru_cache(32 * PAGE_HITS)
def _shown(
    text: str,
    start_line: int,
    words: str,
    language: str | None,
    symbols: tuple[Symbol, ...],
    definitions: tuple[Symbol, ...],
) -> tuple[Snippet, Sequence[Markup]]:
    """The lines of a chunk that match `words` best, and their HTML."""
    snippet = best_snippet(text, start_line, words, SHOWN_LINES, symbols, definitions)
    first = snippet.start_line - start_line
    return snippet, snippet_rows(text, first, [line.text for line in snippet.lines], language, query_terms(words))


# A file ---------------------------------------------------------------------------------------------------------------

PAGE_LINES = 1_000
MAX_LINE_CHARS = 500
MAX_DEFINITIONS = 300

_LINES = re.compile(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?")


async def show_file(page: Page) -> Response:
    name = page.request.path_params["name"]
    path = page.request.path_params["path"]
    file = await read(page.app, page.actor, Lines(), name=name, path=path)
    return await asyncio.to_thread(_show_part, page, file)


def _read_lines(value: str) -> tuple[int, int] | None:
    match = _LINES.fullmatch(value)
    return None if match is None else (int(match[1]), max(int(match[1]), int(match[2] or match[1])))


def _show_part(page: Page, file: FileLines) -> Response:
    """The part of the file that has the marked lines. Rendering takes 40 ms."""
    marked = _read_lines(page.query.get("lines", ""))
    start, _ = marked or _read_lines(page.query.get("from", "")) or (1, 1)
    lines = file.text.removesuffix("\n").split("\n")
    first = (min(start, len(lines)) - 1) // PAGE_LINES * PAGE_LINES
    last = min(first + PAGE_LINES, len(lines))
    cut = [
        f"{each[:MAX_LINE_CHARS]} … {len(each):,} characters" if len(each) > MAX_LINE_CHARS else each
        for each in lines[:last]
    ]
    return page.show(
        "file.html",
        file=file,
        rows=highlighted_lines(cut, file.language, first),
        first=first + 1,
        last=last,
        lines=len(lines),
        page_lines=PAGE_LINES,
        marked=marked,
        max_definitions=MAX_DEFINITIONS,
    )
