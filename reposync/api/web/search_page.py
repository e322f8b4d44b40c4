"""The page that searches the indexed code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.api.auth import Principal, Role
from reposync.api.dependencies import ApiParts
from reposync.api.routes.search import MAX_CONCURRENT, MAX_WAITING, ConcurrencyLimit
from reposync.api.routing import Router
from reposync.api.web.rendering import Renderer, highlighted
from reposync.app.application import Application
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.search.searching import MAX_QUERY_CHARS

PAGE_HITS = 10
_FIELDS = ("q", "repository", "path", "language")


def search_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router()
    reader = parts.access.page(Role.READ)
    searches = ConcurrencyLimit(MAX_CONCURRENT, MAX_WAITING)

    @routes.get("/search")
    async def search(request: Request, principal: Principal = reader) -> Response:
        given = {key: request.query_params.get(key, "").strip() or None for key in _FIELDS}
        hits: list[dict[str, Any]] = []
        problem = None
        if given["q"]:
            try:
                hits = await _hits(parts.application(), searches, given["q"], given)
            except StoreUnavailable:
                raise
            except RepoSyncError as error:
                # Shown with the form: most of these are about its fields.
                problem = error.for_pages
        return renderer.page(
            request,
            "search.html",
            principal,
            query=given["q"],
            repository=given["repository"],
            path=given["path"],
            language=given["language"],
            longest=MAX_QUERY_CHARS,
            hits=hits,
            problem=problem,
        )

    return routes


async def _hits(
    app: Application, searches: ConcurrencyLimit, query: str, given: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    found = await searches.search(
        lambda: app.searching.search(
            query,
            repository=given["repository"],
            path_glob=given["path"],
            language=given["language"],
            limit=PAGE_HITS,
        )
    )
    return [
        {
            "repository": hit.repository,
            "path": hit.path,
            "start_line": hit.start_line,
            "end_line": hit.end_line,
            "language": hit.language,
            "score": hit.score,
            "outdated": hit.outdated,
            # Links come from the configuration; a browser must not open anything but a web page.
            "url": hit.url if hit.url and hit.url.startswith(("https://", "http://")) else None,
            "code": await asyncio.to_thread(highlighted, hit.text, hit.language, hit.start_line),
        }
        for hit in found
    ]
