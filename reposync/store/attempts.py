"""A worker's attempt at a run: how it is claimed, the fence of its writes, and its row in `run_attempts`.

If two workers try to claim a run at the same time, row locks on PostgreSQL, the single writer on SQLite, and below both
the unique index over running runs ensure that one of them gets it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, exists, func, or_, select, update

from reposync.config.sections import LONGEST_LEASE_SECONDS
from reposync.errors import LeaseLost
from reposync.outgoing import LONGEST_WAIT_SECONDS
from reposync.store.database import Connection, Guard
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.run import COUNTS, LostAttempt, Run, RunFigures
from reposync.store.run_state import TRANSITIONS, Event, attempt_end, move, with_now
from reposync.store.status import LOST, WAITING, RunStatus
from reposync.store.tables import ATTEMPTS, CLAIM_ORDER, PROBLEMS, REPOSITORIES, RUNS, is_active, status_is

REPOSITORY_REMOVED = "REPOSITORY_REMOVED"
"""Error code of the attempts and runs that the removal of their repository ended."""

# A state and not an amount of work: that of the latest attempt counts.
_LATEST = "files_failed"
# Attempts that meet the same file list it once.
_LISTED = "files_skipped"


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


# Rows of attempts ----------------------------------------------------------------------------------------------------


async def change_attempt(
    connection: Connection, run: Run | Row[Any], figures: RunFigures | None, **columns: Any
) -> None:
    """`figures`: so far; all that remains known if the worker dies."""
    counts = _counts(figures) if figures is not None else {}
    await connection.execute(update(ATTEMPTS).where(is_attempt(run)).values(**counts, **columns))


def total_counts(run_id: str, *, is_over: bool = True) -> dict[str, ColumnElement[int]]:
    """The counts of all attempts of the run, for its own row. Skipped files, of which there may be many, are counted if
    the attempt `is_over`: they are those that the run lists."""
    of_run = ATTEMPTS.c.run_id == run_id

    def total(value: Any) -> ColumnElement[int]:
        return func.coalesce(select(value).where(of_run).scalar_subquery(), 0)

    latest = select(ATTEMPTS.c[_LATEST]).where(of_run).order_by(ATTEMPTS.c.attempt.desc()).limit(1).scalar_subquery()
    counts = {name: total(func.sum(ATTEMPTS.c[name])) for name in COUNTS} | {_LATEST: func.coalesce(latest, 0)}
    listed = select(func.count()).where(PROBLEMS.c.run_id == run_id, PROBLEMS.c.reason != "failed")
    counts[_LISTED] = listed.scalar_subquery() if is_over else RUNS.c[_LISTED]
    return counts


async def end_attempt(
    connection: Connection, row: Row[Any], outcome: str, figures: RunFigures | None, **reason: Any
) -> dict[str, ColumnElement[int]]:
    """The running attempt ends now. Returns the counts of its run."""
    await change_attempt(connection, row, figures, outcome=outcome, ended_at=attempt_end(row), **reason)
    return total_counts(row.id)


async def lose_attempt(connection: Connection, run: Row[Any]) -> list[RunFigures]:
    """The unfinished attempt of the running `run` has no worker any more; what it did. Empty if there is none."""
    rows = await cancel_attempts(connection, [run.id], attempt_end(run), LOST)
    return [RunFigures(**_counts(row)) for row in rows]


async def cancel_attempts(
    connection: Connection, run_ids: Collection[str], now: Any, outcome: str, **reason: str
) -> Sequence[Row[Any]]:
    """End the unfinished attempts of these runs; returns their rows."""
    go_on = update(ATTEMPTS).where(ATTEMPTS.c.run_id.in_(run_ids), ATTEMPTS.c.ended_at.is_(None))
    return await connection.rows(go_on.values(outcome=outcome, ended_at=now, **reason).returning(*ATTEMPTS.c))


def is_attempt(run: Run | Row[Any]) -> ColumnElement[bool]:
    return and_(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt == run.attempt)


def _counts(of: Any) -> dict[str, Any]:
    return {name: getattr(of, name) for name in COUNTS}


# Claiming ------------------------------------------------------------------------------------------------------------

_LONGEST_PAUSES_SECONDS = {RunStatus.QUEUED: LONGEST_WAIT_SECONDS, RunStatus.RETRYING: 86_400.0}
"""Of a server that asks to wait, and of `daemon.retry_max_seconds`."""

REMOVED_BEFORE = "An earlier attempt removed the repository, and its worker died before it could report that."


def _expired(connection: Connection) -> ColumnElement[bool]:
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until < connection.moment())


def _unbelievable(connection: Connection) -> ColumnElement[bool]:
    """Leases that end later than any can: the database's clock was set back since they were taken."""
    longest = connection.moment(LONGEST_LEASE_SECONDS + AHEAD_SECONDS)
    return and_(status_is(RunStatus.RUNNING), RUNS.c.lease_until > longest)


def _due(connection: Connection) -> ColumnElement[bool]:
    """A run from the future was queued, or began its last attempt, before the database's clock was set back: the rest
    of its pause is unknown. If its attempt took longer than the clock was set back, it waits for that time at most."""
    now, future = connection.moment(), connection.moment(AHEAD_SECONDS)
    other = RUNS.alias("other")
    alone = ~exists().where(other.c.repository_id == RUNS.c.repository_id, status_is(RunStatus.RUNNING, runs=other))
    due = or_(RUNS.c.not_before <= now, RUNS.c.queued_at > future, RUNS.c.started_at > future)
    return and_(is_active(), status_is(*WAITING), due, alone)


def _paused_too_long(connection: Connection, status: RunStatus) -> ColumnElement[bool]:
    """Pauses that no run is given: the row is of an earlier program, which believed a server, or the database's clock
    was set back."""
    return and_(
        status_is(status), RUNS.c.not_before > connection.moment(_LONGEST_PAUSES_SECONDS[status] + AHEAD_SECONDS)
    )


@dataclass(frozen=True, slots=True)
class Claimable:
    """`due`: a run waits that can be executed now. `expired`: leases ended, or times have to be corrected."""

    due: bool
    expired: bool


async def claimable(connection: Connection, run_id: str | None = None) -> Claimable:
    """What a claim would find. Takes no lock: most polls find nothing."""
    too_long = (_paused_too_long(connection, status) for status in _LONGEST_PAUSES_SECONDS)
    which = _due(connection) if run_id is None else and_(_due(connection), RUNS.c.id == run_id)
    blocks = or_(_expired(connection), _unbelievable(connection), *too_long)
    found = select(
        exists(select(RUNS.c.id).where(which)).label("due"),
        # Also of other runs: an expired one of the same repository blocks this one.
        exists(select(RUNS.c.id).where(is_active(), blocks)).label("expired"),
    )
    return Claimable(**(await connection.one(found))._mapping)


async def others_claimable(connection: Connection, identity: str) -> bool:
    """Whether a run of a different repository than this one could be claimed."""
    orphaned = and_(_expired(connection), ~RUNS.c.cancel_requested, RUNS.c.attempt < RUNS.c.max_attempts)
    query = select(RUNS.c.id).where(is_active(), or_(_due(connection), orphaned), RUNS.c.repository_id != identity)
    return await connection.scalar(query.limit(1)) is not None


async def take(connection: Connection, worker: str, lease_seconds: float, run_id: str | None) -> Run | None:
    """Claim the first run that waits and can be executed now. IntegrityError: a different worker claimed a run of the
    same repository at the same time."""
    first = select(RUNS.c.id).where(_due(connection)).order_by(*CLAIM_ORDER).limit(1)
    if run_id is not None:
        first = first.where(RUNS.c.id == run_id)
    first = first.with_for_update(skip_locked=True)
    status, columns = TRANSITIONS[RunStatus.QUEUED, Event.CLAIM]
    begun = {**columns, **_begun(connection, worker, lease_seconds)}
    # One statement: between a look and a claim a different worker could claim it.
    query = update(RUNS).where(RUNS.c.id == first.correlate(None).scalar_subquery()).values(status=status, **begun)
    row = await connection.one_or_none(query.returning(*RUNS.c))
    return None if row is None else await _attempt(connection, row)


async def take_over(
    connection: Connection, worker: str, lease_seconds: float, run_id: str | None
) -> tuple[Run | None, list[LostAttempt]]:
    """Claim a run whose worker died, and end those that are not taken over: they were to be cancelled, or killed their
    worker so often that the next one would die as well. Returns their last attempts, too."""
    await _shorten_waits(connection)
    expired = with_now(connection, is_active(), _expired(connection)).order_by(*CLAIM_ORDER)
    taken: Run | None = None
    lost: list[LostAttempt] = []
    for row in await connection.rows(expired.with_for_update(skip_locked=True)):
        if row.cancel_requested or row.attempt >= row.max_attempts:
            run, figures = await _end_abandoned(connection, row)
        elif taken is None and run_id in (None, row.id):
            figures = await lose_attempt(connection, row)
            # It has waited since its lease ended, and not since it was queued.
            begun = _begun(connection, worker, lease_seconds) | {"not_before": min(row.lease_until, row.now)}
            row = await move(connection, row, Event.CLAIM, **begun)
            run = taken = await _attempt(connection, row)
        else:
            continue
        lost += [LostAttempt(run, of_attempt) for of_attempt in figures]
    return taken, lost


def _begun(connection: Connection, worker: str, lease_seconds: float) -> dict[str, Any]:
    """The columns of a run whose next attempt begins."""
    now, columns = connection.moment(), RUNS.c
    last_commit = select(REPOSITORIES.c.last_commit).where(REPOSITORIES.c.id == columns.repository_id)
    # At the start of a later attempt it would be a commit that an earlier one has published.
    before = case((columns.first_started_at.is_(None), last_commit.scalar_subquery()), else_=columns.commit_before)
    return {
        "worker": worker,
        "attempt": columns.attempt + 1,
        "lease_until": connection.moment(lease_seconds),
        "started_at": now,
        "first_started_at": func.coalesce(columns.first_started_at, columns.started_at, now),
        "commit_before": before,
    }


async def _attempt(connection: Connection, row: Row[Any]) -> Run:
    """Record that it begins. Returns its run."""
    begun = {"attempt": row.attempt, "worker": row.worker, "started_at": row.started_at}
    await connection.execute(ATTEMPTS.insert().values(run_id=row.id, **begun, **dict.fromkeys(COUNTS, 0)))
    return Run.of(row)


async def _shorten_waits(connection: Connection) -> None:
    """A living worker renews its lease at the next heartbeat; that of a dead one ends after the longest possible. So do
    pauses."""
    cut = update(RUNS).where(is_active(), _unbelievable(connection))
    await connection.execute(cut.values(lease_until=connection.moment(LONGEST_LEASE_SECONDS)))
    for status, longest_seconds in _LONGEST_PAUSES_SECONDS.items():
        cut = update(RUNS).where(is_active(), _paused_too_long(connection, status))
        await connection.execute(cut.values(not_before=connection.moment(longest_seconds)))


async def _end_abandoned(connection: Connection, row: Row[Any]) -> tuple[Run, list[RunFigures]]:
    figures, counts = await lose_attempt(connection, row), total_counts(row.id)
    registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == row.repository_id)
    if row.removal and not row.repair and await connection.scalar(registered) is None:
        done = {"error_code": None, "error_message": REMOVED_BEFORE}
        return Run.of(await move(connection, row, Event.COMPLETE, **counts, **done)), figures
    if row.cancel_requested:
        return Run.of(await move(connection, row, Event.STOP, **counts)), figures
    message = (
        f"The worker died, or froze past its lease, and no attempt is left after {row.attempt} (the last "
        f"worker was {row.worker}). See its log: common causes are a lack of memory and a killed container."
    )
    why = {"error_code": "RUN_ABANDONED", "error_message": message}
    return Run.of(await move(connection, row, Event.FAIL, **counts, **why)), figures
