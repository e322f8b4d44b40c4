"""The second guard of a sync, as a person sees it: a Redis key a repository. The first guard is the run's row in the
database. `redis_locks` takes and keeps the locks.

The value of a lock names the worker, pod first, and the attempt that holds it: a value is never used twice, and the
database can tell whether its holder is stale.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from pydantic import BaseModel, Field

from reposync.errors import LockHeld, LockNotFound
from reposync.next_steps import CancelRun, ListLocks, ReleaseLock
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

    value: str
    ttl_seconds: float | None


class StoredLocks(Protocol):
    """`RedisLocks`, whose import takes 0.1 s."""

    async def read(self, repository_ids: Collection[str]) -> dict[str, LockRecord]: ...

    async def release(self, repository_id: str, value: str | None) -> bool: ...


class LockState(StrEnum):
    HELD = "held"
    STALE = "stale"
    FOREIGN = "foreign"
    DATABASE = "database"


class Lock(BaseModel):
    """`state`: `held` by the worker that executes the run; `stale`: its holder is no longer valid, and the next run
    replaces it; `foreign`: not written by this installation; `database`: only the run's row guards the repository.
    `ttl_seconds`: until Redis expires the lock."""

    repository: str
    repository_id: str
    state: LockState
    holder: str
    pod: str | None
    run_id: str | None
    attempt: int | None
    ttl_seconds: float | None
    lease_until: datetime | None
    # Not shown: what Redis holds.
    value: str = Field(default="", exclude=True)


class Release(Lock):
    """The lock before its release. `released`: it was removed from Redis; `cancel_requested`: its run was cancelled."""

    released: bool
    cancel_requested: bool


async def lock_overviews(locks: StoredLocks | None, repositories: Repositories, history: RunHistory) -> list[Lock]:
    """The locks of all repositories, and running runs without a lock, by repository. Raises RedisUnavailable,
    StoreUnavailable."""
    running = {run.repository_id: run for run in await history.runs(status=RunStatus.RUNNING, limit=_MAX_RUNNING)}
    names = {row.id: row.name for row in await repositories.states()}
    names |= {run.repository_id: run.repository for run in running.values()}
    records = await locks.read(names) if locks is not None else {}
    holders = {identity: LockHolder.parse(record.value) for identity, record in records.items()}
    known = await history.by_ids({holder.run_id for holder in holders.values() if holder is not None})
    now = history.now()
    shown = []
    for identity, name in sorted(names.items(), key=lambda item: item[1]):
        run, record, holder = running.get(identity), records.get(identity), holders.get(identity)
        if record is not None:
            state = LockState.FOREIGN if holder is None or holder.run_id not in known else LockState.STALE
        elif run is not None:
            record, holder, state = LockRecord("", None), LockHolder.of(run), LockState.DATABASE
        else:
            continue
        lease_until = run.lease_until if run is not None and holder == LockHolder.of(run) else None
        if state is LockState.STALE and lease_until is not None and lease_until > now:
            state = LockState.HELD
        lock = Lock(
            repository=name,
            repository_id=identity,
            state=state,
            holder=holder.worker if holder is not None else record.value,
            pod=holder.pod if holder is not None else None,
            run_id=holder.run_id if holder is not None else None,
            attempt=holder.attempt if holder is not None else None,
            ttl_seconds=record.ttl_seconds,
            lease_until=lease_until,
            value=record.value,
        )
        shown.append(lock)
    return shown


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
    shown = await lock_overviews(locks, repositories, history)
    lock = next((lock for lock in shown if name in (lock.repository, lock.repository_id)), None)
    if lock is None:
        raise LockNotFound(f"The repository {name!r} has no lock.", next_steps=[ListLocks()])
    if lock.state is LockState.FOREIGN and not force:
        raise LockHeld(
            f"The lock of {name!r} was not written by this installation: its run is not in this database.",
            remedy="Look for a different reposync on the same Redis; if there is none, remove the lock.",
            next_steps=[ReleaseLock(lock.repository)],
        )
    is_valid = lock.state in (LockState.HELD, LockState.DATABASE)
    if is_valid and not force:
        raise LockHeld(
            f"{lock.holder} works on {name!r} in run {lock.run_id}.",
            next_steps=[CancelRun(lock.run_id)] if lock.run_id is not None else (),
        )
    if is_valid and lock.run_id is not None:
        # First, because a run that continues would take the lock again.
        await runs.cancel(lock.run_id, by=by)
    released = locks is not None and await locks.release(lock.repository_id, None if force else lock.value)
    return Release(**dict(lock), released=released, cancel_requested=is_valid)
