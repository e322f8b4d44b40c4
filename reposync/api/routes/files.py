"""`GET /api/v1/files/{name}/-/{path}`: as `reposync cat`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from reposync.api.etags import ETAG_ANSWERS, conditional, conditional_body
from reposync.api.models import PlainText, RequestModel
from reposync.api.routes.search import MAX_PATH_CHARS
from reposync.api.routing import FILE, PREFIX, ApiParts, RepositoryName, Router
from reposync.search.reading import FileText, read_file

MAX_LINE = 1_000_000_000

FilePath = Annotated[
    PlainText,
    Path(
        min_length=1, max_length=MAX_PATH_CHARS, description="From the root of the repository.", examples=["src/app.py"]
    ),
]


class LinesQuery(RequestModel):
    start: int | None = Field(None, ge=1, le=MAX_LINE, description="The first line.", examples=[10])
    end: int | None = Field(
        None, ge=1, le=MAX_LINE, description="The last line; the file's last one if that comes first.", examples=[40]
    )


def file_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"])
    of_text = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @routes.get(
        f"/files/{FILE}",
        summary="The indexed text of a file, or of some of its lines",
        description="Of the commit that searches answer from. `Accept: text/plain` returns the text alone.",
        response_model=FileText,
        dependencies=parts.readers,
        responses={**ETAG_ANSWERS, 200: of_text},
    )
    async def read_code(
        request: Request, name: RepositoryName, path: FilePath, lines: Annotated[LinesQuery, Query()]
    ) -> Response:
        file = await read_file(parts.application(), name, path, lines.start, lines.end)
        response = (
            conditional_body(request, file.text.encode(), "text/plain; charset=utf-8")
            if _wants_text(request)
            else conditional(request, file)
        )
        response.headers["Vary"] += ", Accept"
        return response

    return routes


def _wants_text(request: Request) -> bool:
    kinds = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    return "text/plain" in kinds and "application/json" not in kinds
