"""How a worker comes to a run. Two workers may look at the same moment: row locks on PostgreSQL, the single writer on
SQLite, and below both the unique index over running runs make sure that one of them gets it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.attempts import LostAttempt, begin_attempt, lose_attempt, noted_figures
from reposync.store.database import Database
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.run import Run, run_record
from reposync.store.status import WAITING, RunStatus
from reposync.store.tables import REPOSITORIES, RUNS, is_active, status_is
from reposync.store.transitions import Event, locked, move

REMOVED_BEFORE = "An earlier attempt removed the repository, and its worker died before it could say so."

CLAIM_ORDER = (RUNS.c.priority, RUNS.c.not_before, RUNS.c.queued_at, RUNS.c.id)

LONGEST_LEASE_SECONDS = 600.0
"""The most that `daemon.lease_seconds` may say."""


def _expired(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until < now)


def _hopeless() -> ColumnElement[bool]:
    return or_(RUNS.c.cancel_requested, RUNS.c.attempt >= RUNS.c.max_attempts)


def _orphaned(now: ColumnElement[datetime]) -> ColumnElement[bool]:
    return and_(_expired(now), ~_hopeless())


def _due(database: Database) -> ColumnElement[bool]:
    """A run of the future was queued, or began its last attempt, before the database's clock was set back: nobody knows
    what is left of its pause. One whose attempt took longer than the clock went back waits for no longer than that."""
    now, future = database.moment(), database.moment(AHEAD_SECONDS)
    other = RUNS.alias("other")
    alone = ~exists().where(other.c.repository_id == RUNS.c.repository_id, status_is(RunStatus.RUNNING, runs=other))
    due = or_(RUNS.c.not_before <= now, RUNS.c.queued_at > future, RUNS.c.started_at > future)
    return and_(is_active(), status_is(*WAITING), due, alone)


def _unbelievable(database: Database) -> ColumnElement[bool]:
    """Leases that end farther ahead than any may: the database's clock was set back since they were taken."""
    longest = database.moment(LONGEST_LEASE_SECONDS + AHEAD_SECONDS)
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until > longest)


async def anything_to_claim(connection: AsyncConnection, database: Database, run_id: str | None) -> bool:
    """Whether there is work for `shorten_leases`, `end_abandoned` or `take`. Asked first, because it takes no lock:
    most polls find nothing."""
    expired = or_(_expired(database.moment()), _unbelievable(database))
    query = select(RUNS.c.id).where(is_active(), or_(_due(database), expired))
    if run_id is not None:
        # An expired run of the same repository is in the way of this one, so it counts as well.
        query = query.where(or_(RUNS.c.id == run_id, expired))
    return await connection.scalar(query.limit(1)) is not None


async def shorten_leases(connection: AsyncConnection, database: Database) -> None:
    """A worker that lives renews its lease at the next heartbeat; another's ends after the longest that there is."""
    cut = update(RUNS).where(is_active(), _unbelievable(database))
    await connection.execute(cut.values(lease_until=database.moment(LONGEST_LEASE_SECONDS)))


async def claimable_but_for(connection: AsyncConnection, database: Database, identity: str) -> bool:
    """Whether `take` would find a run of another repository than that one."""
    claimable = or_(_due(database), _orphaned(database.moment()))
    query = select(RUNS.c.id).where(is_active(), claimable, RUNS.c.repository_id != identity)
    return await connection.scalar(query.limit(1)) is not None


async def end_abandoned(connection: AsyncConnection, database: Database) -> list[LostAttempt]:
    """End the runs whose worker is gone and that nobody may take over: they were to be cancelled, or killed their
    worker so often that the next one would die of them too. Their last attempts."""
    now = database.moment()
    lost: list[LostAttempt] = []
    query = locked(database, _expired(now), _hopeless()).with_for_update(skip_locked=True)
    for row in (await connection.execute(query)).all():
        lost += await lose_attempt(connection, row, row.now)
        done = await noted_figures(connection, row.id)
        if row.removal and not row.repair and not await _is_registered(connection, row.repository_id):
            await move(connection, database, row, Event.COMPLETE, **done, error_message=REMOVED_BEFORE)
        elif row.cancel_requested:
            await move(connection, database, row, Event.STOP, **done)
        else:
            await move(connection, database, row, Event.ABANDON, **done, **_why(row))
    return lost


async def _is_registered(connection: AsyncConnection, identity: str) -> bool:
    return await connection.scalar(select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == identity)) is not None


def _why(row: Any) -> dict[str, str]:
    return {
        "error_code": "RUN_ABANDONED",
        "error_message": (
            f"The worker died, or froze past its lease, and no attempt is left after {row.attempt} "
            f"(the last worker was {row.worker}). See that worker's log: out of memory and a killed container are the "
            "usual causes."
        ),
    }


async def take(
    connection: AsyncConnection, database: Database, worker: str, lease_seconds: float, run_id: str | None
) -> tuple[Run | None, list[LostAttempt]]:
    """The first run that may be executed now, as this worker's: one whose worker is gone before those that wait, of
    which some may wait for it; and the attempt of the worker that is gone. IntegrityError: another worker was quicker
    with another run of the same repository."""
    chosen: Row[Any] | None = None
    # One query after the other: each has its index, where a condition on both would sort the whole queue.
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
        # It has waited since its lease was over, and not since it was queued.
        event, claimed["not_before"] = Event.TAKE_OVER, chosen.lease_until
    row = await move(connection, database, chosen, event, **claimed)
    lost = await begin_attempt(connection, row)
    return run_record(row), lost
