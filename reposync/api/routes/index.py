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
    index_overview,
    index_overviews,
)
from reposync.store.index_queries import version_summaries


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
        states = {row.name: row.state for row in await app.repositories.states()}
        names, next_cursor = page_of_names(states, filters.limit, filters.cursor, filters.name)
        items = await index_overviews(app, names) if names else []
        collections = collection_changes(app, await version_summaries(app.database), await app.manifests.counts())
        return conditional(request, IndexPage(items=items, collections=collections, next_cursor=next_cursor))

    @routes.get(
        "/repositories/{name:path}/index",
        summary="The versions of a repository's index",
        response_model=IndexOverview,
        responses=ETAG_ANSWERS,
    )
    async def get_index(request: Request, name: RepositoryName, _: NoQuery) -> Response:
        return conditional(request, await index_overview(parts.application(), name))

    return routes
