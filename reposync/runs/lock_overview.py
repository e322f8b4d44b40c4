"""What guards which repository, told from Redis and the database together, and how a person takes a lock away."""

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

# No more runs than this are at work at a time.
_MAX_RUNNING = 1_000


class LockState(StrEnum):
    HELD = "held"
    """By the worker that executes the run."""
    STALE = "stale"
    """Its holder does not count any more: the next run of the repository replaces it."""
    FOREIGN = "foreign"
    """Written by another installation, or by no reposync: the next run waits until it is gone."""
    DATABASE = "database"
    """A run that is guarded by its row alone: without Redis, or as long as Redis is away."""


@dataclass(frozen=True, slots=True)
class LockOverview:
    """`repository`: None where the database does not know it. `holder`: the worker, or a foreign value as it is.
    `lease_until`: aware UTC, of the run that the holder executes; `lease_seconds`: what is left of it by the database's
    clock."""

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
    """What came of it. `released`: a lock was removed; `cancel_requested`: the run that held it was asked to end."""

    lock: LockOverview
    released: bool
    cancel_requested: bool

    def as_json(self) -> dict[str, Any]:
        return {**self.lock.as_json(), "released": self.released, "cancel_requested": self.cancel_requested}


async def lock_overviews(locks: RunLocks, repositories: Repositories, runs: Runs) -> list[LockOverview]:
    """Every lock, and every run at work that has none, by repository. Raises RedisUnavailable, StoreUnavailable."""
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
    """Take the lock of the repository `name` (or with that id) away from a holder that does not count any more; with
    `force` from any holder, and its run is asked to end. A run that is guarded by its row alone has no lock to remove.

    Raises LockNotFound where nothing guards the repository, LockHeld where somebody alive does and `force` is not
    given, RedisUnavailable, StoreUnavailable.
    """
    lock = _chosen(name, await lock_overviews(locks, repositories, runs))
    alive = lock.run_id is not None and lock.state in (LockState.HELD, LockState.DATABASE) and not lock.lease_is_over
    if alive and not force:
        raise LockHeld(
            f"{lock.holder} is at work on {name!r} in run {lock.run_id}.",
            remedy=Remedy(
                f"`reposync runs cancel {lock.run_id}` ends it and gives the lock back; --force does both at once.",
                f"`POST /api/v1/runs/{lock.run_id}/cancel` ends it and gives the lock back; `force=true` does both at "
                "once.",
            ),
        )
    if lock.state is LockState.FOREIGN and not force:
        raise LockHeld(
            f"The lock of {name!r} was not written by this installation: its run is not in this database.",
            remedy=Remedy(
                "Look for another reposync on the same Redis; if nobody works on it, remove the lock with --force.",
                "Look for another reposync on the same Redis; if nobody works on it, `force=true` removes the lock.",
            ),
        )
    if alive and lock.run_id is not None:
        # First: a run that goes on would take the lock again.
        await runs.request_cancel(lock.run_id, by=by)
    if lock.value is None:
        return LockRelease(lock, released=False, cancel_requested=alive)
    if not await locks.release(lock.repository_id, lock.value):
        raise LockHeld(
            f"The lock of {name!r} changed hands at this moment, and was left alone.",
            remedy=Remedy("`reposync locks list` shows who has it now.", "`GET /api/v1/locks` shows who has it now."),
        )
    return LockRelease(lock, released=True, cancel_requested=alive)


def _chosen(name: str, found: list[LockOverview]) -> LockOverview:
    """The lock itself before a run without one: both are there while a run is about to replace a dead one's lock."""
    mine = [each for each in found if name in (each.repository, each.repository_id)]
    if not mine:
        raise LockNotFound(
            f"The repository {name!r} has no lock.",
            remedy=Remedy(
                "`reposync locks list` shows those that there are.", "`GET /api/v1/locks` shows those that there are."
            ),
        )
    return min(mine, key=lambda each: each.value is None)


async def _run_of(record: LockRecord, running: Mapping[str, Run], runs: Runs) -> Run | None:
    """The run that the lock was taken for, if it is one of this database's."""
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
    """Bytes that are no text as escapes: JSON has no half surrogates."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
