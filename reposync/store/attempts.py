"""The attempts of a run, one row each: what the run's own row shows of the latest is kept here of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.database import Database
from reposync.store.fence import Attempt
from reposync.store.run import Run, RunFigures, run_record
from reposync.store.status import RunStatus
from reposync.store.tables import ATTEMPTS

LOST, RELEASED, YIELDED = "lost", "released", "yielded"
"""Outcomes of an attempt that are no status of a run: its worker vanished; it handed the run back because it was told
to stop; it let others go first. Otherwise an attempt's outcome is the status that it gave the run."""

_COUNTS = tuple(each.name for each in fields(RunFigures) if not each.name.startswith("commit_"))
# A state and no amount of work: what the latest attempt left.
_LATEST = "files_failed"
# More than the reasons for which runs are handed back, each of which has a row.
_REASONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttempt:
    """`outcome` and `ended_at` are None while it goes on. The figures are of this attempt alone. `times`: how many
    attempts the row stands for, see `AttemptRow`."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    times: int
    files_processed: int
    files_deleted: int
    files_skipped: int
    files_failed: int
    chunks_embedded: int
    chunks_reused: int
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """Its worker vanished: `run` as whoever noticed found it. `figures`: of its last heartbeat."""

    run: Run
    seconds: float
    figures: RunFigures


async def begin_attempt(connection: AsyncConnection, run: Any) -> list[LostAttempt]:
    """`run` was just claimed: a row of `sync_runs`. Returns the attempt before it if that never ended."""
    lost = await lose_attempt(connection, run, run.started_at)
    await connection.execute(
        ATTEMPTS.insert().values(
            run_id=run.id,
            attempt=run.attempt,
            worker=run.worker,
            started_at=run.started_at,
            **dict.fromkeys(_COUNTS, 0),
        )
    )
    return lost


async def note_figures(connection: AsyncConnection, run: Attempt, figures: RunFigures) -> dict[str, int]:
    """What the attempt did so far: if its worker dies, this is all that is known of it. Returns as `noted_figures`."""
    await connection.execute(update(ATTEMPTS).where(_is(run)).values(**_counts(figures)))
    return await noted_figures(connection, run.id)


async def noted_figures(connection: AsyncConnection, run_id: str) -> dict[str, int]:
    """The counts of all attempts of the run together, which its own row repeats."""
    mine = ATTEMPTS.c.run_id == run_id
    latest = select(ATTEMPTS.c[_LATEST]).where(mine).order_by(ATTEMPTS.c.attempt.desc()).limit(1).scalar_subquery()
    sums = {name: func.sum(ATTEMPTS.c[name]) for name in _COUNTS} | {_LATEST: latest}
    totals = select(*(func.coalesce(total, 0).label(name) for name, total in sums.items()))
    row = (await connection.execute(totals.where(mine))).one()
    return {name: int(getattr(row, name)) for name in _COUNTS}


async def end_attempt(
    connection: AsyncConnection,
    database: Database,
    run: Attempt,
    outcome: str,
    figures: RunFigures | None,
    error_code: str | None = None,
    error_message: str | None = None,
) -> dict[str, int]:
    """Returns as `noted_figures`. `figures` None: what was noted before holds."""
    ending = {"outcome": outcome, "ended_at": database.moment(), "error_code": error_code}
    counts = _counts(figures) if figures is not None else {}
    await connection.execute(update(ATTEMPTS).where(_is(run)).values(**ending, **counts, error_message=error_message))
    return await noted_figures(connection, run.id)


async def lose_attempt(connection: AsyncConnection, run: Any, now: datetime) -> list[LostAttempt]:
    """The attempt of `run`, a row, that goes on has no worker any more; none, if there is no such attempt."""
    goes_on = update(ATTEMPTS).where(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.ended_at.is_(None))
    rows = await connection.execute(goes_on.values(outcome=LOST, ended_at=now).returning(*ATTEMPTS.c))
    return [
        LostAttempt(
            run_record(run),
            max(0.0, (now - row.started_at).total_seconds()),
            RunFigures(**{name: getattr(row, name) for name in _COUNTS}),
        )
        for row in rows
    ]


async def explain_attempt(connection: AsyncConnection, run: Attempt, code: str, message: str | None) -> None:
    """For one that ended without a reason, or is about to."""
    unknown = update(ATTEMPTS).where(_is(run), ATTEMPTS.c.error_code.is_(None))
    await connection.execute(unknown.values(error_code=code, error_message=message))


async def fold_attempt(connection: AsyncConnection, run: Attempt) -> None:
    """The attempt, which has just been handed back for a reason, joins the row of an earlier one that was handed back
    for the same, if nothing was done since that one began: a lock that is held for a day is looked at 1,440 times."""
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
    return row.outcome == RELEASED and row.error_code is not None and not any(getattr(row, name) for name in _COUNTS)


async def break_off_attempts(
    connection: AsyncConnection, runs: Select[tuple[str]], now: ColumnElement[datetime], **said: str
) -> None:
    """The attempts of these runs (by id) that go on are ended by somebody else's will."""
    go_on = update(ATTEMPTS).where(ATTEMPTS.c.run_id.in_(runs), ATTEMPTS.c.ended_at.is_(None))
    await connection.execute(go_on.values(outcome=RunStatus.CANCELLED, ended_at=now, **said))


async def attempts_of(connection: AsyncConnection, run_id: str) -> list[RunAttempt]:
    """The first one first."""
    columns = [ATTEMPTS.c[each.name] for each in fields(RunAttempt)]
    query = select(*columns).where(ATTEMPTS.c.run_id == run_id).order_by(ATTEMPTS.c.attempt)
    return [RunAttempt(**row._mapping) for row in await connection.execute(query)]


def _is(run: Attempt) -> Any:
    return (ATTEMPTS.c.run_id == run.id) & (ATTEMPTS.c.attempt == run.attempt)


def _counts(figures: RunFigures) -> dict[str, int]:
    return {name: number for name, number in asdict(figures).items() if name in _COUNTS}
