"""`/api/v1/index` and `/api/v1/repositories/{name}/index`: the versions of indexes, as `reposync index`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from reposync.api.documents import page_of_names
from reposync.api.etags import ETAG_ANSWERS, conditional
from reposync.api.models import NamesQuery, NoQuery, Page
from reposync.api.routing import PREFIX, ApiParts, RepositoryName, Router
from reposync.app.index_overview import (
    CollectionChange,
    IndexOverview,
    collection_changes,
    hold,
    index_overview,
    index_overviews,
    release,
    roll_back,
)
from reposync.catalog.overview import state_words


class IndexPage(Page[IndexOverview]):
    """By name. `collections`: every configured collection, on every page. `next_cursor` is null on the last page."""

    collections: list[CollectionChange]


def index_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["index"], dependencies=parts.readers)

    @routes.get(
        "/index",
        summary="The versions of all indexes, and the progress of a change of the embedding model",
        response_model=IndexPage,
        responses=ETAG_ANSWERS,
    )
    async def list_indexes(request: Request, filters: Annotated[NamesQuery, Query()]) -> Response:
        app = parts.application()
        states = await state_words(app.repositories)
        names, next_cursor = page_of_names(states, filters.limit, filters.cursor, filters.name)
        items = await index_overviews(app, names) if names else []
        collections = await collection_changes(app)
        return conditional(request, IndexPage(items=items, collections=collections, next_cursor=next_cursor))

    @routes.get(
        "/repositories/{name:path}/index",
        summary="The versions of a repository's index",
        response_model=IndexOverview,
        responses=ETAG_ANSWERS,
    )
    async def get_index(request: Request, name: RepositoryName, _: NoQuery) -> Response:
        return conditional(request, await index_overview(parts.application(), name))

    @routes.post(
        "/repositories/{name:path}/index/rollback",
        summary="Make the previous version live again",
        description="At once. The version that it replaces is not built again until the settings change or the index "
        "is resumed. Requires `index.keep_retired`, and that no run of the repository is in progress.",
        dependencies=parts.operators,
    )
    async def roll_back_index(name: RepositoryName, _: NoQuery) -> IndexOverview:
        return await roll_back(parts.application(), name)

    @routes.post(
        "/repositories/{name:path}/index/pause",
        summary="Build no new version of a repository's index",
        description="Syncs continue: the live version follows its commits with the settings it was built with.",
        dependencies=parts.operators,
    )
    async def pause_index(name: RepositoryName, _: NoQuery) -> IndexOverview:
        await hold(parts.application(), [name])
        return await index_overview(parts.application(), name)

    @routes.post(
        "/repositories/{name:path}/index/resume",
        summary="Let the next sync build what is configured",
        dependencies=parts.operators,
    )
    async def resume_index(name: RepositoryName, _: NoQuery) -> IndexOverview:
        await release(parts.application(), [name])
        return await index_overview(parts.application(), name)

    return routes
