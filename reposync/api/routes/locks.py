"""`/api/v1/locks`: the locks of running syncs, as `reposync locks`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from reposync.api.auth import admitted
from reposync.api.models import NoQuery, Page, RequestModel
from reposync.api.routing import PREFIX, ApiParts, Router
from reposync.errors import RedisUnavailable
from reposync.runs.locks import Lock, Release, lock_overviews, release_lock
from reposync.store.repository import MAX_NAME_CHARS

TIMEOUT_SECONDS = 10.0


class ReleaseOptions(RequestModel):
    force: bool = Field(False, description="Whoever holds it.")


class Locks(Page[Lock]):
    """All locks, by repository: `next_cursor` is always null."""


def lock_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["locks"], dependencies=parts.readers)

    @routes.get(
        "/locks",
        summary="The locks of running syncs",
        description="The locks in Redis, and the running syncs without one.",
    )
    async def list_locks(_: NoQuery) -> Locks:
        app = parts.application()
        async with _timeout():
            return Locks(items=await lock_overviews(app.locks, app.repositories, app.history))

    @routes.delete(
        "/locks/{repository:path}",
        summary="Release a lock",
        description="Of a holder that is no longer valid. This is seldom needed: the next run replaces such a lock. "
        "With `force`, of any holder, and its run is cancelled.",
        dependencies=parts.operators,
    )
    async def delete_lock(
        request: Request,
        repository: Annotated[
            str, Path(min_length=1, max_length=MAX_NAME_CHARS, description="Its name, or its id if it has no name.")
        ],
        options: Annotated[ReleaseOptions, Query()],
    ) -> Release:
        app, by = parts.application(), admitted(request).name
        async with _timeout():
            places = app.locks, app.repositories, app.history, app.runs
            return await release_lock(repository, *places, force=options.force, by=by)

    return routes


@contextlib.asynccontextmanager
async def _timeout() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            yield
    except TimeoutError as error:
        raise RedisUnavailable(f"Redis and the database did not respond within {TIMEOUT_SECONDS:g} s.") from error
