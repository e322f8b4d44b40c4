"""How a worker claims a run. If two workers try at the same time, row locks on PostgreSQL, the single writer on SQLite,
and below both the unique index over running runs ensure that one of them gets it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.config.sections import LONGEST_LEASE_SECONDS
from reposync.store.attempts import begin_attempt, lose_attempt, total_counts
from reposync.store.database import AHEAD_SECONDS, Database
from reposync.store.run import LostAttempt, Run
from reposync.store.status import WAITING, RunStatus
from reposync.store.tables import REPOSITORIES, RUNS, is_active, status_is
from reposync.store.transitions import Event, locked, move

REMOVED_BEFORE = "An earlier attempt removed the repository, and its worker died before it could report that."

CLAIM_ORDER = (RUNS.c.priority, RUNS.c.not_before, RUNS.c.queued_at, RUNS.c.id)


def _expired(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until < now)


def _exhausted_or_cancelled() -> ColumnElement[bool]:
    return or_(RUNS.c.cancel_requested, RUNS.c.attempt >= RUNS.c.max_attempts)


def _orphaned(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    return and_(_expired(now), ~_exhausted_or_cancelled())


def _due(database: Database) -> ColumnElement[bool]:
    """A run from the future was queued, or began its last attempt, before the database's clock was set back: the rest
    of its pause is unknown. If its attempt took longer than the clock was set back, it waits for that time at most."""
    now, future = database.moment(), database.moment(AHEAD_SECONDS)
    other = RUNS.alias("other")
    alone = ~exists().where(other.c.repository_id == RUNS.c.repository_id, status_is(RunStatus.RUNNING, runs=other))
    due = or_(RUNS.c.not_before <= now, RUNS.c.queued_at > future, RUNS.c.started_at > future)
    return and_(is_active(), status_is(*WAITING), due, alone)


def _unbelievable(database: Database) -> ColumnElement[bool]:
    """Leases that end later than any can: the database's clock was set back since they were taken."""
    longest = database.moment(LONGEST_LEASE_SECONDS + AHEAD_SECONDS)
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until > longest)


async def anything_to_claim(connection: AsyncConnection, database: Database, run_id: str | None) -> bool:
    """Whether there is work for `shorten_leases`, `end_abandoned` or `take`. Checked first, because it takes no lock:
    most polls find nothing."""
    expired = or_(_expired(database.moment()), _unbelievable(database))
    query = select(RUNS.c.id).where(is_active(), or_(_due(database), expired))
    if run_id is not None:
        # An expired run of the same repository blocks this one, so it counts as well.
        query = query.where(or_(RUNS.c.id == run_id, expired))
    return await connection.scalar(query.limit(1)) is not None


async def shorten_leases(connection: AsyncConnection, database: Database) -> None:
    """A living worker renews its lease at the next heartbeat; that of a dead one ends after the longest possible."""
    cut = update(RUNS).where(is_active(), _unbelievable(database))
    await connection.execute(cut.values(lease_until=database.moment(LONGEST_LEASE_SECONDS)))


async def others_claimable(connection: AsyncConnection, database: Database, identity: str) -> bool:
    """Whether `take` would find a run of a different repository than this one."""
    claimable = or_(_due(database), _orphaned(database.moment()))
    query = select(RUNS.c.id).where(is_active(), claimable, RUNS.c.repository_id != identity)
    return await connection.scalar(query.limit(1)) is not None


async def end_abandoned(connection: AsyncConnection, database: Database) -> list[LostAttempt]:
    """End the runs whose worker died and that are not taken over: they were to be cancelled, or killed their worker so
    often that the next one would die as well. Returns their last attempts."""
    lost: list[LostAttempt] = []
    query = locked(database, _expired(database.moment()), _exhausted_or_cancelled()).with_for_update(skip_locked=True)
    for row in (await connection.execute(query)).all():
        lost += await lose_attempt(connection, row, row.now)
        counts = await total_counts(connection, row.id)
        if row.removal and not row.repair and not await _is_registered(connection, row.repository_id):
            await move(connection, database, row, Event.COMPLETE, **counts, error_message=REMOVED_BEFORE)
        elif row.cancel_requested:
            await move(connection, database, row, Event.STOP, **counts)
        else:
            message = (
                f"The worker died, or froze past its lease, and no attempt is left after {row.attempt} (the last "
                f"worker was {row.worker}). See its log: common causes are a lack of memory and a killed container."
            )
            why = {"error_code": "RUN_ABANDONED", "error_message": message}
            await move(connection, database, row, Event.ABANDON, **counts, **why)
    return lost


async def _is_registered(connection: AsyncConnection, identity: str) -> bool:
    return await connection.scalar(select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == identity)) is not None


async def take(
    connection: AsyncConnection, database: Database, worker: str, lease_seconds: float, run_id: str | None
) -> tuple[Run | None, list[LostAttempt]]:
    """Claim the first run that can be executed now, and return it with the lost attempt before it. Runs whose worker
    died go first: waiting runs may depend on them. IntegrityError: a different worker claimed a run of the same
    repository at the same time."""
    chosen: Row[Any] | None = None
    # Separate queries, each with its index: one condition for both would sort the whole queue.
    for which in (_orphaned(database.moment()), _due(database)):
        query: Select[Any] = select(*RUNS.c, database.moment().label("now")).where(which)
        if run_id is not None:
            query = query.where(RUNS.c.id == run_id)
        query = query.order_by(*CLAIM_ORDER).limit(1).with_for_update(skip_locked=True)
        chosen = (await connection.execute(query)).one_or_none()
        if chosen is not None:
            break
    else:
        return None, []
    claimed: dict[str, Any] = {
        "worker": worker,
        "attempt": RUNS.c.attempt + 1,
        "lease_until": database.moment(lease_seconds),
        "started_at": database.moment(),
    }
    event = Event.CLAIM
    if chosen.status == RunStatus.RUNNING:
        # It has waited since its lease ended, and not since it was queued.
        event, claimed["not_before"] = Event.TAKE_OVER, chosen.lease_until
    row = await move(connection, database, chosen, event, **claimed)
    lost = await begin_attempt(connection, row)
    return Run.of(row), lost
