"""`/api/v1/index` and `/api/v1/repositories/{name}/index`: the versions of indexes, as `reposync index`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from reposync.api.access import Role
from reposync.api.answers import CHANGING, errors
from reposync.api.conditional import ETAG_HEADER, NOT_MODIFIED, conditional
from reposync.api.cursors import MAX_CURSOR_CHARS, cursor_after, key_before
from reposync.api.models import MAX_PAGE_ITEMS, Asked, NoFilters, PlainText
from reposync.api.naming import NamedRoute, RepositoryName
from reposync.api.parts import ApiParts
from reposync.api.routes.runs import PREFIX
from reposync.api.routing import Router
from reposync.app.index_overview import (
    CollectionChange,
    IndexOverview,
    collection_changes,
    hold,
    index_overview,
    index_overviews,
    release,
    roll_back,
    with_names,
)
from reposync.catalog.overview import state_words
from reposync.errors import RepositoryInactive, RepositoryNotFound, RunStateConflict, UsageError

_VERSION: dict[str, Any] = {
    "number": 2,
    "state": "live",
    "commit": "9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b",
    "partial_commit": None,
    "provider": "openai",
    "model": "text-embedding-3-small",
    "dimension": 1536,
    "window_chars": None,
    "chunk_size": 7000,
    "chunk_overlap": 1500,
    "branch": "main",
    "collection": "code",
    "physical": "code--3f1c09a7be",
    "files": 1204,
    "skipped": 31,
    "failed": 0,
    "chunks": 3388,
    "created_at": "2026-03-01T11:50:00Z",
    "live_at": "2026-03-01T12:00:04Z",
    "retired_at": None,
    "removed_after": None,
}
_OF_REPOSITORY: dict[str, Any] = {
    "repository": "platform/payments-api",
    "collection": "code",
    "hold": None,
    "live": _VERSION,
    "building": {
        **_VERSION,
        "number": 3,
        "state": "building",
        "commit": None,
        "model": "text-embedding-3-large",
        "dimension": 3072,
        "physical": "code--8ad2710c55",
        "files": 311,
        "skipped": 8,
        "chunks": 902,
        "live_at": None,
    },
    "progress": {
        "files_done": 319,
        "files_total": 1235,
        "chunks_done": 902,
        "chunks_total": 3388,
        "run": "0198b7c2-5f3e-4c1a-9d2b-3f6a1c5e8d70",
        "phase": "indexing",
        "files_per_second": 38.8,
        "eta_seconds": 23.6,
    },
    "retired": [],
}
_COLLECTION: dict[str, Any] = {
    "collection": "code",
    "provider": "openai",
    "model": "text-embedding-3-large",
    "repositories": {"done": 7, "building": 2, "waiting": 1, "held": 0, "unknown": 0},
    "chunks": 30_211,
    "chunks_former": 11_904,
    "leads_to": "code--3f1c09a7be",
    "moved": False,
}


class IndexFilters(Asked):
    name: PlainText | None = Field(None, max_length=255, description="A part of the name, in upper or lower case.")
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: str | None = Field(None, max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the page before.")


class IndexPage(BaseModel):
    """By name. `collections`: every collection that repositories are configured to be in, on every page; `leads_to` and
    `moved` are null if Qdrant does not answer. `next_cursor` is null on the last page."""

    items: list[IndexOverview]
    collections: list[CollectionChange]
    next_cursor: str | None

    _EXAMPLE: ClassVar[dict[str, Any]] = {
        "items": [_OF_REPOSITORY],
        "collections": [_COLLECTION],
        "next_cursor": None,
    }
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})


def index_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["index"], route_class=NamedRoute)
    reads = [parts.access.requires(Role.READ)]
    operates = [parts.access.requires(Role.OPERATE)]
    example = {"content": {"application/json": {"example": _OF_REPOSITORY}}}

    @routes.get(
        "/index",
        summary="The versions of all indexes, and how far a change of the embedding model has got",
        dependencies=reads,
        response_model=IndexPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(UsageError)},
    )
    async def list_indexes(request: Request, filters: Annotated[IndexFilters, Query()]) -> Response:
        after = None if filters.cursor is None else key_before(filters.cursor)
        app = parts.application()
        fitting = [
            name
            for name in sorted(await state_words(app.repositories))
            if (after is None or name > after) and (filters.name is None or filters.name.casefold() in name.casefold())
        ]
        names = fitting[: filters.limit]
        items = await index_overviews(app, names) if names else []
        next_cursor = cursor_after(names[-1]) if len(fitting) > len(names) else None
        collections = await with_names(app, await collection_changes(app))
        return conditional(request, IndexPage(items=items, collections=collections, next_cursor=next_cursor))

    @routes.get(
        "/repositories/{name:path}/index",
        summary="The versions of a repository's index",
        dependencies=reads,
        response_model=IndexOverview,
        responses={200: {"headers": ETAG_HEADER, **example}, **NOT_MODIFIED, **errors(RepositoryNotFound)},
    )
    async def get_index(request: Request, name: RepositoryName, _: Annotated[NoFilters, Query()]) -> Response:
        return conditional(request, await index_overview(parts.application(), name))

    @routes.post(
        "/repositories/{name:path}/index/rollback",
        summary="Make the version live again that was live before",
        description="At once. The version that it replaces is not built again until the settings change or the index "
        "is resumed. Needs `index.keep_retired`, and no run of the repository under way.",
        dependencies=operates,
        responses={200: example, **errors(RepositoryNotFound, RunStateConflict, UsageError, *CHANGING)},
    )
    async def roll_back_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        return await roll_back(parts.application(), name)

    @routes.post(
        "/repositories/{name:path}/index/pause",
        summary="Build no new version of a repository's index",
        description="Syncs go on: the live version follows its commits with the settings that it was made with.",
        dependencies=operates,
        responses={200: example, **errors(RepositoryNotFound, RepositoryInactive, *CHANGING)},
    )
    async def pause_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        app = parts.application()
        await hold(app, [name])
        return await index_overview(app, name)

    @routes.post(
        "/repositories/{name:path}/index/resume",
        summary="Let the next sync build what is configured",
        dependencies=operates,
        responses={200: example, **errors(RepositoryNotFound, RepositoryInactive, *CHANGING)},
    )
    async def resume_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        app = parts.application()
        await release(app, [name])
        return await index_overview(app, name)

    return routes
