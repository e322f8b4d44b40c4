"""`/api/v1/index` and `/api/v1/repositories/{name}/index`: the versions of indexes, as `reposync index`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from reposync.api.auth import Role
from reposync.api.dependencies import ApiParts
from reposync.api.documents import page_of_names
from reposync.api.errors import CHANGING, errors
from reposync.api.etags import ETAG_HEADER, NOT_MODIFIED, conditional
from reposync.api.models import MAX_PAGE_ITEMS, Cursor, NameFilter, NoFilters, Page, RequestModel
from reposync.api.routing import PREFIX, RepositoryName, Router
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


class IndexFilters(RequestModel):
    name: NameFilter | None = None
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: Cursor | None = None


class IndexPage(Page[IndexOverview]):
    """By name. `collections`: every configured collection, on every page; `leads_to` and `moved` are null if Qdrant
    does not respond. `next_cursor` is null on the last page."""

    collections: list[CollectionChange]


def index_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["index"])
    reads = [parts.access.requires(Role.READ)]
    operates = [parts.access.requires(Role.OPERATE)]

    @routes.get(
        "/index",
        summary="The versions of all indexes, and the progress of a change of the embedding model",
        dependencies=reads,
        response_model=IndexPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(UsageError)},
    )
    async def list_indexes(request: Request, filters: Annotated[IndexFilters, Query()]) -> Response:
        app = parts.application()
        states = await state_words(app.repositories)
        names, next_cursor = page_of_names(states, filters.limit, filters.cursor, filters.name)
        items = await index_overviews(app, names) if names else []
        collections = await with_names(app, await collection_changes(app))
        return conditional(request, IndexPage(items=items, collections=collections, next_cursor=next_cursor))

    @routes.get(
        "/repositories/{name:path}/index",
        summary="The versions of a repository's index",
        dependencies=reads,
        response_model=IndexOverview,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RepositoryNotFound)},
    )
    async def get_index(request: Request, name: RepositoryName, _: Annotated[NoFilters, Query()]) -> Response:
        return conditional(request, await index_overview(parts.application(), name))

    @routes.post(
        "/repositories/{name:path}/index/rollback",
        summary="Make the previous version live again",
        description="At once. The version that it replaces is not built again until the settings change or the index "
        "is resumed. Requires `index.keep_retired`, and that no run of the repository is in progress.",
        dependencies=operates,
        responses=errors(RepositoryNotFound, RunStateConflict, UsageError, *CHANGING),
    )
    async def roll_back_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        return await roll_back(parts.application(), name)

    @routes.post(
        "/repositories/{name:path}/index/pause",
        summary="Build no new version of a repository's index",
        description="Syncs continue: the live version follows its commits with the settings it was built with.",
        dependencies=operates,
        responses=errors(RepositoryNotFound, RepositoryInactive, *CHANGING),
    )
    async def pause_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        app = parts.application()
        await hold(app, [name])
        return await index_overview(app, name)

    @routes.post(
        "/repositories/{name:path}/index/resume",
        summary="Let the next sync build what is configured",
        dependencies=operates,
        responses=errors(RepositoryNotFound, RepositoryInactive, *CHANGING),
    )
    async def resume_index(name: RepositoryName, _: Annotated[NoFilters, Query()]) -> IndexOverview:
        app = parts.application()
        await release(app, [name])
        return await index_overview(app, name)

    return routes
