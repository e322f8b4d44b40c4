"""`/api/v1/locks`: what guards the syncs that are at work, as `reposync locks`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from reposync.api.access import Role
from reposync.api.answers import CHANGING, errors
from reposync.api.models import Asked, NoFilters
from reposync.api.naming import NamedRoute
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.errors import LockHeld, LockNotFound, RedisUnavailable
from reposync.runs.lock_overview import LockState, lock_overviews, release_lock
from reposync.store.repository import MAX_NAME_CHARS

LONGEST_SECONDS = 10.0

_EXAMPLE: dict[str, Any] = {
    "repository": "payments-api",
    "repository_id": "2f1f8a64-6a0c-5d2e-9d57-1f0a5b1f8f2b",
    "state": "held",
    "holder": "reposync-7d9c5-x2x4k:1:5e0c",
    "pod": "reposync-7d9c5-x2x4k",
    "run_id": "0198b7c2-5f3e-7c1a-9d2b-3f6a1c5e8d70",
    "attempt": 1,
    "ttl_seconds": 27.4,
    "lease_until": "2026-03-01T12:00:15Z",
}


class ReleaseAsked(Asked):
    force: bool = Field(False, description="Whoever holds it.")


class Lock(BaseModel):
    """`state`: `held` by the worker that executes the run; `stale`: its holder does not count any more, and the next
    run replaces it; `foreign`: not written by this installation; `database`: the run's row guards it alone.
    `repository` is null where the database does not know it. `ttl_seconds`: until Redis drops the lock by itself."""

    repository: str | None
    repository_id: str
    state: LockState
    holder: str
    pod: str | None
    run_id: str | None
    attempt: int | None
    ttl_seconds: float | None
    lease_until: datetime | None

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})


class Locks(BaseModel):
    """By repository. All of them: `next_cursor` is always null."""

    items: list[Lock]
    next_cursor: None = None


class Release(Lock):
    """The lock as it was. `released`: it was removed from Redis; `cancel_requested`: its run was asked to end."""

    released: bool
    cancel_requested: bool

    model_config = ConfigDict(
        json_schema_extra={"example": {**_EXAMPLE, "state": "stale", "released": True, "cancel_requested": False}}
    )


def lock_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix="/api/v1", tags=["locks"], route_class=NamedRoute)

    @routes.get(
        "/locks",
        summary="What guards the syncs at work",
        description="The locks in Redis, and the runs at work that have none.",
        dependencies=[parts.access.requires(Role.READ)],
        responses=errors(RedisUnavailable),
    )
    async def list_locks(asked: Annotated[NoFilters, Query()]) -> Locks:
        app = parts.application()
        async with _bounded():
            found = await lock_overviews(app.locks, app.repositories, app.runs)
        return Locks(items=[Lock.model_validate(each.as_json()) for each in found])

    @routes.delete(
        "/locks/{repository:path}",
        summary="Take a lock away",
        description="From a holder that does not count any more. This is seldom needed: the next run replaces such a "
        "lock by itself. With `force` from any holder, and its run is asked to end.",
        dependencies=[parts.access.requires(Role.OPERATE)],
        responses=errors(LockNotFound, LockHeld, RedisUnavailable, *CHANGING),
    )
    async def delete_lock(
        request: Request,
        repository: Annotated[
            str, Path(min_length=1, max_length=MAX_NAME_CHARS, description="Its name, or its id where it has no name.")
        ],
        asked: Annotated[ReleaseAsked, Query()],
    ) -> Release:
        app = parts.application()
        async with _bounded():
            by = parts.access.name_of(request)
            done = await release_lock(repository, app.locks, app.repositories, app.runs, force=asked.force, by=by)
        return Release.model_validate(done.as_json())

    return routes


@contextlib.asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            yield
    except TimeoutError as error:
        raise RedisUnavailable(f"Redis and the database did not answer within {LONGEST_SECONDS:g} s.") from error
