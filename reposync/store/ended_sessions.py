"""Browser sessions that were signed out, kept for as long as their cookies would otherwise be valid."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import delete, exists, select

from reposync.store.database import Database
from reposync.store.tables import ENDED_SESSIONS

KEPT_SECONDS = 24 * 3600.0
"""Twice the lifetime of a session: a pod whose clock is behind accepts a cookie for longer."""


class StoredEndedSessions:
    """`api.sessions.EndedSessions` for all pods. `database` may raise StoreUnavailable, as every method does."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._database = database

    async def end(self, session_id: str) -> None:
        """Also deletes those whose cookies have expired."""
        database = self._database()
        over = ENDED_SESSIONS.c.ended_at < database.moment(-KEPT_SECONDS)
        gone = select(ENDED_SESSIONS.c.id).where(over).with_for_update(skip_locked=True)
        new = database.insert(ENDED_SESSIONS).values(id=session_id, ended_at=database.moment())
        async with database.write() as connection:
            await connection.execute(delete(ENDED_SESSIONS).where(ENDED_SESSIONS.c.id.in_(gone)))
            await connection.execute(new.on_conflict_do_nothing())

    async def has_ended(self, session_id: str) -> bool:
        async with self._database().read() as connection:
            return bool(await connection.scalar(select(exists().where(ENDED_SESSIONS.c.id == session_id))))
