"""A worker's attempt at a run: the fence of its writes, and how it is claimed.

If two workers try to claim a run at the same time, row locks on PostgreSQL, the single writer on SQLite, and below both
the unique index over running runs ensure that one of them gets it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, case, exists, or_, select, update

from reposync.config.sections import LONGEST_LEASE_SECONDS
from reposync.errors import LeaseLost
from reposync.store.database import Connection, Database, Guard
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.run import Run
from reposync.store.run_state import TRANSITIONS, Event, move, with_now
from reposync.store.status import LOST, WAITING, RunStatus
from reposync.store.tables import CLAIM_ORDER, REPOSITORIES, RUNS, is_active, status_is

# The fence -----------------------------------------------------------------------------------------------------------


def held_by(run: Run) -> ColumnElement[bool]:
    """True of the row of `run`, as `claim` returned it, until it is taken over, ended or handed back."""
    return and_(
        RUNS.c.id == run.id,
        RUNS.c.attempt == run.attempt,
        RUNS.c.worker == run.worker,
        RUNS.c.status == RunStatus.RUNNING,
    )


def lease_lost(run: Run) -> LeaseLost:
    return LeaseLost(f"Run {run.id} is no longer attempt {run.attempt} of {run.worker}; nothing was written.")


async def require_held(connection: Connection, run: Run) -> None:
    """Raises LeaseLost unless the run is still this attempt's, and locks the row against a takeover until the
    transaction ends. The order with other rows: see `lock_repositories`."""
    held = await connection.scalar(select(RUNS.c.id).where(held_by(run)).with_for_update(read=True))
    if held is None:
        raise lease_lost(run)


def fence(run: Run) -> Guard:
    """`require_held` at the beginning of a transaction."""
    return lambda connection: require_held(connection, run)


# Claiming ------------------------------------------------------------------------------------------------------------

REMOVED_BEFORE = "An earlier attempt removed the repository, and its worker died before it could report that."


def _abandoned(database: Database | Connection) -> ColumnElement[bool]:
    """Runs whose leases are over, or end later than any can: the database's clock was set back since."""
    longest = database.moment(LONGEST_LEASE_SECONDS + AHEAD_SECONDS)
    over = or_(RUNS.c.lease_until < database.moment(), RUNS.c.lease_until > longest)
    return and_(is_active(), status_is(RunStatus.RUNNING), over)


def _due(database: Database | Connection) -> ColumnElement[bool]:
    """A run from the future was queued, or began its last attempt, before the database's clock was set back: the rest
    of its pause is unknown. If its attempt took longer than the clock was set back, it waits for that time at most."""
    now, future = database.moment(), database.moment(AHEAD_SECONDS)
    other = RUNS.alias("other")
    alone = ~exists().where(other.c.repository_id == RUNS.c.repository_id, status_is(RunStatus.RUNNING, runs=other))
    due = or_(RUNS.c.not_before <= now, RUNS.c.queued_at > future, RUNS.c.started_at > future)
    return and_(is_active(), status_is(*WAITING), due, alone)


def claimable(database: Database, *which: ColumnElement[bool]) -> Select[tuple[bool]]:
    """Whether a claim of one of these runs would find something to do. An abandoned run counts, whichever it is: it may
    block one of the same repository."""
    due, abandoned = exists().where(_due(database), *which), exists().where(_abandoned(database))
    return select(or_(due, abandoned))


async def take(connection: Connection, worker: str, lease_seconds: float, run_id: str | None) -> Run | None:
    """Claim the first run that waits and can be executed now. IntegrityError: a different worker claimed a run of the
    same repository at the same time."""
    first = select(RUNS.c.id).where(_due(connection)).order_by(*CLAIM_ORDER).limit(1)
    if run_id is not None:
        first = first.where(RUNS.c.id == run_id)
    first = first.with_for_update(skip_locked=True)
    columns = RUNS.c
    last_commit = select(REPOSITORIES.c.last_commit).where(REPOSITORIES.c.id == columns.repository_id)
    # At the start of a later attempt it would be a commit that an earlier one has published.
    before = case((columns.attempt == 0, last_commit.scalar_subquery()), else_=columns.commit_before)
    status, begun = TRANSITIONS[RunStatus.QUEUED, Event.CLAIM]
    # One statement: between a look and a claim a different worker could claim it.
    query = update(RUNS).where(RUNS.c.id == first.correlate(None).scalar_subquery())
    query = query.values(
        **begun,
        status=status,
        worker=worker,
        attempt=columns.attempt + 1,
        lease_until=connection.moment(lease_seconds),
        started_at=connection.moment(),
        commit_before=before,
    )
    row = await connection.one_or_none(query.returning(*RUNS.c))
    return None if row is None else Run.of(row)


async def free_abandoned(connection: Connection) -> list[Run]:
    """End the attempts of workers that died. Returns their runs, which wait again or are over."""
    lost: list[Run] = []
    rows = with_now(connection, _abandoned(connection)).order_by(*CLAIM_ORDER).with_for_update(skip_locked=True)
    for row in await connection.rows(rows):
        if row.lease_until > row.now:
            # A living worker renews it at the next heartbeat; that of a dead one ends after the longest possible.
            longest = {"lease_until": connection.moment(LONGEST_LEASE_SECONDS)}
            await connection.execute(update(RUNS).where(RUNS.c.id == row.id).values(**longest))
        else:
            event, columns = await _after_death(connection, row)
            lost.append(Run.of(await move(connection, row, event, outcome=LOST, **columns)))
    return lost


async def _after_death(connection: Connection, row: Row[Any]) -> tuple[Event, dict[str, Any]]:
    """What becomes of a run whose worker died. After so many attempts that killed their workers, it is not repeated:
    the next worker would die as well."""
    registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == row.repository_id)
    if row.removal and not row.repair and await connection.scalar(registered) is None:
        return Event.COMPLETE, {"error_code": None, "error_message": REMOVED_BEFORE}
    if row.cancel_requested:
        return Event.STOP, {}
    if row.attempt < row.max_attempts:
        # Since then it has waited, and not since it was queued.
        return Event.RETRY_LATER, {"not_before": row.lease_until}
    message = (
        f"The worker died, or froze past its lease, and no attempt is left after {row.attempt} (the last "
        f"worker was {row.worker}). See its log: common causes are a lack of memory and a killed container."
    )
    return Event.FAIL, {"error_code": "RUN_ABANDONED", "error_message": message}
