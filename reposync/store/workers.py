"""Rows of processes and browsers that are valid for a while, by the database's clock: living workers, and sessions that
were signed out.

A command leaves its run to the workers. A row means that a worker claims runs, and not that it is busy: the lease of a
run names its worker."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, exists, select

from reposync.config.sections import LEASE_SECONDS
from reposync.store.database import Database, Stored
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.people_tables import ENDED_SESSIONS
from reposync.store.tables import WORKERS, Worker

BEAT_SECONDS = 5.0
ALIVE_SECONDS = LEASE_SECONDS
"""A worker without a heartbeat for this long executes nothing."""
_KEPT_SECONDS = 3600.0


class Workers(Stored):
    async def beat(self, name: str, *, host: str, version: str) -> None:
        """This worker claims runs, now or still. Deletes rows of workers that died long ago."""
        forgotten = WORKERS.c.seen_at < self._database.moment(-_KEPT_SECONDS)
        gone = select(WORKERS.c.name).where(forgotten).with_for_update(skip_locked=True)
        now = self._database.moment()
        new = self._database.insert(WORKERS).values(
            name=name,
            host=host,
            version=version,
            started_at=now,
            seen_at=now,
            clock_skew_seconds=self._database.clock.skew_seconds,
        )
        seen = {column: new.excluded[column] for column in ("seen_at", "clock_skew_seconds")}
        async with self._database.write() as connection:
            await connection.execute(delete(WORKERS).where(WORKERS.c.name.in_(gone)))
            await connection.execute(new.on_conflict_do_update(index_elements=[WORKERS.c.name], set_=seen))

    async def leave(self, name: str) -> None:
        """This worker claims no more runs."""
        await self._database.change(delete(WORKERS).where(WORKERS.c.name == name))

    async def alive(self) -> list[Worker]:
        """The workers with a heartbeat within ALIVE_SECONDS, the oldest first."""
        # No heartbeat can be in the future: the database's clock was set back since.
        lately = self._database.moment(-ALIVE_SECONDS), self._database.moment(AHEAD_SECONDS)
        query = select(WORKERS).where(WORKERS.c.seen_at.between(*lately))
        rows = await self._database.rows(query.order_by(WORKERS.c.started_at, WORKERS.c.name))
        return [Worker.of(row) for row in rows]


SESSIONS_KEPT_SECONDS = 24 * 3600.0
"""Twice the lifetime of a session: a pod whose clock is behind accepts a cookie for longer."""


class StoredEndedSessions:
    """Sessions that were signed out before they expired, on any pod.

    `database` may raise StoreUnavailable, as every method does.
    """

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database

    async def end(self, session_id: str) -> None:
        """Also deletes those whose cookies have expired."""
        database = self._database()
        over = ENDED_SESSIONS.c.ended_at < database.moment(-SESSIONS_KEPT_SECONDS)
        gone = select(ENDED_SESSIONS.c.id).where(over).with_for_update(skip_locked=True)
        new = database.insert(ENDED_SESSIONS).values(id=session_id, ended_at=database.moment())
        async with database.write() as connection:
            await connection.execute(delete(ENDED_SESSIONS).where(ENDED_SESSIONS.c.id.in_(gone)))
            await connection.execute(new.on_conflict_do_nothing())

    async def has_ended(self, session_id: str) -> bool:
        async with self._database().read() as connection:
            return bool(await connection.scalar(select(exists().where(ENDED_SESSIONS.c.id == session_id))))
