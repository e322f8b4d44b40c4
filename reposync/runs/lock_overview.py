"""All locks, from Redis and the database together, and the release of a lock by a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from reposync.errors import LockHeld, LockNotFound, Remedy, RunAmbiguous, RunNotFound
from reposync.runs.locks import LockRecord, RunLocks, holds
from reposync.store.repositories import Repositories
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunStatus

# More runs than ever run at a time.
_MAX_RUNNING = 1_000


class LockState(StrEnum):
    HELD = "held"
    """By the worker that executes the run."""
    STALE = "stale"
    """Its holder's run has ended or was taken over: the next run of the repository replaces it."""
    FOREIGN = "foreign"
    """Written by a different installation, or not by reposync: the next run waits until it is gone."""
    DATABASE = "database"
    """A run that only its row guards: without Redis, or while Redis is unavailable."""


@dataclass(frozen=True, slots=True)
class LockOverview:
    """`repository`: None if it is not in the database. `holder`: the worker, or the foreign value. `lease_until`: aware
    UTC, of the holder's run; `lease_seconds`: the rest of the lease by the database's clock."""

    repository: str | None
    repository_id: str
    state: LockState
    holder: str
    pod: str | None
    run_id: str | None
    attempt: int | None
    ttl_seconds: float | None
    lease_until: datetime | None
    lease_seconds: float | None
    value: str | None

    @property
    def shown_name(self) -> str:
        return self.repository or self.repository_id

    @property
    def lease_is_over(self) -> bool:
        return self.lease_seconds is not None and self.lease_seconds < 0

    def as_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "repository_id": _text(self.repository_id),
            "state": self.state,
            "holder": _text(self.holder),
            "pod": self.pod,
            "run_id": self.run_id,
            "attempt": self.attempt,
            "ttl_seconds": self.ttl_seconds,
            "lease_until": self.lease_until,
        }


@dataclass(frozen=True, slots=True)
class LockRelease:
    """`released`: a lock was removed; `cancel_requested`: its run was requested to end."""

    lock: LockOverview
    released: bool
    cancel_requested: bool

    def as_json(self) -> dict[str, Any]:
        return {**self.lock.as_json(), "released": self.released, "cancel_requested": self.cancel_requested}


async def lock_overviews(locks: RunLocks, repositories: Repositories, runs: Runs) -> list[LockOverview]:
    """All locks, and running runs without a lock, by repository. Raises RedisUnavailable, StoreUnavailable."""
    records = await locks.list()
    running = {run.id: run for run in await runs.history(status=RunStatus.RUNNING, limit=_MAX_RUNNING)}
    names = await repositories.names_of({record.repository_id for record in records})
    held = [(record, await _run_of(record, running, runs)) for record in records]
    now = runs.now()
    found = [_of_record(record, run, names, now) for record, run in held]
    locked = {each.run_id for each in found if each.state is LockState.HELD}
    found += [_of_run(run, now) for run in running.values() if run.id not in locked]
    return sorted(found, key=lambda each: (each.repository is None, each.shown_name, each.state))


async def release_lock(
    name: str, locks: RunLocks, repositories: Repositories, runs: Runs, *, force: bool = False, by: str = ""
) -> LockRelease:
    """Remove the lock of the repository `name` (a name or an id) if it is stale; with `force` any lock, and its run is
    requested to end. A run without Redis has no lock to remove.

    Raises LockNotFound if the repository has no lock, LockHeld if its holder is alive and `force` is False,
    RedisUnavailable, StoreUnavailable.
    """
    lock = _chosen(name, await lock_overviews(locks, repositories, runs))
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
        raise LockHeld(
            f"The lock of {name!r} was not written by this installation: its run is not in this database.",
            remedy=Remedy(
                "Look for a different reposync on the same Redis; if there is none, remove the lock with --force.",
                "Look for a different reposync on the same Redis; if there is none, `force=true` removes the lock.",
            ),
        )
    if alive and lock.run_id is not None:
        # First, because a run that continues would take the lock again.
        await runs.request_cancel(lock.run_id, by=by)
    if lock.value is None:
        return LockRelease(lock, released=False, cancel_requested=alive)
    if not await locks.release(lock.repository_id, lock.value):
        raise LockHeld(
            f"The lock of {name!r} got a different holder at this moment, and was not removed.",
            remedy=Remedy("`reposync locks list` shows its holder.", "`GET /api/v1/locks` shows its holder."),
        )
    return LockRelease(lock, released=True, cancel_requested=alive)


def _chosen(name: str, found: list[LockOverview]) -> LockOverview:
    """A lock rather than a run without one: both exist while a run is about to replace a stale lock."""
    mine = [each for each in found if name in (each.repository, each.repository_id)]
    if not mine:
        raise LockNotFound(
            f"The repository {name!r} has no lock.",
            remedy=Remedy("`reposync locks list` shows all locks.", "`GET /api/v1/locks` shows all locks."),
        )
    return min(mine, key=lambda each: each.value is None)


async def _run_of(record: LockRecord, running: Mapping[str, Run], runs: Runs) -> Run | None:
    """The holder's run, if this database has it."""
    if record.holder is None:
        return None
    if record.holder.run_id in running:
        return running[record.holder.run_id]
    try:
        return await runs.get(record.holder.run_id)
    except (RunNotFound, RunAmbiguous):
        return None


def _of_record(record: LockRecord, run: Run | None, names: Mapping[str, str], now: datetime) -> LockOverview:
    holder = record.holder
    if holder is None or run is None:
        state = LockState.FOREIGN
    elif holds(run, holder):
        state = LockState.HELD
    else:
        state = LockState.STALE
    return LockOverview(
        repository=names.get(record.repository_id) or (run.repository if run else None),
        repository_id=record.repository_id,
        state=state,
        holder=holder.worker if holder else record.value,
        pod=holder.pod if holder else None,
        run_id=holder.run_id if holder else None,
        attempt=holder.attempt if holder else None,
        ttl_seconds=record.ttl_seconds,
        lease_until=run.lease_until if run and state is LockState.HELD else None,
        lease_seconds=_left(run, now) if run and state is LockState.HELD else None,
        value=record.value,
    )


def _of_run(run: Run, now: datetime) -> LockOverview:
    worker = run.worker or ""
    return LockOverview(
        repository=run.repository,
        repository_id=run.repository_id,
        state=LockState.DATABASE,
        holder=worker,
        pod=worker.rsplit(":", 2)[0],
        run_id=run.id,
        attempt=run.attempt,
        ttl_seconds=None,
        lease_until=run.lease_until,
        lease_seconds=_left(run, now),
        value=None,
    )


def _left(run: Run, now: datetime) -> float | None:
    return None if run.lease_until is None else (run.lease_until - now).total_seconds()


def _text(value: str) -> str:
    """Bytes that are not text as escapes: JSON has no surrogates."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
