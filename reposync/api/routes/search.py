"""`GET /api/v1/search`, `/grep` and `/files/{name}/-/{path}`: as `reposync search`, `grep` and `cat`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from reposync.api.auth import actor_of
from reposync.api.etags import ETAG_ANSWERS, conditional, conditional_body
from reposync.api.operating import FilePath, add_operation, described
from reposync.api.routing import FILE, ApiParts, RepositoryName, Router
from reposync.operations import search
from reposync.operations.paths import PREFIX

_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def search_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"])
    for operation in (search.search, search.grep, search.evaluate):
        add_operation(routes, parts, operation)

    about = described(search.read)
    about["description"] = "`Accept: text/plain` returns the text alone."

    @routes.get(
        f"/files/{FILE}",
        response_model=search.FileLines,
        dependencies=parts.readers,
        responses={**ETAG_ANSWERS, 200: _TEXT},
        **about,
    )
    async def read_code(
        request: Request, name: RepositoryName, path: FilePath, lines: Annotated[search.Lines, Query()]
    ) -> Response:
        file = await search.read(parts.application(), actor_of(request), lines, name=name, path=path)
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
