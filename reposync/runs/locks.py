"""The second guard of a sync, as a person sees it: a Redis key a repository. The first guard is the run's row in the
database. `redis_locks` takes and keeps the locks.

The value of a lock names the worker, pod first, and the attempt that holds it: a value is never used twice, and the
database can tell whether its holder is stale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from pydantic import BaseModel, Field

from reposync.errors import LockHeld, LockNotFound, Remedy
from reposync.store.history import RunHistory
from reposync.store.repositories import Repositories
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunStatus

LOCK_PREFIX = "reposync:lock:repository:"

# More runs than ever run at a time.
_MAX_RUNNING = 1_000
# A pod's name may contain spaces.
_VALUE = re.compile(r"(.+) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([0-9]{1,9})")


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
        match = _VALUE.fullmatch(value)
        return None if match is None else cls(match[1], match[2], int(match[3]))

    @property
    def pod(self) -> str:
        return self.worker.rsplit(":", 2)[0]

    @property
    def value(self) -> str:
        return f"{self.worker} {self.run_id}:{self.attempt}"

    def executes(self, run: Run | None) -> bool:
        """False if the run has ended, or if a different attempt has taken it over."""
        return run is not None and run.status is RunStatus.RUNNING and LockHolder.of(run) == self


class LockRecord(NamedTuple):
    """A lock as stored in Redis. `ttl_seconds` None: it never expires."""

    repository_id: str
    value: str
    ttl_seconds: float | None = None


class StoredLocks(Protocol):
    """`RedisLocks`, whose import takes 0.1 s."""

    async def list(self) -> list[LockRecord]: ...

    async def release(self, repository_id: str, value: str | None) -> bool: ...


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
    # Not shown: what Redis holds.
    value: str = Field(exclude=True)

    @property
    def shown_name(self) -> str:
        return self.repository or self.repository_id


class Release(Lock):
    """The lock before its release. `released`: it was removed from Redis; `cancel_requested`: its run was cancelled."""

    released: bool
    cancel_requested: bool


async def lock_overviews(locks: StoredLocks | None, repositories: Repositories, history: RunHistory) -> list[Lock]:
    """All locks, and running runs without a lock, by repository. Raises RedisUnavailable, StoreUnavailable."""
    records = await locks.list() if locks is not None else []
    running = {run.id: run for run in await history.runs(status=RunStatus.RUNNING, limit=_MAX_RUNNING)}
    names = await repositories.names_of({record.repository_id for record in records})
    holders = [holder for record in records if (holder := LockHolder.parse(record.value)) is not None]
    runs = await history.by_ids({holder.run_id for holder in holders} - running.keys()) | running
    locked = {holder.run_id for holder in holders if holder.executes(runs.get(holder.run_id))}
    now = history.now()
    shown = [_lock(record, LockState.HELD, runs, names, now) for record in records]
    for run in running.values():
        if run.id not in locked:
            claim = LockRecord(run.repository_id, LockHolder.of(run).value)
            shown.append(_lock(claim, LockState.DATABASE, runs, names, now))
    return sorted(shown, key=lambda lock: (lock.repository is None, lock.shown_name, lock.state))


def _lock(
    record: LockRecord, valid: LockState, runs: Mapping[str, Run], names: Mapping[str, str], now: datetime
) -> Lock:
    """`valid`: its state if its holder executes its run, within its lease."""
    holder = LockHolder.parse(record.value)
    run = runs.get(holder.run_id) if holder is not None else None
    state, lease_until = LockState.FOREIGN, None
    if holder is not None and run is not None:
        lease_until = run.lease_until if holder.executes(run) else None
        state = valid if lease_until is not None and lease_until > now else LockState.STALE
    return Lock(
        repository=names.get(record.repository_id) or (run.repository if run is not None else None),
        repository_id=record.repository_id,
        state=state,
        holder=holder.worker if holder is not None else record.value,
        pod=holder.pod if holder is not None else None,
        run_id=holder.run_id if holder is not None else None,
        attempt=holder.attempt if holder is not None else None,
        ttl_seconds=record.ttl_seconds,
        lease_until=lease_until,
        value=record.value,
    )


async def release_lock(
    name: str,
    locks: StoredLocks | None,
    repositories: Repositories,
    history: RunHistory,
    runs: Runs,
    *,
    force: bool = False,
    by: str = "",
) -> Release:
    """Remove the lock of the repository `name` (a name or an id) if it is stale; with `force` any lock, and its run is
    requested to end. A run without Redis has no lock to remove.

    Raises LockNotFound if the repository has no lock, LockHeld if it is not stale and `force` is False,
    RedisUnavailable, StoreUnavailable.
    """
    found = [
        lock
        for lock in await lock_overviews(locks, repositories, history)
        if name in (lock.repository, lock.repository_id)
    ]
    if not found:
        look = Remedy("`reposync locks list` shows all locks.", "`GET /api/v1/locks` shows all locks.")
        raise LockNotFound(f"The repository {name!r} has no lock.", remedy=look)
    # A lock rather than a run without one: both exist while a run is about to replace a stale lock.
    lock = min(found, key=lambda lock: lock.run_id is not None and lock.ttl_seconds is None)
    if lock.state is LockState.FOREIGN and not force:
        other = "Look for a different reposync on the same Redis; if there is none, "
        raise LockHeld(
            f"The lock of {name!r} was not written by this installation: its run is not in this database.",
            remedy=Remedy(f"{other}remove the lock with --force.", f"{other}`force=true` removes the lock."),
        )
    is_valid = lock.state in (LockState.HELD, LockState.DATABASE)
    if is_valid and not force:
        raise LockHeld(
            f"{lock.holder} works on {name!r} in run {lock.run_id}.",
            remedy=Remedy(
                f"`reposync runs cancel {lock.run_id}` ends it and releases the lock; --force does both.",
                f"`POST /api/v1/runs/{lock.run_id}/cancel` ends it and releases the lock; `force=true` does both.",
            ),
        )
    if is_valid and lock.run_id is not None:
        # First, because a run that continues would take the lock again.
        await runs.cancel(lock.run_id, by=by)
    released = locks is not None and await locks.release(lock.repository_id, None if force else lock.value)
    return Release(**dict(lock), released=released, cancel_requested=is_valid)
