"""What the page of the history shows beside its rows: how many runs there are of each status, equal errors, and figures
for charts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Select, func, literal_column, select

from reposync.store.database import Database
from reposync.store.history import narrowed
from reposync.store.run import RunFilter
from reposync.store.status import RunStatus
from reposync.store.tables import IS_IDLE, IS_NOT_IDLE, RUNS, is_over, status_is

MAX_ERRORS = 6


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed runs with the same code. `message`: of one of them."""

    code: str
    runs: int
    repositories: int
    message: str


class RunPoint(NamedTuple):
    """One run, for charts. `began_after`: seconds from its request to its start, if it had one attempt."""

    queued_at: datetime
    status: str
    files_failed: int
    duration_seconds: float | None
    began_after: float | None
    chunks_embedded: int


async def count_by_status(database: Database, wanted: RunFilter) -> tuple[dict[str, int], int]:
    """How many runs match, by status, and how many of the completed ones had nothing to do, which are counted whether
    `wanted` hides them or not."""
    eventful = _of(select(RUNS.c.status, func.count()), replace(wanted, hides_idle=False)).where(IS_NOT_IDLE)
    idle = _of(select(func.count()).select_from(RUNS), replace(wanted, hides_idle=False)).where(IS_IDLE)
    async with database.read() as connection:
        counts = {str(row[0]): row[1] for row in await connection.rows(eventful.group_by(RUNS.c.status))}
        hidden = await connection.scalar(idle) or 0
    return counts, hidden


async def equal_errors(database: Database, wanted: RunFilter) -> list[ErrorGroup]:
    """The most frequent codes of failed runs that match."""
    count = func.count()
    query = select(RUNS.c.error_code, count, func.count(RUNS.c.repository.distinct()), func.max(RUNS.c.error_message))
    failed = _of(query, replace(wanted, hides_idle=False)).where(
        is_over(), status_is(RunStatus.FAILED), RUNS.c.error_code.is_not(None)
    )
    rows = await database.rows(failed.group_by(RUNS.c.error_code).order_by(count.desc()).limit(MAX_ERRORS))
    return [ErrorGroup(row[0], row[1], row[2], row[3] or "") for row in rows]


async def run_points(
    database: Database, wanted: RunFilter, statuses: tuple[RunStatus, ...], most: int
) -> list[RunPoint]:
    """The newest runs that match, newest first. `statuses`: none are all."""
    columns = RUNS.c
    query: Select[Any] = select(
        columns.queued_at,
        columns.status,
        columns.files_failed,
        columns.duration_seconds,
        columns.started_at,
        columns.attempt,
        columns.chunks_embedded,
    )
    query = _of(query, wanted)
    if statuses:
        query = query.where(columns.status.concat("").in_([status.value for status in statuses]))
    rows = await database.rows(query.order_by(columns.queued_at.desc(), columns.id.desc()).limit(most))
    return [
        RunPoint(
            row.queued_at,
            str(row.status),
            row.files_failed,
            row.duration_seconds,
            (row.started_at - row.queued_at).total_seconds() if row.attempt == 1 and row.started_at else None,
            row.chunks_embedded,
        )
        for row in rows
    ]


def _of(query: Select[Any], wanted: RunFilter) -> Select[Any]:
    query = narrowed(query, wanted)
    if wanted.repository is not None:
        query = query.where(RUNS.c.repository == wanted.repository)
    if wanted.trigger is not None:
        # A literal: the plan of a prepared statement would be the same for frequent and for rare triggers.
        query = query.where(RUNS.c.trigger == literal_column(f"'{wanted.trigger.value}'"))
    if wanted.since is not None:
        query = query.where(RUNS.c.queued_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(RUNS.c.queued_at < wanted.until)
    return query
