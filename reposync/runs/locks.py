"""The second guard of a sync, and the locks as a person sees them. The first guard is the run's row in the database.

A lock is one Redis key a repository. Its value names the worker, pod first, and the attempt that holds it: a value is
never used twice, and the database can tell whether its holder is stale.
"""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from pydantic import BaseModel, Field

from reposync.errors import LockHeld, LockNotFound, Remedy, StoreUnavailable
from reposync.store.history import RunHistory
from reposync.store.repositories import Repositories
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunStatus
from reposync.words import escape_unprintable

LOCK_PREFIX = "reposync:lock:repository:"

# How long the database may take to say whether a holder is stale.
_JUDGEMENT_SECONDS = 5.0
# More runs than ever run at a time.
_MAX_RUNNING = 1_000
_TOKEN = re.compile(r"(?P<run_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(?P<attempt>[0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """One worker's attempt at a run."""

    worker: str
    run_id: str
    attempt: int

    @classmethod
    def of(cls, run: Run) -> LockHolder:
        return cls(run.worker or "", run.id, run.attempt)

    @classmethod
    def parse(cls, value: str) -> LockHolder | None:
        """None for a value that no reposync wrote."""
        # The last space: a pod's name may contain spaces.
        worker, _, token = value.rpartition(" ")
        found = _TOKEN.fullmatch(token)
        if found is None or not worker or not worker.isprintable():
            return None
        return cls(worker, found["run_id"], int(found["attempt"]))

    @property
    def pod(self) -> str:
        return self.worker.rsplit(":", 2)[0]

    @property
    def value(self) -> str:
        return f"{self.worker} {self.run_id}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A lock as stored in Redis. `ttl_seconds` None: it never expires."""

    repository_id: str
    value: str
    ttl_seconds: float | None

    @property
    def holder(self) -> LockHolder | None:
        """None if reposync did not write the value."""
        return LockHolder.parse(self.value)

    def __str__(self) -> str:
        if (holder := self.holder) is not None:
            by = f"{holder.worker} holds it for run {holder.run_id}"
        else:
            by = f"its key holds {escape_unprintable(self.value[:100])!r}, which reposync did not write"
        return by + (", without an expiry" if self.ttl_seconds is None else f", for {self.ttl_seconds:.0f} s more")


class LockGuard(Protocol):
    async def watch(self) -> None:
        """Keep the lock until cancelled. Raises LockLost if it cannot be kept: then the sync must end."""


class RunLocks:
    """Without Redis: only the database's claim guards. `RedisLocks` has locks."""

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[LockGuard, None]:
        """Hold the lock of `run`'s repository; this process has claimed the run. Entering raises LockHeld if a live
        worker holds it. Leaving releases the lock within a second, and raises nothing."""
        yield self

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def list(self) -> builtins.list[LockRecord]:
        """All locks, by repository id. Raises RedisUnavailable."""
        return []

    async def release(self, repository_id: str, value: str) -> bool:
        """Remove the lock if its value is exactly this; returns whether it was removed. Raises RedisUnavailable."""
        return False

    async def close(self) -> None:
        """Raises nothing."""


async def is_stale(history: RunHistory, holder: LockHolder) -> bool:
    """Whether a holder's run has ended or was taken over, so that its lock may be replaced. Raises nothing. A holder is
    respected if its run is unknown (a different installation shares the Redis) or if the database does not answer."""
    try:
        async with asyncio.timeout(_JUDGEMENT_SECONDS):
            run = (await history.by_ids([holder.run_id])).get(holder.run_id)
    except (StoreUnavailable, TimeoutError):
        return False
    return run is not None and not _holds(run, holder)


def _holds(run: Run, holder: LockHolder) -> bool:
    """Whether exactly this holder executes `run`."""
    return run.status is RunStatus.RUNNING and (run.worker, run.attempt) == (holder.worker, holder.attempt)


# Locks as a person sees them -----------------------------------------------------------------------------------------


class LockState(StrEnum):
    HELD = "held"
    STALE = "stale"
    FOREIGN = "foreign"
    DATABASE = "database"


class Lock(BaseModel):
    """`state`: `held` by the worker that executes the run; `stale`: its holder is no longer valid, and the next run
    replaces it; `foreign`: not written by this installation; `database`: only the run's row guards the repository.
    `repository` is null if the database does not know it. `ttl_seconds`: until Redis expires the lock."""

    repository: str | None
    repository_id: str
    state: LockState
    holder: str
    pod: str | None
    run_id: str | None
    attempt: int | None
    ttl_seconds: float | None
    lease_until: datetime | None
    # Not shown: the rest of the lease by the database's clock, and what Redis holds.
    lease_seconds: float | None = Field(None, exclude=True)
    record: LockRecord = Field(exclude=True)

    @property
    def shown_name(self) -> str:
        return self.repository or self.repository_id

    @property
    def lease_is_over(self) -> bool:
        return self.lease_seconds is not None and self.lease_seconds < 0


class Release(Lock):
    """The lock before its release. `released`: it was removed from Redis; `cancel_requested`: its run was cancelled."""

    released: bool
    cancel_requested: bool


async def lock_overviews(locks: RunLocks, repositories: Repositories, history: RunHistory) -> list[Lock]:
    """All locks, and running runs without a lock, by repository. Raises RedisUnavailable, StoreUnavailable."""
    records = await locks.list()
    running = {run.id: run for run in await history.runs(status=RunStatus.RUNNING, limit=_MAX_RUNNING)}
    names = await repositories.names_of({record.repository_id for record in records})
    holders = {record: record.holder.run_id for record in records if record.holder is not None}
    known = await history.by_ids(set(holders.values()) - running.keys()) | running
    now = history.now()
    found = [_shown(record, known.get(holders.get(record, "")), names, now) for record in records]
    locked = {each.run_id for each in found if each.state is LockState.HELD}
    for run in running.values():
        if run.id not in locked:
            claim = LockRecord(run.repository_id, LockHolder.of(run).value, None)
            found.append(_shown(claim, run, names, now, LockState.DATABASE))
    return sorted(found, key=lambda each: (each.repository is None, each.shown_name, each.state))


async def release_lock(
    name: str,
    locks: RunLocks,
    repositories: Repositories,
    history: RunHistory,
    runs: Runs,
    *,
    force: bool = False,
    by: str = "",
) -> Release:
    """Remove the lock of the repository `name` (a name or an id) if it is stale; with `force` any lock, and its run is
    requested to end. A run without Redis has no lock to remove.

    Raises LockNotFound if the repository has no lock, LockHeld if its holder is alive and `force` is False,
    RedisUnavailable, StoreUnavailable.
    """
    every = await lock_overviews(locks, repositories, history)
    mine = [each for each in every if name in (each.repository, each.repository_id)]
    look = Remedy("`reposync locks list` shows all locks.", "`GET /api/v1/locks` shows all locks.")
    if not mine:
        raise LockNotFound(f"The repository {name!r} has no lock.", remedy=look)
    # A lock rather than a run without one: both exist while a run is about to replace a stale lock.
    lock = min(mine, key=lambda each: each.state is LockState.DATABASE)
    alive = lock.run_id is not None and lock.state in (LockState.HELD, LockState.DATABASE) and not lock.lease_is_over
    if alive and not force:
        raise LockHeld(
            f"{lock.holder} works on {name!r} in run {lock.run_id}.",
            remedy=Remedy(
                f"`reposync runs cancel {lock.run_id}` ends it and releases the lock; --force does both.",
                f"`POST /api/v1/runs/{lock.run_id}/cancel` ends it and releases the lock; `force=true` does both.",
            ),
        )
    if lock.state is LockState.FOREIGN and not force:
        other = "Look for a different reposync on the same Redis; if there is none, "
        raise LockHeld(
            f"The lock of {name!r} was not written by this installation: its run is not in this database.",
            remedy=Remedy(f"{other}remove the lock with --force.", f"{other}`force=true` removes the lock."),
        )
    if alive and lock.run_id is not None:
        # First, because a run that continues would take the lock again.
        await runs.cancel(lock.run_id, by=by)
    is_in_redis = lock.state is not LockState.DATABASE
    if is_in_redis and not await locks.release(lock.record.repository_id, lock.record.value):
        changed = f"The lock of {name!r} got a different holder at this moment, and was not removed."
        raise LockHeld(changed, remedy=look)
    return Release(**dict(lock), released=is_in_redis, cancel_requested=alive)


def _legible(value: str) -> str:
    """Bytes that are no text as escapes: JSON and terminals have no surrogates."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _shown(
    record: LockRecord, run: Run | None, names: Mapping[str, str], now: datetime, state: LockState = LockState.FOREIGN
) -> Lock:
    holder = record.holder
    if holder is not None and run is not None and state is LockState.FOREIGN:
        state = LockState.HELD if _holds(run, holder) else LockState.STALE
    lease_until = run.lease_until if run and state in (LockState.HELD, LockState.DATABASE) else None
    return Lock(
        repository=names.get(record.repository_id) or (run.repository if run else None),
        repository_id=_legible(record.repository_id),
        state=state,
        holder=holder.worker if holder else _legible(record.value),
        pod=holder.pod if holder else None,
        run_id=holder.run_id if holder else None,
        attempt=holder.attempt if holder else None,
        ttl_seconds=record.ttl_seconds,
        lease_until=lease_until,
        lease_seconds=(lease_until - now).total_seconds() if lease_until else None,
        record=record,
    )
