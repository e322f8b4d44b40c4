"""Schedules to queued runs. `next_due_at` of a repository is when its next run is due, by the database's clock.

What is due is taken in one transaction: `next_due_at` moves on and the runs are queued, so that a tick leads to one
run, however many pods look at it and however late. `last_tick_at` is when the schedule was last looked at; all ticks
until then are settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, bindparam, exists, or_, select, update

from reposync.config.schedule import Schedule, ScheduleError
from reposync.errors import StatementRefused, StoreUnavailable
from reposync.store.database import Connection, Database, Stored
from reposync.store.database_clock import AHEAD_SECONDS, DatabaseClock
from reposync.store.repositories import lock_repositories
from reposync.store.run import MAX_ATTEMPTS, Ask, MissedTick
from reposync.store.run_state import queue_runs
from reposync.store.status import WAITING, RunTrigger
from reposync.store.tables import MISSED_TICKS, REPOSITORIES, RUNS, is_active, status_is
from reposync.supervision import log_defect

log = logging.getLogger(__name__)

# Locked together, by a fixed number of statements; small enough that a sync which publishes its commit hardly waits.
_BATCH = 200

_ROW = REPOSITORIES.c
_IS_SCHEDULED = and_(_ROW.is_active, _ROW.cron_expression.is_not(None))
# What a turn is decided by: if one of these differs by now, a different pod or a person was faster.
_DECIDED_BY = (_ROW.id, _ROW.name, _ROW.cron_expression, _ROW.timezone, _ROW.next_due_at, _ROW.last_tick_at)


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """How many ticks queued a new run, joined a waiting one, came too late, or failed: the log has the defect.
    `first_runs`: how many new repositories were queued before their first tick."""

    queued: int = 0
    joined: int = 0
    missed: int = 0
    failed: int = 0
    first_runs: int = 0

    def __add__(self, other: TickOutcome) -> TickOutcome:
        return TickOutcome(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class _Due:
    """A repository whose `next_due_at` has come."""

    row: Row[Any]
    tick: datetime | None
    """The latest one that is not settled; None if only `next_due_at` has to be set."""
    next_due_at: datetime


@dataclass(frozen=True, slots=True)
class _Turn:
    now: datetime
    grace: timedelta
    max_attempts: int


class Ticks(Stored):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._unreadable: set[tuple[str, str]] = set()

    @property
    def clock(self) -> DatabaseClock:
        """The clock that decides what is due."""
        return self._database.clock

    async def take(self, *, grace_seconds: float, max_attempts: int = MAX_ATTEMPTS) -> TickOutcome:
        """Request a run of each repository that is due. Of several ticks since its last turn, the latest counts. If
        that is older than the grace, it is recorded as missed, without a run. A waiting run takes it over. A new
        repository is due at once, and has a run without a tick: it should be searchable before its first one."""
        outcome, after = TickOutcome(), ""
        # An expression: SQLite would read all repositories in the order of their ids, to save sorting those few.
        identity = _ROW.id.concat("")
        due = select(*_DECIDED_BY).where(_IS_SCHEDULED, _ROW.next_due_at <= self._database.moment())
        while True:
            async with self._database.read() as connection:
                rows = await connection.rows(due.where(identity > after).order_by(identity).limit(_BATCH))
                if not rows:
                    return outcome
                turn = _Turn(await connection.now(), timedelta(seconds=grace_seconds), max_attempts)
            after = rows[-1].id
            outcome += await self._settle(await self._due(rows, turn.now), turn)

    async def reschedule(self) -> None:
        """Schedules that were looked at in the future are due at once, which sets `next_due_at` anew: the clock was set
        back since."""
        ahead = and_(_IS_SCHEDULED, _ROW.last_tick_at > self._database.moment(AHEAD_SECONDS))
        # Locked in the order of all transactions, see `lock_repositories`.
        locked = select(_ROW.id).where(ahead).order_by(_ROW.id).with_for_update(key_share=True)
        due = update(REPOSITORIES).where(_ROW.id.in_(locked)).values(next_due_at=self._database.moment())
        await self._database.change(due)

    async def missed(self, identity: str, limit: int = 20) -> list[MissedTick]:
        """The latest missed ticks of the repository, newest first."""
        query = select(MISSED_TICKS).where(MISSED_TICKS.c.repository_id == identity)
        query = query.order_by(MISSED_TICKS.c.scheduled_for.desc()).limit(limit)
        return [MissedTick.of(row) for row in await self._database.rows(query)]

    async def _due(self, rows: Sequence[Row[Any]], now: datetime) -> list[_Due]:
        due: list[_Due] = []
        ticks: dict[tuple[str, str], tuple[datetime, datetime] | None] = {}
        for row in rows:
            schedule = row.cron_expression, row.timezone
            if schedule not in ticks:
                ticks[schedule] = self._ticks_around(row, now)
                await asyncio.sleep(0)  # that took up to some milliseconds
            if (around := ticks[schedule]) is not None:
                last, following = around
                due.append(_Due(row, last if last > (row.last_tick_at or now) else None, following))
        return due

    def _ticks_around(self, row: Row[Any], now: datetime) -> tuple[datetime, datetime] | None:
        """The last tick until `now`, and the next one; None if a newer program wrote the schedule, which takes it."""
        try:
            schedule = Schedule.parse(row.cron_expression, row.timezone)
        except ScheduleError as error:
            if (row.id, row.cron_expression) not in self._unreadable:
                self._unreadable.add((row.id, row.cron_expression))
                log.error("a schedule in the database cannot be read: repository %s: %s", row.name, error)
            return None
        return schedule.last_before(now), schedule.next_after(now)

    async def _settle(self, due: Sequence[_Due], turn: _Turn) -> TickOutcome:
        """In one transaction. If it fails, in two, and so on: a defect in the rows of one repository is logged, and
        does not stop the schedules of the others."""
        if not due:
            return TickOutcome()
        try:
            async with self._database.write() as connection:
                return await self._queue_due(connection, due, turn)
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StatementRefused):
                raise
            if len(due) == 1:
                log_defect(f"a run of repository {due[0].row.id} could not be queued", error)
        if len(due) == 1:
            async with self._database.write() as connection:
                await _move_on(connection, due, turn.now)
            return TickOutcome(failed=1)
        half = len(due) // 2
        return await self._settle(due[:half], turn) + await self._settle(due[half:], turn)

    async def _queue_due(self, connection: Connection, due: Sequence[_Due], turn: _Turn) -> TickOutcome:
        which = and_(_IS_SCHEDULED, _ROW.id.in_([each.row.id for each in due]))
        unchanged = {tuple(row) for row in await lock_repositories(connection, which, _DECIDED_BY)}
        won = [each for each in due if tuple(each.row) in unchanged]
        names = {each.row.id: each.row.name for each in won}
        ticks = {each.row.id: each.tick for each in won if each.tick is not None}
        waiting = await _waiting(connection, ticks)
        queued = {key: tick for key, tick in ticks.items() if key in waiting or turn.now - tick <= turn.grace}
        first = await _never_ran(connection, [identity for identity in names if identity not in queued])
        ask = Ask(RunTrigger.SCHEDULE, max_attempts=turn.max_attempts)
        runs = await queue_runs(connection, {key: names[key] for key in queued}, ask, ticks=queued)
        await queue_runs(connection, {key: names[key] for key in first}, replace(ask, asked_by="first run"))
        missed = [
            {"repository_id": identity, "scheduled_for": tick, "noticed_at": turn.now}
            | {"late_seconds": (turn.now - tick).total_seconds()}
            for identity, tick in ticks.items()
            if identity not in queued
        ]
        if missed:
            await connection.execute(self._database.insert(MISSED_TICKS).on_conflict_do_nothing(), missed)
        await _move_on(connection, won, turn.now)
        new = sum(is_new for _, is_new in runs)
        return TickOutcome(new, len(runs) - new, len(missed), first_runs=len(first))


async def _move_on(connection: Connection, due: Sequence[_Due], now: datetime) -> None:
    if not due:
        return
    taken = update(REPOSITORIES).where(_ROW.id == bindparam("identity"), _ROW.next_due_at == bindparam("was_due_at"))
    moved = taken.values(next_due_at=bindparam("due_at"), last_tick_at=now)
    rows = [{"identity": each.row.id, "was_due_at": each.row.next_due_at, "due_at": each.next_due_at} for each in due]
    await connection.execute(moved, rows)


async def _never_ran(connection: Connection, identities: Collection[str]) -> list[str]:
    """Their runs may have been purged, and the log may have runs of a removed repository with the same id. A run that
    was cancelled before it began does not count, unless a person cancelled it."""
    ran = exists().where(
        RUNS.c.repository_id == REPOSITORIES.c.id,
        RUNS.c.queued_at >= REPOSITORIES.c.created_at,
        or_(RUNS.c.attempt > 0, is_active(), RUNS.c.cancel_requested),
    )
    never = and_(REPOSITORIES.c.id.in_(identities), REPOSITORIES.c.last_sync_at.is_(None), ~ran)
    return list(await connection.scalars(select(REPOSITORIES.c.id).where(never).order_by(REPOSITORIES.c.id)))


async def _waiting(connection: Connection, identities: Collection[str]) -> set[str]:
    """Those that have a waiting run."""
    query = select(RUNS.c.repository_id).where(RUNS.c.repository_id.in_(identities), is_active(), status_is(*WAITING))
    return set(await connection.scalars(query))
