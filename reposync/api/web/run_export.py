"""The filtered history as a file: `/runs.csv`, `/runs.json`."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from pydantic_core import to_json
from starlette.responses import StreamingResponse

from reposync.api.web.rendering import Page
from reposync.api.web.run_filters import read_query
from reposync.errors import RepositoryNotFound
from reposync.operations.core import read_arguments
from reposync.operations.fields import MAX_PAGE_ITEMS
from reposync.operations.runs import Run, RunFilters, RunPage, history

MAX_EXPORTED = 10_000
COLUMNS = (
    *("id", "repository", "status", "trigger", "asked_by", "queued_at", "started_at", "completed_at"),
    *("duration_seconds", "attempt", "worker", "commit_before", "commit_after", "commit_title", "commit_author"),
    *("files_added", "files_changed", "files_deleted", "files_skipped", "files_failed"),
    *("chunks_embedded", "chunks_reused", "error_code", "error_message"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


async def export_csv(page: Page) -> Response:
    first = await _first(page)

    async def lines() -> AsyncIterator[bytes]:
        yield _line(COLUMNS)
        async for run in _runs(page, first):
            document = run.model_dump(mode="json") | {"asked_by": ", ".join(run.asked_by)}
            yield _line([_cell(document[name]) for name in COLUMNS])

    return _file(lines(), "text/csv; charset=utf-8", "runs.csv")


async def export_json(page: Page) -> Response:
    """A list, in a document as those of the API."""
    first = await _first(page)

    async def text() -> AsyncIterator[bytes]:
        before = b'{"items": ['
        async for run in _runs(page, first):
            yield before + to_json(run)
            before = b",\n"
        yield (b"" if before.startswith(b",") else before) + b"]}\n"

    return _file(text(), "application/json", "runs.json")


def _file(content: AsyncIterator[bytes], media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(content, media_type=media_type, headers=headers)


async def _first(page: Page) -> RunPage:
    """Errors are reported before the file begins."""
    try:
        return await history(page.app, page.actor, _arguments(page, None))
    except RepositoryNotFound:
        return RunPage(items=[])


def _arguments(page: Page, cursor: str | None) -> RunFilters:
    conditions = read_query(page.query).conditions(page.app.now())
    return read_arguments(RunFilters, {**conditions, "limit": MAX_PAGE_ITEMS, "cursor": cursor})


async def _runs(page: Page, found: RunPage) -> AsyncIterator[Run]:
    """At most `MAX_EXPORTED`, in pages, so that memory does not grow with the history. `found`: the first page."""
    exported = 0
    while True:
        for run in found.items:
            yield run
        exported += len(found.items)
        if found.next_cursor is None or exported >= MAX_EXPORTED:
            return
        found = await history(page.app, page.actor, _arguments(page, found.next_cursor))


def _line(cells: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    """Names and messages come from strangers: a spreadsheet must not take one for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
