"""Ticks of schedules: each becomes one queued run at most, however many pods report it and however late."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.claims import CLAIM_ORDER, MAX_ATTEMPTS, new_run
from reposync.store.database import QUEUE, Database
from reposync.store.status import WAITING, RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, is_active, status_is

TICK_MISSED = "TICK_MISSED"
# Locked together for some milliseconds; small enough that a sync which publishes its commit hardly waits.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class ScheduledRepository:
    """`since`: no tick before it counts as missed."""

    id: str
    name: str
    cron_expression: str
    timezone: str
    since: datetime


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """How many ticks led to a new run, joined one that waited already, had been handled before (by another pod), or
    came too late. `handled` counts those of repositories that were paused in the meantime too."""

    queued: int = 0
    joined: int = 0
    handled: int = 0
    missed: int = 0

    def __add__(self, other: TickOutcome) -> TickOutcome:
        return TickOutcome(
            self.queued + other.queued,
            self.joined + other.joined,
            self.handled + other.handled,
            self.missed + other.missed,
        )


class Ticks:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def scheduled(self) -> list[ScheduledRepository]:
        """The active repositories that have a schedule."""
        columns = REPOSITORIES.c
        since = func.coalesce(columns.scheduled_since, columns.created_at, type_=columns.created_at.type)
        query = select(columns.id, columns.name, columns.cron_expression, columns.timezone, since).where(
            columns.is_active, columns.cron_expression.is_not(None)
        )
        async with self._database.read() as connection:
            return [ScheduledRepository(*row) for row in await connection.execute(query)]

    async def latest(self, identities: Collection[str]) -> dict[str, datetime]:
        """The latest tick in the log of each of these repositories that has one, by id."""
        found: dict[str, datetime] = {}
        for page in _pages(sorted(identities)):
            async with self._database.read() as connection:
                found |= await _latest(connection, page)
        return found

    async def enqueue(self, due: Mapping[str, datetime], *, grace_seconds: float, max_attempts: int) -> TickOutcome:
        """Queue a run for each tick (by repository id). A tick that is not later than the latest one in the log was
        handled; a run that waits takes the tick over; one that is older than the grace is noted as missed, and nothing
        runs for it."""
        outcome = TickOutcome()
        for page in _pages(sorted(due)):
            batch = {identity: due[identity] for identity in page}
            async with self._database.read() as connection:
                fresh = await _unhandled(connection, batch)
            if fresh:
                async with self._database.write() as connection:
                    outcome += await self._enqueue(connection, fresh, timedelta(seconds=grace_seconds), max_attempts)
            outcome += TickOutcome(handled=len(batch) - len(fresh))
        return outcome

    async def first_runs(self, identities: Collection[str], *, max_attempts: int = MAX_ATTEMPTS) -> int:
        """Queue a run of those active repositories that never had one: who registers a repository wants it searchable,
        and not only after its first tick. Returns how many."""
        queued = 0
        for page in _pages(sorted(identities)):
            async with self._database.read() as connection:
                candidates = await _never_ran(connection, page)
            if not candidates:
                continue
            async with self._database.write() as connection:
                names = await _lock_active(connection, candidates)
                now = await self._now(connection)
                rows = [
                    new_run(identity, names[identity], RunTrigger.SCHEDULE, now, max_attempts=max_attempts)
                    for identity in await _never_ran(connection, names)
                ]
                if rows:
                    await connection.execute(insert(RUNS), rows)
                    await self._database.announce(connection, QUEUE)
                queued += len(rows)
        return queued

    async def _enqueue(
        self, connection: AsyncConnection, due: Mapping[str, datetime], grace: timedelta, max_attempts: int
    ) -> TickOutcome:
        names = await _lock_active(connection, sorted(due))
        fresh = await _unhandled(connection, {key: tick for key, tick in due.items() if key in names})
        waiting = await _waiting(connection, fresh)
        now = await self._now(connection)
        rows, missed = [], 0
        for identity, tick in fresh.items():
            if identity in waiting:
                continue
            row = new_run(identity, names[identity], RunTrigger.SCHEDULE, now, max_attempts=max_attempts)
            late = now - tick > grace
            rows.append(row | {"scheduled_for": tick} | (_missed(tick, now, grace) if late else _NOT_MISSED))
            missed += late
        if joined := [
            {"run": waiting[identity], "tick": tick} for identity, tick in fresh.items() if identity in waiting
        ]:
            taken = update(RUNS).where(RUNS.c.id == bindparam("run")).values(scheduled_for=bindparam("tick"))
            await connection.execute(taken, joined)
        if rows:
            await connection.execute(self._database.insert(RUNS).on_conflict_do_nothing(), rows)
        if len(rows) > missed:
            await self._database.announce(connection, QUEUE)
        return TickOutcome(len(rows) - missed, len(joined), len(due) - len(fresh), missed)

    async def _now(self, connection: AsyncConnection) -> datetime:
        return (await connection.execute(select(self._database.moment()))).scalar_one()


_NOT_MISSED: dict[str, Any] = {"completed_at": None, "error_code": None, "error_message": None}


def _missed(tick: datetime, now: datetime, grace: timedelta) -> dict[str, Any]:
    late = timedelta(seconds=int((now - tick).total_seconds()))
    return {
        "status": RunStatus.CANCELLED,
        "completed_at": now,
        "error_code": TICK_MISSED,
        "error_message": (
            f"The tick of {tick:%Y-%m-%d %H:%M:%S} UTC came to be noticed {late} late, which is more than the grace of "
            f"{int(grace.total_seconds())} s: no scheduler ran, or the repository was paused. The next tick will run."
        ),
    }


async def _lock_active(connection: AsyncConnection, identities: Collection[str]) -> dict[str, str]:
    """Names of those that are active, by id; always locked in the same order, so that two pods wait and do not
    deadlock."""
    query = select(REPOSITORIES.c.id, REPOSITORIES.c.name).where(
        REPOSITORIES.c.id.in_(identities), REPOSITORIES.c.is_active
    )
    rows = await connection.execute(query.order_by(REPOSITORIES.c.id).with_for_update(key_share=True))
    return {row.id: row.name for row in rows}


async def _latest(connection: AsyncConnection, identities: Collection[str]) -> dict[str, datetime]:
    # One probe of an index a repository; grouping would read their whole history.
    newest = select(func.max(RUNS.c.scheduled_for)).where(RUNS.c.repository_id == REPOSITORIES.c.id).scalar_subquery()
    query = select(REPOSITORIES.c.id, newest).where(REPOSITORIES.c.id.in_(identities))
    return {row[0]: row[1] for row in await connection.execute(query) if row[1] is not None}


async def _unhandled(connection: AsyncConnection, due: Mapping[str, datetime]) -> dict[str, datetime]:
    latest = await _latest(connection, due) if due else {}
    return {key: tick for key, tick in due.items() if key not in latest or latest[key] < tick}


async def _never_ran(connection: AsyncConnection, identities: Collection[str]) -> list[str]:
    """Their runs may be gone from the log by now, and the log may have runs of one that was removed and came back. What
    was cancelled before it began does not count, unless a person did it."""
    ran = exists().where(
        RUNS.c.repository_id == REPOSITORIES.c.id,
        RUNS.c.queued_at >= REPOSITORIES.c.created_at,
        or_(RUNS.c.attempt > 0, is_active(), RUNS.c.cancel_requested),
    )
    query = select(REPOSITORIES.c.id).where(
        REPOSITORIES.c.id.in_(identities), REPOSITORIES.c.last_sync_at.is_(None), ~ran
    )
    return list(await connection.scalars(query.order_by(REPOSITORIES.c.id)))


async def _waiting(connection: AsyncConnection, identities: Collection[str]) -> dict[str, str]:
    """The run of each repository that is claimed next, by repository id."""
    query = select(RUNS.c.repository_id, RUNS.c.id).where(
        RUNS.c.repository_id.in_(identities), is_active(), status_is(*WAITING)
    )
    found: dict[str, str] = {}
    for row in await connection.execute(query.order_by(*CLAIM_ORDER).with_for_update()):
        found.setdefault(row.repository_id, row.id)
    return found


def _pages(identities: list[str]) -> list[list[str]]:
    return [identities[start : start + _BATCH] for start in range(0, len(identities), _BATCH)]
