"""Ticks of schedules: each leads to one queued run at most, however many pods report it and however late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Row, and_, bindparam, exists, func, or_, select, tuple_, update

from reposync.errors import StatementRefused, StoreUnavailable
from reposync.store.database import QUEUE, Connection, Stored
from reposync.store.database_clock import AHEAD_SECONDS, DatabaseClock
from reposync.store.repositories import lock_repositories
from reposync.store.run import MissedTick, RunRequest
from reposync.store.run_state import (
    MAX_ATTEMPTS,
    add_requests,
    derive,
    new_request,
    new_run,
    read_requests,
)
from reposync.store.status import WAITING, RunTrigger
from reposync.store.tables import CLAIM_ORDER, MISSED_TICKS, REPOSITORIES, REQUESTS, RUNS, is_active, status_is
from reposync.supervision import log_defect

# Locked together, by a fixed number of statements; small enough that a sync which publishes its commit hardly waits.
_BATCH = 200
_AHEAD = timedelta(seconds=AHEAD_SECONDS)

T = TypeVar("T")


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
    """How many ticks queued a new run, joined a waiting one, were handled before (by a different pod) or belong to a
    repository that was paused meanwhile, came too late, were rejected because they are in the database's future, or
    failed: the log has the defect."""

    queued: int = 0
    joined: int = 0
    handled: int = 0
    missed: int = 0
    rejected: int = 0
    failed: int = 0

    def __add__(self, other: TickOutcome) -> TickOutcome:
        return TickOutcome(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Ticks(Stored):
    @property
    def clock(self) -> DatabaseClock:
        """The clock that decides when a tick is due."""
        return self._database.clock

    async def scheduled(self) -> list[ScheduledRepository]:
        """The active repositories that have a schedule."""
        columns = REPOSITORIES.c
        since = func.coalesce(columns.scheduled_since, columns.created_at, type_=columns.created_at.type)
        query = select(columns.id, columns.name, columns.cron_expression, columns.timezone, since)
        query = query.where(columns.is_active, columns.cron_expression.is_not(None))
        return [ScheduledRepository(*row) for row in await self._database.rows(query)]

    async def latest(self, identities: Collection[str]) -> dict[str, datetime]:
        """The latest handled tick of each of these repositories that had one, by id."""
        found: dict[str, datetime] = {}
        for batch in _batches(identities):
            async with self._database.read() as connection:
                found |= await _latest(connection, batch, await connection.now())
        return found

    async def enqueue(self, due: Mapping[str, datetime], *, grace_seconds: float, max_attempts: int) -> TickOutcome:
        """Request a run for each tick (by repository id). A tick that is not later than the latest handled one is
        ignored; a waiting run takes the tick over; a tick older than the grace is recorded as missed, without a run. A
        future tick is rejected, and counts when it is due."""
        outcome = TickOutcome()
        for batch in _batches(due):
            async with self._database.read() as connection:
                now = await connection.now()
                present = {identity: due[identity] for identity in batch if due[identity] <= now + _AHEAD}
                fresh = await _unhandled(connection, present, now)
            queue = partial(self._enqueue, fresh, timedelta(seconds=grace_seconds), max_attempts)
            done = await self._each(queue, sorted(fresh))
            outcome = sum((each for _, each in done), outcome)
            failed = len(fresh) - sum(len(identities) for identities, _ in done)
            handled, rejected = len(present) - len(fresh), len(batch) - len(present)
            outcome += TickOutcome(handled=handled, rejected=rejected, failed=failed)
        return outcome

    async def missed(self, identity: str, limit: int = 20) -> list[MissedTick]:
        """The latest missed ticks of the repository, newest first."""
        query = select(MISSED_TICKS).where(MISSED_TICKS.c.repository_id == identity)
        query = query.order_by(MISSED_TICKS.c.scheduled_for.desc()).limit(limit)
        return [MissedTick.of(row) for row in await self._database.rows(query)]

    async def first_runs(self, identities: Collection[str], *, max_attempts: int = MAX_ATTEMPTS) -> int:
        """Queue a run of those active repositories that never had one: a new repository should be searchable before its
        first tick. Returns how many."""
        queued = 0
        for batch in _batches(identities):
            async with self._database.read() as connection:
                candidates = await _never_ran(connection, batch)
            done = await self._each(partial(self._queue_first, max_attempts), candidates)
            queued += sum(number for _, number in done)
        return queued

    async def _each(
        self, work: Callable[[Connection, Sequence[str]], Awaitable[T]], identities: Sequence[str]
    ) -> list[tuple[Sequence[str], T]]:
        """Results of `work` for these repositories, in one transaction. If it fails, in two, and so on: a defect in the
        rows of one repository is logged, and does not stop the schedules of the others."""
        if not identities:
            return []
        try:
            async with self._database.write() as connection:
                return [(identities, await work(connection, identities))]
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StatementRefused):
                raise
            if len(identities) == 1:
                log_defect(f"a run of repository {identities[0]} could not be queued", error)
                return []
        half = len(identities) // 2
        return [*await self._each(work, identities[:half]), *await self._each(work, identities[half:])]

    async def _queue_first(self, max_attempts: int, connection: Connection, candidates: Sequence[str]) -> int:
        names = await _lock_active(connection, candidates)
        now = await connection.now()
        new = {
            identity: new_request(RunTrigger.SCHEDULE, now, asked_by="first run", max_attempts=max_attempts)
            for identity in await _never_ran(connection, names)
        }
        return await self._queue(connection, names, now, new)

    async def _enqueue(
        self,
        ticks: Mapping[str, datetime],
        grace: timedelta,
        max_attempts: int,
        connection: Connection,
        identities: Sequence[str],
    ) -> TickOutcome:
        due = {identity: ticks[identity] for identity in identities}
        names = await _lock_active(connection, identities)
        now = await connection.now()
        fresh = await _unhandled(connection, {key: tick for key, tick in due.items() if key in names}, now)
        waiting = await _waiting(connection, fresh)
        requests = {
            identity: new_request(RunTrigger.SCHEDULE, now, scheduled_for=tick, max_attempts=max_attempts)
            for identity, tick in fresh.items()
            if identity in waiting or now - tick <= grace
        }
        joined = await _join(connection, waiting, {key: requests[key] for key in requests if key in waiting})
        new = {key: request for key, request in requests.items() if key not in waiting}
        queued = await self._queue(connection, names, now, new)
        missed = [
            MissedTick(scheduled_for=tick, noticed_at=now, late_seconds=(now - tick).total_seconds()).model_dump()
            | {"repository_id": identity}
            for identity, tick in fresh.items()
            if identity not in requests
        ]
        if missed:
            await connection.execute(self._database.insert(MISSED_TICKS).on_conflict_do_nothing(), missed)
        if fresh:
            handled = update(REPOSITORIES).where(REPOSITORIES.c.id == bindparam("identity"))
            latest = [{"identity": identity, "tick": tick} for identity, tick in fresh.items()]
            await connection.execute(handled.values(last_tick_at=bindparam("tick")), latest)
        return TickOutcome(queued, joined, len(due) - queued - joined - len(missed), len(missed))

    async def _queue(
        self, connection: Connection, names: Mapping[str, str], now: datetime, requests: Mapping[str, RunRequest]
    ) -> int:
        """Queue new runs for these requests, by repository id."""
        if not requests:
            return 0
        rows = [
            new_run(identity, names[identity], now, [request]) | {"scheduled_for": request.scheduled_for}
            for identity, request in requests.items()
        ]
        new = self._database.insert(RUNS).on_conflict_do_nothing().returning(RUNS.c.id, RUNS.c.repository_id)
        runs = await connection.rows(new, rows)
        of_runs = [
            requests[row.repository_id].model_copy(update={"run_id": row.id, "repository_id": row.repository_id})
            for row in runs
        ]
        await add_requests(connection, of_runs)
        await connection.announce(QUEUE)
        return len(runs)


async def _lock_active(connection: Connection, identities: Collection[str]) -> dict[str, str]:
    """The names of those that are active, by id."""
    which = and_(REPOSITORIES.c.id.in_(identities), REPOSITORIES.c.is_active)
    rows = await lock_repositories(connection, which, (REPOSITORIES.c.id, REPOSITORIES.c.name))
    return {row.id: row.name for row in rows}


async def _join(connection: Connection, waiting: Mapping[str, Row[Any]], requests: Mapping[str, RunRequest]) -> int:
    """Waiting runs, by repository id, take these ticks over, in place of earlier ticks. A tick that a different run had
    is ignored: the clock was set back since. Returns how many were taken over."""
    ticks = [(identity, request.scheduled_for) for identity, request in requests.items()]
    tick = tuple_(RUNS.c.repository_id, RUNS.c.scheduled_for)
    taken = await connection.rows(select(RUNS.c.id, RUNS.c.repository_id).where(tick.in_(ticks))) if ticks else ()
    known = {row.repository_id for row in taken if row.id != waiting[row.repository_id].id}
    fresh = {identity: request for identity, request in requests.items() if identity not in known}
    if not fresh:
        return 0
    # A statement for all of them, and not for each: 200 runs would be locked for a second.
    present = await read_requests(connection, [waiting[identity].id for identity in fresh])
    changed, added, runs = [], [], []
    for identity, request in fresh.items():
        row = waiting[identity]
        live = [each for each in present.get(row.id, []) if each.is_live]
        if earlier := next((each for each in live if each.is_tick), None):
            changed.append({"request": earlier.id, "scheduled_for": request.scheduled_for})
        else:
            live.append(request)
            added.append(request.model_copy(update={"run_id": row.id, "repository_id": identity}))
        derived = derive(live, brake=row.brake, handed_back=row.handed_back)
        runs.append({"run": row.id, "scheduled_for": request.scheduled_for, **derived})
    if changed:
        await connection.execute(update(REQUESTS).where(REQUESTS.c.id == bindparam("request")), changed)
    await add_requests(connection, added)
    await connection.execute(update(RUNS).where(RUNS.c.id == bindparam("run")), runs)
    return len(fresh)


async def _latest(connection: Connection, identities: Collection[str], now: datetime) -> dict[str, datetime]:
    """Ignores ticks in the future."""
    row = REPOSITORIES.c
    query = select(row.id, row.last_tick_at).where(row.id.in_(identities), row.last_tick_at <= now + _AHEAD)
    return {row.id: row.last_tick_at for row in await connection.rows(query)}


async def _unhandled(connection: Connection, due: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
    latest = await _latest(connection, due, now) if due else {}
    return {key: tick for key, tick in due.items() if key not in latest or latest[key] < tick}


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


async def _waiting(connection: Connection, identities: Collection[str]) -> dict[str, Row[Any]]:
    """The waiting run of each repository that is claimed next, by repository id."""
    query = select(RUNS).where(RUNS.c.repository_id.in_(identities), is_active(), status_is(*WAITING))
    found: dict[str, Row[Any]] = {}
    for row in await connection.rows(query.order_by(*CLAIM_ORDER).with_for_update()):
        found.setdefault(row.repository_id, row)
    return found


def _batches(identities: Collection[str]) -> list[list[str]]:
    ordered = sorted(identities)
    return [ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH)]
