"""The versions of each repository's index, the locks of running syncs, and the workers that execute them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from reposync.app.index_overview import (
    CollectionChange,
    IndexOverview,
    collection_changes,
    index_overview,
    index_overviews,
)
from reposync.errors import RedisUnavailable
from reposync.operations.core import Actor, Arguments, NoArguments, Rule, operation
from reposync.operations.fields import NamesArguments as NamesArguments
from reposync.operations.fields import Page, page_of_names
from reposync.runs.locks import Lock as Lock
from reposync.runs.locks import Release as Release
from reposync.runs.locks import lock_overviews, release_lock
from reposync.store.index_queries import version_summaries
from reposync.store.status import WAITING, RunStatus

if TYPE_CHECKING:
    from reposync.app.application import Application

LOCK_TIMEOUT_SECONDS = 10.0
MAX_RUNNING = 1_000
"""More runs than ever run at a time."""


class IndexPage(Page[IndexOverview]):
    """By name. `collections`: every configured collection, on every page. `next_cursor` is null on the last page."""

    collections: list[CollectionChange]


@operation("GET", "/index", NamesArguments, IndexPage, rule=Rule.READ)
async def indexes(app: Application, actor: Actor, asked: NamesArguments) -> IndexPage:
    """The versions of all indexes, and the progress of a change of the embedding model."""
    names, next_cursor = page_of_names([row.name for row in await app.repositories.states()], asked)
    items = await index_overviews(app, names) if names else []
    collections = collection_changes(app, await version_summaries(app.database), await app.manifests.counts())
    return IndexPage(items=items, collections=collections, next_cursor=next_cursor)


@operation("GET", "/repositories/{name}/index", NoArguments, IndexOverview, rule=Rule.READ)
async def repository_index(app: Application, actor: Actor, asked: NoArguments, *, name: str) -> IndexOverview:
    """The versions of a repository's index."""
    return await index_overview(app, name)


class Locks(BaseModel):
    """All locks, by repository."""

    items: list[Lock]


@operation("GET", "/locks", NoArguments, Locks, rule=Rule.READ)
async def locks(app: Application, actor: Actor, asked: NoArguments) -> Locks:
    """The locks of running syncs: the locks in Redis, and the running syncs without one."""
    async with _timeout():
        return Locks(items=await lock_overviews(app.locks, app.repositories, app.history))


class ReleaseOptions(Arguments):
    force: bool = Field(False, description="Whoever holds it.")


@operation("DELETE", "/locks/{repository}", ReleaseOptions, Release, rule=Rule.OPERATE)
async def release(app: Application, actor: Actor, asked: ReleaseOptions, *, repository: str) -> Release:
    """Release a lock whose holder is no longer valid. This is seldom needed: the next run replaces such a lock. With
    `force`, of any holder, and its run is cancelled. `repository`: its name, or its id if it has no name."""
    async with _timeout():
        return await release_lock(
            repository, app.locks, app.repositories, app.history, app.runs, force=asked.force, by=actor.name
        )


class WorkerRun(BaseModel):
    """A run that a worker executes. `started_at`: of this attempt."""

    id: str
    repository: str
    attempt: int
    started_at: datetime | None


class WorkerOverview(BaseModel):
    """A worker that claims runs. `host`: its machine or pod; `seen_at`: its last sign of life, at most 15 s ago;
    `clock_skew_seconds`: how far its machine's clock is ahead of the database's, null if it was not measured."""

    name: str
    host: str
    version: str
    started_at: datetime
    seen_at: datetime
    clock_skew_seconds: float | None
    runs: list[WorkerRun]


class WorkersOverview(BaseModel):
    """`running`, `waiting`: how many runs do; `oldest_seconds`: how long the one that waits longest has waited."""

    items: list[WorkerOverview]
    running: int
    waiting: int
    oldest_seconds: float


@operation("GET", "/workers", NoArguments, WorkersOverview, rule=Rule.READ_EVERYTHING)
async def workers(app: Application, actor: Actor, asked: NoArguments) -> WorkersOverview:
    """Who executes runs: the workers that are alive, the oldest first, each with its runs; and the queue."""
    alive, queue = await app.workers.alive(), await app.history.queue()
    executed = dict[str, list[WorkerRun]]()
    for run in await app.history.runs(status=RunStatus.RUNNING, limit=MAX_RUNNING):
        mine = WorkerRun(id=run.id, repository=run.repository, attempt=run.attempt, started_at=run.started_at)
        executed.setdefault(run.worker or "", []).append(mine)
    return WorkersOverview(
        items=[WorkerOverview(**dict(worker), runs=executed.get(worker.name, [])) for worker in alive],
        running=queue.counts.get(RunStatus.RUNNING, 0),
        waiting=sum(queue.counts.get(status, 0) for status in WAITING),
        oldest_seconds=queue.oldest_seconds,
    )


@contextlib.asynccontextmanager
async def _timeout() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_SECONDS):
            yield
    except TimeoutError as error:
        raise RedisUnavailable(f"Redis and the database did not respond within {LOCK_TIMEOUT_SECONDS:g} s.") from error
