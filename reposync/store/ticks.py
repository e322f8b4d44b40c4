"""Schedules to queued runs. `next_due_at` of a repository is when its next run is due, by the database's clock.

What is due is taken in one transaction: `next_due_at` moves on and the runs are queued, so that a tick leads to one
run, however many pods look at it and however late. `last_tick_at` is when the schedule was last looked at; all ticks
until then are settled."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, exists, or_, select, update

from reposync.config.schedule import Schedule, ScheduleError
from reposync.errors import StatementRefused, StoreUnavailable
from reposync.store.database import Connection, Database, Stored
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.repository import MissedTick
from reposync.store.repository_rows import lock_repositories
from reposync.store.run import MAX_ATTEMPTS, Ask
from reposync.store.run_state import queue_runs
from reposync.store.status import WAITING, RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, is_active, status_is
from reposync.supervision import log_defect

log = logging.getLogger(__name__)

# Locked together, by a fixed number of statements; small enough that a sync which publishes its commit hardly waits.
_BATCH = 200

_ROW = REPOSITORIES.c
_IS_SCHEDULED = and_(_ROW.is_active, _ROW.cron_expression.is_not(None))
_COLUMNS = (_ROW.id, _ROW.name, _ROW.cron_expression, _ROW.timezone, _ROW.last_tick_at, _ROW.missed_ticks)
_MISSED_KEPT = 20


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
    """A repository whose `next_due_at` has come, as it is `now`."""

    row: Row[Any]
    now: datetime
    tick: datetime | None
    """The latest one that is not settled; None if only `next_due_at` has to be set."""
    next_due_at: datetime

    @property
    def missed_ticks(self) -> list[dict[str, Any]]:
        """The missed ticks of the repository, with this one."""
        late_seconds = (self.now - self.tick).total_seconds() if self.tick is not None else 0.0
        tick = {"scheduled_for": self.tick, "noticed_at": self.now, "late_seconds": late_seconds}
        return [MissedTick.model_validate(tick).model_dump(mode="json"), *self.row.missed_ticks][:_MISSED_KEPT]


class Ticks(Stored):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._unreadable: set[tuple[str, str]] = set()

    async def take(self, *, grace_seconds: float, max_attempts: int = MAX_ATTEMPTS) -> TickOutcome:
        """Request a run of each repository that is due. Of several ticks since its last turn, the latest counts. If
        that is older than the grace, it is recorded as missed, without a run. A waiting run takes it over. A new
        repository is due at once, and has a run without a tick: it should be searchable before its first one."""
        ask, grace = Ask(RunTrigger.SCHEDULE, max_attempts=max_attempts), timedelta(seconds=grace_seconds)
        outcome, after = TickOutcome(), ""
        # An expression: SQLite would read all repositories in the order of their ids, to save sorting those few.
        identity = _ROW.id.concat("")
        # Takes no lock: most turns find nothing.
        due = select(_ROW.id).where(self._is_due()).order_by(identity).limit(_BATCH)
        while ids := await self._database.scalars(due.where(identity > after)):
            after = ids[-1]
            outcome += await self._settle(ids, ask, grace)
        return outcome

    async def reschedule(self) -> None:
        """Schedules that were looked at in the future are due at once, which sets `next_due_at` anew: the clock was set
        back since."""
        ahead = and_(_IS_SCHEDULED, _ROW.last_tick_at > self._database.moment(AHEAD_SECONDS))
        # Locked in the order of all transactions, see `lock_repositories`.
        locked = select(_ROW.id).where(ahead).order_by(_ROW.id).with_for_update(key_share=True)
        due = update(REPOSITORIES).where(_ROW.id.in_(locked)).values(next_due_at=self._database.moment())
        await self._database.change(due)

    def _is_due(self) -> ColumnElement[bool]:
        return and_(_IS_SCHEDULED, _ROW.next_due_at <= self._database.moment())

    async def _lock_due(self, connection: Connection, ids: Collection[str]) -> list[_Due]:
        """The due repositories that no different pod and no person has changed by now."""
        now = await connection.now()
        ticks: dict[tuple[str, str], tuple[datetime, datetime] | None] = {}
        due: list[_Due] = []
        for row in await lock_repositories(connection, and_(self._is_due(), _ROW.id.in_(ids)), _COLUMNS):
            schedule = row.cron_expression, row.timezone
            if schedule not in ticks:
                ticks[schedule] = self._ticks_around(row, now)
            if (around := ticks[schedule]) is not None:
                last, following = around
                due.append(_Due(row, now, last if last > (row.last_tick_at or now) else None, following))
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

    async def _settle(self, ids: Sequence[str], ask: Ask, grace: timedelta) -> TickOutcome:
        """In one transaction. If it fails, in two, and so on: a defect in the rows of one repository is logged, and
        does not stop the schedules of the others."""
        try:
            async with self._database.write() as connection:
                return await _queue(connection, await self._lock_due(connection, ids), ask, grace)
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StatementRefused):
                raise
            if len(ids) == 1:
                log_defect(f"a run of repository {ids[0]} could not be queued", error)
        if len(ids) == 1:
            async with self._database.write() as connection:
                await _move_on(connection, await self._lock_due(connection, ids))
            return TickOutcome(failed=1)
        half = len(ids) // 2
        return await self._settle(ids[:half], ask, grace) + await self._settle(ids[half:], ask, grace)


async def _queue(connection: Connection, due: Sequence[_Due], ask: Ask, grace: timedelta) -> TickOutcome:
    names = {each.row.id: each.row.name for each in due}
    ticks = {each.row.id: each.tick for each in due if each.tick is not None}
    late = {each.row.id for each in due if each.tick is not None and each.now - each.tick > grace}
    missed = late - await _waiting(connection, late)
    queued = {identity: tick for identity, tick in ticks.items() if identity not in missed}
    first = await _never_ran(connection, names.keys() - queued.keys())
    runs = await queue_runs(connection, {key: names[key] for key in queued}, ask, ticks=queued)
    await queue_runs(connection, {key: names[key] for key in first}, replace(ask, asked_by="first run"))
    await _move_on(connection, due, missed)
    new = sum(is_new for _, is_new in runs)
    return TickOutcome(new, len(runs) - new, len(missed), first_runs=len(first))


async def _move_on(connection: Connection, due: Sequence[_Due], missed: Collection[str] = frozenset()) -> None:
    columns: dict[str, Any] = {
        "next_due_at": bindparam("due_at"),
        "last_tick_at": bindparam("now"),
        "missed_ticks": bindparam("ticks"),
    }
    rows = [
        {"identity": each.row.id, "due_at": each.next_due_at, "now": each.now}
        | {"ticks": each.missed_ticks if each.row.id in missed else each.row.missed_ticks}
        for each in due
    ]
    if rows:
        await connection.execute(update(REPOSITORIES).where(_ROW.id == bindparam("identity")).values(**columns), rows)


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
    """The repositories that have a waiting run."""
    query = select(RUNS.c.repository_id).where(RUNS.c.repository_id.in_(identities), is_active(), status_is(*WAITING))
    return set(await connection.scalars(query))
