"""The page that searches the indexed code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from reposync.api.access import Role, Visitor
from reposync.api.parts import ApiParts
from reposync.api.routes.search import AT_ONCE, MAX_WAITING, Turnstile
from reposync.api.routing import Router
from reposync.api.web.renderer import Renderer
from reposync.api.web.rendering import highlighted
from reposync.app.application import Application
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.search.query import MAX_QUERY_CHARS

PAGE_HITS = 10
_ASKED = ("q", "repository", "path", "language")


def search_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router()
    reader = parts.access.page(Role.READ)
    turnstile = Turnstile(AT_ONCE, MAX_WAITING)

    @routes.get("/search")
    async def search(request: Request, visitor: Visitor = reader) -> Response:
        asked = {key: request.query_params.get(key, "").strip() or None for key in _ASKED}
        hits: list[dict[str, Any]] = []
        problem = None
        if asked["q"]:
            try:
                hits = await _hits(parts.application(), turnstile, asked["q"], asked)
            except StoreUnavailable:
                raise
            except RepoSyncError as error:
                # Beside the form: most of these are about what stands in it.
                problem = error.for_pages
        return renderer.page(
            request,
            "search.html",
            visitor,
            query=asked["q"],
            repository=asked["repository"],
            path=asked["path"],
            language=asked["language"],
            longest=MAX_QUERY_CHARS,
            hits=hits,
            problem=problem,
        )

    return routes


async def _hits(
    app: Application, turnstile: Turnstile, query: str, asked: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    found = await turnstile.search(
        lambda: app.search(
            query,
            repository=asked["repository"],
            path_glob=asked["path"],
            language=asked["language"],
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
            # Only what a browser may open: a link comes from what was configured, and is looked at all the same.
            "url": hit.url if hit.url and hit.url.startswith(("https://", "http://")) else None,
            "code": await asyncio.to_thread(highlighted, hit.text, hit.language, hit.start_line),
        }
        for hit in found
    ]
