"""The page of an indexed file, `/files/{name}/-/{path}`: its lines with numbers, and its definitions.

`?lines=10-20` marks lines, `#L10` one line. A long file is shown in parts of `PAGE_LINES`: the one with the marked
lines, or with the line `from`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from fastapi import Response
from markupsafe import Markup

from reposync.api.web.highlighting import highlighted_lines
from reposync.api.web.rendering import Page, web_link
from reposync.search.reading import FileText, read_file
from reposync.symbol import Symbol
from reposync.vectors.overlaps import url_of_lines
from reposync.words import file_address

PAGE_LINES = 1_000
MAX_LINE_CHARS = 500
MAX_DEFINITIONS = 300

_LINES = re.compile(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?")


async def show_file(page: Page) -> Response:
    name = page.request.path_params["name"]
    path = page.request.path_params["path"]
    text = await read_file(page.app, name, path)
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


def _part(file: FileText, start: int, marked: tuple[int, int] | None) -> dict[str, Any]:
    """What the page shows of the file: the part that has the line `start`."""
    lines = file.text.removesuffix("\n").split("\n")
    first = (min(start, len(lines)) - 1) // PAGE_LINES * PAGE_LINES
    shown = lines[first : first + PAGE_LINES]
    cut = [
        f"{each[:MAX_LINE_CHARS]} … {len(each):,} characters" if len(each) > MAX_LINE_CHARS else each for each in shown
    ]
    rows = highlighted_lines(cut, file.language)
    last = first + len(rows)
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
