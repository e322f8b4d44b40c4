"""Shortening the execution log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, case, delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.status import FINAL, RunStatus
from reposync.store.tables import MISSED_TICKS, RUNS

# Some tens of milliseconds, for which SQLite's other writers wait.
PURGED_AT_ONCE = 500
# What is nearer comes within a day, and keeps its place in the history.
_FAR = timedelta(days=1)


async def date_back(connection: AsyncConnection, now: datetime) -> None:
    """Runs and missed ticks of a future that is more than a day away count from now on: they were written while the
    database's clock was ahead, and would stay until that date."""
    runs = update(RUNS).where(RUNS.c.queued_at > now + _FAR)
    past = {name: case((RUNS.c[name] > now, now), else_=RUNS.c[name]) for name in ("started_at", "completed_at")}
    await connection.execute(runs.values(queued_at=now, **past))
    ticks = update(MISSED_TICKS).where(MISSED_TICKS.c.noticed_at > now + _FAR)
    await connection.execute(ticks.values(noticed_at=now))


async def purge_some(
    connection: AsyncConnection, before: datetime, after: Row[Any, Any] | None, limit: int
) -> Sequence[Row[Any, Any]]:
    """Delete the oldest runs that ended before that moment; the database takes their attempts, requests and
    problems along.
    `after`: the last one that the call before deleted. PostgreSQL's index keeps what was deleted until a vacuum, and
    each call would pass by all of it again."""
    query = select(RUNS.c.queued_at, RUNS.c.id).where(
        RUNS.c.queued_at < before,  # what ended before was queued before, and this is what there is an index for
        RUNS.c.completed_at < before,
        RUNS.c.status.in_(FINAL - {RunStatus.BLOCKED}),
    )
    if after is not None:
        query = query.where(tuple_(RUNS.c.queued_at, RUNS.c.id) > tuple_(after.queued_at, after.id))
    query = query.order_by(RUNS.c.queued_at, RUNS.c.id).limit(limit).with_for_update(skip_locked=True, of=RUNS)
    page = (await connection.execute(query)).all()
    if page:
        await connection.execute(delete(RUNS).where(RUNS.c.id.in_([row.id for row in page])))
    return page


async def forget_missed_ticks(connection: AsyncConnection, before: datetime) -> None:
    await connection.execute(delete(MISSED_TICKS).where(MISSED_TICKS.c.noticed_at < before))
