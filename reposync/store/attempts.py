"""A worker's attempt at a run: the fence of its writes, and its row in `run_attempts`."""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import LeaseLost
from reposync.store.database import Database
from reposync.store.run import COUNTS, LostAttempt, Run, RunAttempt, RunFigures
from reposync.store.status import LOST, RELEASED, RunStatus
from reposync.store.tables import ATTEMPTS, RUNS

# A state and not an amount of work: that of the latest attempt counts.
_LATEST = "files_failed"
# More than there are reasons for which runs are handed back, each of which has a row.
_REASONS = 10


class Attempt(Protocol):
    """One worker's try at a run (a `Run` as `claim` returned it)."""

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker(self) -> str | None: ...


# The fence -----------------------------------------------------------------------------------------------------------


def held_by(run: Attempt) -> ColumnElement[bool]:
    """True of the run's row until it is taken over, ended or handed back. `attempt` only increases."""
    return and_(
        RUNS.c.id == run.id,
        RUNS.c.attempt == run.attempt,
        RUNS.c.worker == run.worker,
        RUNS.c.status == RunStatus.RUNNING,
    )


def lease_lost(run: Attempt) -> LeaseLost:
    return LeaseLost(f"Run {run.id} is no longer attempt {run.attempt} of {run.worker}; nothing was written.")


async def require_held(connection: AsyncConnection, run: Attempt) -> None:
    """Raises LeaseLost unless the run is still this attempt's, and locks the row against a takeover until the
    transaction ends. If the repository's row is locked too, lock that one first."""
    held = await connection.scalar(select(RUNS.c.id).where(held_by(run)).with_for_update(read=True))
    if held is None:
        raise lease_lost(run)


# Rows of attempts ----------------------------------------------------------------------------------------------------


async def begin_attempt(connection: AsyncConnection, run: Any) -> list[LostAttempt]:
    """`run` was just claimed: a row of `sync_runs`. Returns the previous attempt if it never ended."""
    lost = await lose_attempt(connection, run, run.started_at)
    same = {"attempt": run.attempt, "worker": run.worker, "started_at": run.started_at}
    await connection.execute(ATTEMPTS.insert().values(run_id=run.id, **same, **dict.fromkeys(COUNTS, 0)))
    return lost


async def record_figures(connection: AsyncConnection, run: Attempt, figures: RunFigures) -> dict[str, int]:
    """What the attempt did so far: all that remains known if its worker dies. Returns the `total_counts`."""
    await connection.execute(update(ATTEMPTS).where(_is(run)).values(**_counts(figures)))
    return await total_counts(connection, run.id)


async def total_counts(connection: AsyncConnection, run_id: str) -> dict[str, int]:
    """The counts of all attempts of the run, which its own row repeats."""
    mine = ATTEMPTS.c.run_id == run_id
    latest = select(ATTEMPTS.c[_LATEST]).where(mine).order_by(ATTEMPTS.c.attempt.desc()).limit(1).scalar_subquery()
    sums = {name: func.sum(ATTEMPTS.c[name]) for name in COUNTS} | {_LATEST: latest}
    totals = select(*(func.coalesce(total, 0).label(name) for name, total in sums.items()))
    row = (await connection.execute(totals.where(mine))).one()
    return {name: int(getattr(row, name)) for name in COUNTS}


async def end_attempt(
    connection: AsyncConnection,
    database: Database,
    run: Attempt,
    outcome: str,
    figures: RunFigures | None,
    error_code: str | None = None,
    error_message: str | None = None,
) -> dict[str, int]:
    """Returns the `total_counts`. `figures` None: the recorded ones are final."""
    ending = {"outcome": outcome, "ended_at": database.moment(), "error_code": error_code}
    counts = _counts(figures) if figures is not None else {}
    await connection.execute(update(ATTEMPTS).where(_is(run)).values(**ending, **counts, error_message=error_message))
    return await total_counts(connection, run.id)


async def lose_attempt(connection: AsyncConnection, run: Any, now: datetime) -> list[LostAttempt]:
    """The unfinished attempt of `run`, a row, has no worker any more. Empty if there is no such attempt."""
    goes_on = update(ATTEMPTS).where(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.ended_at.is_(None))
    rows = await connection.execute(goes_on.values(outcome=LOST, ended_at=now).returning(*ATTEMPTS.c))
    return [
        LostAttempt(
            Run.of(run),
            max(0.0, (now - row.started_at).total_seconds()),
            RunFigures(**{name: getattr(row, name) for name in COUNTS}),
        )
        for row in rows
    ]


async def explain_attempt(connection: AsyncConnection, run: Attempt, code: str, message: str | None) -> None:
    """Record why an attempt ended, unless a reason is recorded already."""
    unknown = update(ATTEMPTS).where(_is(run), ATTEMPTS.c.error_code.is_(None))
    await connection.execute(unknown.values(error_code=code, error_message=message))


async def fold_attempt(connection: AsyncConnection, run: Attempt) -> None:
    """The attempt was just handed back for a reason: merge its row with that of an earlier one with the same reason if
    no work was done since. A lock that is held for a day causes 1,440 attempts."""
    latest = select(ATTEMPTS).where(ATTEMPTS.c.run_id == run.id).order_by(ATTEMPTS.c.attempt.desc())
    idle = list(takewhile(_did_nothing, await connection.execute(latest.limit(_REASONS))))
    if not idle:
        return
    mine, *earlier = idle
    same = next((each for each in earlier if each.error_code == mine.error_code), None)
    if same is None:
        return
    last = {"worker": mine.worker, "ended_at": mine.ended_at, "error_message": mine.error_message}
    row = and_(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt == same.attempt)
    await connection.execute(update(ATTEMPTS).where(row).values(times=same.times + mine.times, **last))
    await connection.execute(delete(ATTEMPTS).where(_is(run)))


def _did_nothing(row: Any) -> bool:
    return row.outcome == RELEASED and row.error_code is not None and not any(getattr(row, name) for name in COUNTS)


async def cancel_attempts(
    connection: AsyncConnection, runs: Select[tuple[str]], now: ColumnElement[datetime], **reason: str
) -> None:
    """End the unfinished attempts of these runs (by id)."""
    go_on = update(ATTEMPTS).where(ATTEMPTS.c.run_id.in_(runs), ATTEMPTS.c.ended_at.is_(None))
    await connection.execute(go_on.values(outcome=RunStatus.CANCELLED, ended_at=now, **reason))


async def attempts_of(connection: AsyncConnection, run_id: str) -> list[RunAttempt]:
    """Oldest first."""
    query = select(ATTEMPTS).where(ATTEMPTS.c.run_id == run_id).order_by(ATTEMPTS.c.attempt)
    return [RunAttempt.of(row) for row in await connection.execute(query)]


def _is(run: Attempt) -> ColumnElement[bool]:
    return and_(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt == run.attempt)


def _counts(figures: RunFigures) -> dict[str, int]:
    return figures.model_dump(include=set(COUNTS))
