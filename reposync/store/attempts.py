"""A worker's attempt at a run: how it is claimed, the fence of its writes, and its row in `run_attempts`.

If two workers try to claim a run at the same time, row locks on PostgreSQL, the single writer on SQLite, and below both
the unique index over running runs ensure that one of them gets it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, or_, select, update

from reposync.config.sections import LONGEST_LEASE_SECONDS
from reposync.errors import CANNOT_HERE, LOCKED, LeaseLost
from reposync.outgoing import LONGEST_WAIT_SECONDS
from reposync.store.database import Connection, Guard
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.run import COUNTS, LostAttempt, Run, RunFigures
from reposync.store.run_state import Event, attempt_end, locked, move, with_now
from reposync.store.status import LOST, RELEASED, WAITING, RunStatus
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


async def total_counts(connection: Connection, run_id: str, *, is_over: bool = True) -> dict[str, int]:
    """The counts of all attempts of the run, which its own row repeats. Skipped files, of which there may be many, are
    counted if the attempt `is_over`: they are those that the run lists."""
    mine = ATTEMPTS.c.run_id == run_id
    latest = select(ATTEMPTS.c[_LATEST]).where(mine).order_by(ATTEMPTS.c.attempt.desc()).limit(1).scalar_subquery()
    sums = {name: func.sum(ATTEMPTS.c[name]) for name in COUNTS} | {_LATEST: latest}
    totals = select(*(func.coalesce(total, 0).label(name) for name, total in sums.items()))
    counts = _counts(await connection.one(totals.where(mine)))
    if is_over:
        listed = select(func.count()).where(PROBLEMS.c.run_id == run_id, PROBLEMS.c.reason != "failed")
        counts[_LISTED] = await connection.scalar(listed)
    else:
        del counts[_LISTED]
    return {name: int(value) for name, value in counts.items()}


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


async def fold_attempt(connection: Connection, run: Run | Row[Any]) -> None:
    """The attempt was just handed back for a reason: if it did nothing, merge its row with an earlier one of the same
    reason, unless an attempt in between did more than wait for a lock or for a process that can execute the run. A lock
    that is held for a day causes 1,440 attempts."""
    rows = await connection.rows(
        select(ATTEMPTS)
        .where(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt <= run.attempt)
        .order_by(ATTEMPTS.c.attempt.desc())
    )
    mine = rows[0]
    if any(_counts(mine).values()):
        return
    for earlier in rows[1:]:
        if earlier.outcome != RELEASED or any(_counts(earlier).values()):
            return
        if earlier.error_code == mine.error_code:
            break
        if earlier.error_code not in CANNOT_HERE | LOCKED:
            return
    else:
        return
    last = {"worker": mine.worker, "ended_at": mine.ended_at, "error_message": mine.error_message}
    same = and_(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt == earlier.attempt)
    await connection.execute(update(ATTEMPTS).where(same).values(times=ATTEMPTS.c.times + 1, **last))
    await connection.execute(delete(ATTEMPTS).where(is_attempt(run)))


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


def _exhausted_or_cancelled() -> ColumnElement[bool]:
    return or_(RUNS.c.cancel_requested, RUNS.c.attempt >= RUNS.c.max_attempts)


def _orphaned(connection: Connection) -> ColumnElement[bool]:
    return and_(_expired(connection), ~_exhausted_or_cancelled())


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


async def anything_to_claim(connection: Connection, run_id: str | None) -> bool:
    """Whether a claim would do anything. Takes no lock: most polls find nothing."""
    too_long = (_paused_too_long(connection, status) for status in _LONGEST_PAUSES_SECONDS)
    expired = or_(_expired(connection), _unbelievable(connection), *too_long)
    query = select(RUNS.c.id).where(is_active(), or_(_due(connection), expired))
    if run_id is not None:
        # An expired run of the same repository blocks this one, so it counts as well.
        query = query.where(or_(RUNS.c.id == run_id, expired))
    return await connection.scalar(query.limit(1)) is not None


async def shorten_waits(connection: Connection) -> None:
    """A living worker renews its lease at the next heartbeat; that of a dead one ends after the longest possible. So do
    pauses."""
    cut = update(RUNS).where(is_active(), _unbelievable(connection))
    await connection.execute(cut.values(lease_until=connection.moment(LONGEST_LEASE_SECONDS)))
    for status, longest_seconds in _LONGEST_PAUSES_SECONDS.items():
        cut = update(RUNS).where(is_active(), _paused_too_long(connection, status))
        await connection.execute(cut.values(not_before=connection.moment(longest_seconds)))


async def others_claimable(connection: Connection, identity: str) -> bool:
    """Whether `take` would find a run of a different repository than this one."""
    claimable = or_(_due(connection), _orphaned(connection))
    query = select(RUNS.c.id).where(is_active(), claimable, RUNS.c.repository_id != identity)
    return await connection.scalar(query.limit(1)) is not None


async def end_abandoned(connection: Connection) -> list[LostAttempt]:
    """End the runs whose worker died and that are not taken over: they were to be cancelled, or killed their worker so
    often that the next one would die as well. Returns their last attempts."""
    lost: list[LostAttempt] = []
    query = locked(connection, _expired(connection), _exhausted_or_cancelled()).with_for_update(skip_locked=True)
    for row in await connection.rows(query):
        figures = await lose_attempt(connection, row)
        counts = await total_counts(connection, row.id)
        registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == row.repository_id)
        if row.removal and not row.repair and await connection.scalar(registered) is None:
            ended = await move(connection, row, Event.COMPLETE, **counts, error_message=REMOVED_BEFORE)
        elif row.cancel_requested:
            ended = await move(connection, row, Event.STOP, **counts)
        else:
            message = (
                f"The worker died, or froze past its lease, and no attempt is left after {row.attempt} (the last "
                f"worker was {row.worker}). See its log: common causes are a lack of memory and a killed container."
            )
            why = {"error_code": "RUN_ABANDONED", "error_message": message}
            ended = await move(connection, row, Event.FAIL, **counts, **why)
        lost += [LostAttempt(Run.of(ended), each) for each in figures]
    return lost


async def take(
    connection: Connection, worker: str, lease_seconds: float, run_id: str | None
) -> tuple[Run | None, list[LostAttempt]]:
    """Claim the first run that can be executed now, and return it with the lost attempt before it. Runs whose worker
    died go first: waiting runs may depend on them. IntegrityError: a different worker claimed a run of the same
    repository at the same time."""
    # Separate queries, each with its index: one condition for both would sort the whole queue.
    for which in (_orphaned(connection), _due(connection)):
        query = with_now(connection, which) if run_id is None else with_now(connection, which, RUNS.c.id == run_id)
        query = query.order_by(*CLAIM_ORDER).limit(1).with_for_update(skip_locked=True)
        if (chosen := await connection.one_or_none(query)) is not None:
            break
    else:
        return None, []
    claimed: dict[str, Any] = {
        "worker": worker,
        "attempt": RUNS.c.attempt + 1,
        "lease_until": connection.moment(lease_seconds),
        "started_at": chosen.now,
    }
    if chosen.status == RunStatus.RUNNING:
        # It has waited since its lease ended, and not since it was queued.
        claimed["not_before"] = min(chosen.lease_until, chosen.now)
    figures = await lose_attempt(connection, chosen) if chosen.status == RunStatus.RUNNING else []
    row = await move(connection, chosen, Event.CLAIM, **claimed)
    begun = {"attempt": row.attempt, "worker": row.worker, "started_at": row.started_at}
    await connection.execute(ATTEMPTS.insert().values(run_id=row.id, **begun, **dict.fromkeys(COUNTS, 0)))
    return Run.of(row), [LostAttempt(Run.of(row), each) for each in figures]
