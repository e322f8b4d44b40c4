"""The page of an indexed file, `/files/{name}/-/{path}`: its lines with numbers, and its definitions. `?lines=10-20`
marks lines, `#L10` one line. A long file is shown in parts of `PAGE_LINES`: the one with the marked lines, or with the
line `from`. `?find=` marks what matches, as the search does; `?raw=1` is the text alone, `?part=1-20` are some lines
for a script. The address of a folder, with a slash at its end, leads to the page of its repository."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from urllib.parse import quote

from fastapi import Response
from markupsafe import Markup

from reposync.api.etags import CACHING
from reposync.api.web.found_files import Row, folders_of
from reposync.api.web.highlighting import Span, highlighted_lines, marked_lines
from reposync.api.web.rendering import Page, query
from reposync.errors import FileNotIndexed, UsageError
from reposync.operations.core import NOTHING
from reposync.operations.paths import path_of
from reposync.operations.repositories import get_repository
from reposync.operations.search import FileLines, Lines, read
from reposync.search.pattern import MAX_PATTERN_CHARS, Pattern
from reposync.symbol import Symbol
from reposync.words import escape_unprintable

PAGE_LINES = 1_000
MOST_LINES = 300
"""The longest part that a script adds."""
MAX_LINE_CHARS = 500
MAX_DEFINITIONS = 300
MAX_NESTING = 12
"""Deeper definitions are listed in the last level: a hostile file nests them without an end."""

_LINES = re.compile(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?")
_MOST_NAME_CHARS = 200
_RAW_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    **CACHING,
}


async def show_file(page: Page) -> Response:
    name = page.request.path_params["name"]
    path = page.request.path_params["path"]
    try:
        file = await read(page.app, page.actor, Lines(), name=name, path=path)
    except FileNotIndexed as error:
        if "text/html" not in page.request.headers.get("accept", ""):
            raise
        about = {"message": str(error), "code": error.code, "repository": name, "path": path}
        return page.show("no_file.html", status=error.status, **about, name=path.rpartition("/")[2])
    if "raw" in page.query:
        return Response(
            file.text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=_RAW_HEADERS
        )
    if (part := _read_lines(page.query.get("part", ""))) is not None:
        return await asyncio.to_thread(_show_lines, page, file, *part)
    return await asyncio.to_thread(_show_part, page, file)


async def show_folder(page: Page) -> Response:
    name, folder = page.request.path_params["name"], page.request.path_params["path"].strip("/")
    found = await get_repository(page.app, page.actor, NOTHING, name=name)
    there = f"{page.root}/repositories/{path_of(found.name)}{query({'folder': folder})}#files"
    return Response(status_code=303, headers={"Location": there})


def _show_lines(page: Page, file: FileLines, start: int, end: int) -> Response:
    """These lines alone, for a script that adds them to a page."""
    lines = _cut_lines(file)[: min(end, start + MOST_LINES - 1)]
    rows = highlighted_lines(lines, file.language, start - 1) if start <= len(lines) and not file.is_notebook else []
    return page.show("lines.html", file=file, rows=[Row(start + at, html, True) for at, html in enumerate(rows)])


def _cut_lines(file: FileLines) -> list[str]:
    """Its lines, without the ends of very long ones."""
    return [
        f"{each[:MAX_LINE_CHARS]} … {len(each):,} characters" if len(each) > MAX_LINE_CHARS else each
        for each in file.text.removesuffix("\n").split("\n")
    ]


def _read_lines(value: str) -> tuple[int, int] | None:
    match = _LINES.fullmatch(value)
    return None if match is None else (int(match[1]), max(int(match[1]), int(match[2] or match[1])))


# What is found in it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundInFile:
    """`spans`: by number of a line, the characters that match. `problem`: why nothing could be searched for."""

    text: str = ""
    mode: str = "exact"
    matches_case: bool = False
    spans: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def lines(self) -> list[int]:
        return list(self.spans)

    def after(self, line: int) -> int | None:
        """The next line that matches, from the first one again after the last."""
        lines = self.lines
        return lines[bisect_left(lines, line + 1) % len(lines)] if lines else None


def _find(page: Page, lines: Sequence[str]) -> FoundInFile:
    text = page.query.get("find", "")[:MAX_PATTERN_CHARS]
    mode, matches_case = page.query.get("mode", "exact"), bool(page.query.get("case"))
    if not text:
        return FoundInFile()
    try:
        pattern = Pattern(text, fixed=mode != "regex", ignore_case=not matches_case)
    except UsageError as error:
        return FoundInFile(text, mode, matches_case, problem=str(error))
    spans = {number: found for number, line in enumerate(lines, 1) if (found := pattern.spans(line))}
    return FoundInFile(text, mode, matches_case, spans)


# Its definitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition, with those in it."""

    symbol: Symbol
    inner: list[Definition] = field(default_factory=list)


def outline_of(symbols: Sequence[Symbol]) -> list[Definition]:
    """By line; each in the smallest one that is around it."""
    top: list[Definition] = []
    around: list[Definition] = []
    for symbol in symbols[:MAX_DEFINITIONS]:
        while around and not _is_in(symbol, around[-1].symbol):
            around.pop()
        made = Definition(symbol)
        (around[min(len(around), MAX_NESTING) - 1].inner if around else top).append(made)
        around.append(made)
    return top


def _is_in(symbol: Symbol, other: Symbol) -> bool:
    return other.start_line < symbol.start_line and symbol.end_line <= other.end_line


def _with_uses(row: Markup, symbol: Symbol, address: str) -> Markup:
    """The line of a definition, whose name leads to the lines that use it. One without a token of its own stays."""
    name = re.escape(escape(symbol.name, quote=False))
    words = rf"\b{re.escape(symbol.name)}\b"
    link = f"{address}?{_query_of_uses(words)}"
    title = escape(f"Where {escape_unprintable(symbol.name)} is used")
    html = re.sub(
        rf'(<span class="n\w?">)({name})(</span>)',
        lambda found: f'{found[1]}<a class="uses" href="{escape(link)}" title="{title}">{found[2]}</a>{found[3]}',
        str(row),
        count=1,
    )
    return Markup(html)  # noqa: S704 - the name is escaped, the address quoted


def _query_of_uses(words: str) -> str:
    return f"q={quote(words)}&mode=regex&case=1"


# The page -------------------------------------------------------------------------------------------------------------


def _show_part(page: Page, file: FileLines) -> Response:
    """The part of the file that has the marked lines. Rendering takes 40 ms."""
    lines = _cut_lines(file)
    found = FoundInFile() if file.is_notebook else _find(page, lines)
    marked = _read_lines(page.query.get("lines", ""))
    first_found = found.lines[0] if found.spans else 1
    start, _ = marked or _read_lines(page.query.get("from", "")) or (first_found, first_found)
    first = (min(start, len(lines)) - 1) // PAGE_LINES * PAGE_LINES
    last = min(first + PAGE_LINES, len(lines))
    spans = {number - first - 1: each for number, each in found.spans.items() if number > first}
    rows = marked_lines(lines[:last], file.language, first, spans)
    if not file.is_notebook:
        for symbol in file.symbols:
            if first < symbol.start_line <= last and len(symbol.name) <= _MOST_NAME_CHARS:
                at = symbol.start_line - first - 1
                rows[at] = _with_uses(rows[at], symbol, f"{page.root}/search")
    return page.show(
        "file.html",
        file=file,
        folders=folders_of(file.path),
        name=file.path.rpartition("/")[2],
        rows=rows,
        first=first + 1,
        last=last,
        lines=len(lines),
        page_lines=PAGE_LINES,
        marked=marked,
        found=found,
        next_found=found.after(marked[0]) if marked else found.after(0),
        outline=outline_of(file.symbols),
        max_definitions=MAX_DEFINITIONS,
    )
