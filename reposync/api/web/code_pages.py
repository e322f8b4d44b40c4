"""The pages of code: of search, with the lines of each hit that match best, by file; and of an indexed file,
`/files/{name}/-/{path}`: its lines with numbers, and its definitions. `?lines=10-20` marks lines, `#L10` one line. A
long file is shown in parts of `PAGE_LINES`: the one with the marked lines, or with the line `from`."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from fastapi import Response
from markupsafe import Markup

from reposync.api.web.highlighting import code_block, highlighted_lines, snippet_rows
from reposync.api.web.rendering import Page, web_link
from reposync.embedding.sparse import query_terms
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.operations.core import read_arguments
from reposync.operations.search import MAX_QUERY_CHARS, FileLines, Hit, Lines, Search, read, search
from reposync.search.snippets import Snippet, best_snippet
from reposync.symbol import Symbol
from reposync.words import file_address, url_of_lines

PAGE_HITS = 10
SHOWN_LINES = 8
SHOWN_SYMBOLS = 6


async def show_search(page: Page) -> Response:
    fields = ("q", "repository", "path", "language")
    given: dict[str, Any] = {key: page.query.get(key, "").strip() or None for key in fields}
    found: Sequence[Hit] = ()
    files: Collection[list[dict[str, Any]]] = ()
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


def by_file(found: Sequence[Hit], words: str) -> Collection[list[dict[str, Any]]]:
    """The hits of each file, at the place of the best one, with the lines that match `words` best."""
    files: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for hit in found:
        files.setdefault((hit.repository, hit.path), []).append(_lines(hit, words))
    return files.values()


def _lines(hit: Hit, words: str) -> dict[str, Any]:
    """What the page shows of a hit. `like`: the query for code like it. `address`: of the page of its file, without the
    root; `whole`: that page with all lines of the hit, if there are more; `url`: of these lines at their source."""
    snippet, rows = _shown(hit.text, hit.start_line, words, hit.language, tuple(hit.symbols), tuple(hit.definitions))
    url = web_link(hit.url)
    start, end = snippet.start_line, snippet.lines[-1].number if snippet.lines else snippet.start_line
    is_part = (start, end) != (hit.start_line, hit.end_line)
    shown = [each for each in hit.symbols if each.start_line <= end and start <= each.end_line][:SHOWN_SYMBOLS]
    return {
        "hit": hit,
        "start_line": start,
        "end_line": end,
        "code": code_block(rows, start),
        "address": lines_address(hit.repository, hit.path, start, end),
        "whole": lines_address(hit.repository, hit.path, hit.start_line, hit.end_line) if is_part else None,
        "url": url and url_of_lines(url, start, end),
        # A path with a quotation mark cannot be written as a filter.
        "like": None if '"' in hit.path else f'like:"{hit.repository}:{hit.path}:{snippet.best_line}"',
        "symbols": [(each, lines_address(hit.repository, hit.path, each.start_line, each.end_line)) for each in shown],
        "more_symbols": len(hit.symbols) - len(shown),
    }


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
    text = await read(page.app, page.actor, Lines(), name=name, path=path)
    marked = _read_lines(page.query.get("lines", ""))
    start, _ = marked or _read_lines(page.query.get("from", "")) or (1, 1)
    values = await asyncio.to_thread(_part, text, start, marked)
    return page.show("file.html", file=text, **values)


def lines_address(repository: str, path: str, start: int, end: int) -> str:
    """Of the page of a file that marks these lines, without the root."""
    return f"{file_address(repository, path)}?lines={start}-{end}#L{start}"


def _read_lines(value: str) -> tuple[int, int] | None:
    match = _LINES.fullmatch(value)
    return None if match is None else (int(match[1]), max(int(match[1]), int(match[2] or match[1])))


def _part(file: FileLines, start: int, marked: tuple[int, int] | None) -> dict[str, Any]:
    """What the page shows of the file: the part that has the line `start`."""
    lines = file.text.removesuffix("\n").split("\n")
    first = (min(start, len(lines)) - 1) // PAGE_LINES * PAGE_LINES
    last = min(first + PAGE_LINES, len(lines))
    cut = [
        f"{each[:MAX_LINE_CHARS]} … {len(each):,} characters" if len(each) > MAX_LINE_CHARS else each
        for each in lines[:last]
    ]
    rows = highlighted_lines(cut, file.language, first)
    # The lines of a notebook's cells are not those of the file, which links and definitions count.
    code = Markup("\n").join(rows) if file.is_notebook else _numbered(rows, first + 1, marked)
    url = web_link(file.url)
    return {
        "code": code,
        "first": first + 1,
        "last": last,
        "lines": len(lines),
        "before": max(1, first + 1 - PAGE_LINES) if first else None,
        "after": last + 1 if last < len(lines) else None,
        "address": file_address(file.repository, file.path),
        "url": url_of_lines(f"{url}#L1", *marked) if url and marked and not file.is_notebook else url,
        "definitions": [(each, _target(each, first + 1, last)) for each in file.symbols[:MAX_DEFINITIONS]],
        "more_definitions": max(0, len(file.symbols) - MAX_DEFINITIONS),
    }


def _numbered(rows: Sequence[Markup], first: int, marked: tuple[int, int] | None) -> Markup:
    """Lines that are anchors."""
    width = len(str(first + len(rows) - 1))
    low, high = marked or (0, 0)
    line = Markup('<span class="line{2}" id="L{0}"><a class="linenos" href="#L{0}">{1}</a>{3}</span>')
    return Markup("\n").join(
        line.format(number, f"{number:>{width}}", " marked" if low <= number <= high else "", row)
        for number, row in enumerate(rows, first)
    )


def _target(symbol: Symbol, first: int, last: int) -> str:
    is_here = first <= symbol.start_line <= last
    return f"#L{symbol.start_line}" if is_here else f"?lines={symbol.start_line}#L{symbol.start_line}"
