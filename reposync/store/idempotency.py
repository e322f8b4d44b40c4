"""Requests that may be repeated: the same key asks for the same run, however often, on however many pods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepoSyncError
from reposync.store.database import Database
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from reposync.store.tables import IDEMPOTENCY_KEYS

KEPT_SECONDS = 24 * 3600.0
# Each new key takes some old ones away: the table is bounded by a day's keys, and nobody has to clean it.
_FORGOTTEN_AT_ONCE = 20


class IdempotencyKeyReused(RepoSyncError):
    """The key was sent before, with another request."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422


@dataclass(frozen=True, slots=True)
class Answered:
    """`answer`: what was said to the first request with the key; `is_repeat`: this is not the first."""

    run_id: str
    answer: Mapping[str, Any]
    is_repeat: bool


class IdempotentRuns:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = Runs(database)

    async def enqueue(
        self,
        key: str,
        fingerprint: str,
        repository: str,
        trigger: RunTrigger,
        *,
        answer: Callable[[Run], Mapping[str, Any]],
        full: bool = False,
        approved: bool = False,
        max_attempts: int,
    ) -> Answered:
        """`Runs.enqueue`, once for each key in 24 hours: key and run are written together or not at all, and whoever
        comes with the same key at the same time waits for that. `fingerprint`: what the key is for; `answer`: what to
        tell of the run, JSON, kept for those who ask again.

        Raises IdempotencyKeyReused, and RepositoryNotFound, which uses up no key.
        """
        async with self._database.write() as connection:
            if not await self._take(connection, key, fingerprint):
                before = await self._before(connection, key, fingerprint)
                if before is not None:
                    return before
            run, _ = await self._runs.enqueue(
                repository, trigger, full=full, approved=approved, max_attempts=max_attempts, within=connection
            )
            told = json.dumps(answer(run))
            mine = IDEMPOTENCY_KEYS.update().where(IDEMPOTENCY_KEYS.c.key == key)
            await connection.execute(mine.values(run_id=run.id, answer=told))
            return Answered(run.id, json.loads(told), False)

    async def answered(self, key: str, fingerprint: str) -> Answered | None:
        """What was answered to the request with this key; None if it is free. Raises IdempotencyKeyReused."""
        async with self._database.read() as connection:
            return await self._before(connection, key, fingerprint)

    async def _take(self, connection: AsyncConnection, key: str, fingerprint: str) -> bool:
        """Whether the key was free. PostgreSQL waits here for another transaction that takes the same one."""
        over = IDEMPOTENCY_KEYS.c.created_at < self._database.moment(-KEPT_SECONDS)
        await connection.execute(delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.key == key, over))
        new = {
            "key": key,
            "fingerprint": fingerprint,
            "run_id": "",
            "answer": "",
            "created_at": self._database.moment(),
        }
        insert = self._database.insert(IDEMPOTENCY_KEYS).values(**new).on_conflict_do_nothing()
        if not (await connection.execute(insert)).rowcount:
            return False
        old = select(IDEMPOTENCY_KEYS.c.key).where(over).order_by(IDEMPOTENCY_KEYS.c.created_at)
        # Others clean up at the same moment.
        old = old.limit(_FORGOTTEN_AT_ONCE).with_for_update(skip_locked=True)
        keys = (await connection.scalars(old)).all()
        if keys:
            await connection.execute(delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.key.in_(keys)))
        return True

    async def _before(self, connection: AsyncConnection, key: str, fingerprint: str) -> Answered | None:
        fresh = IDEMPOTENCY_KEYS.c.created_at >= self._database.moment(-KEPT_SECONDS)
        query = select(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.key == key, fresh)
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        if row.fingerprint != fingerprint:
            raise IdempotencyKeyReused(
                "This Idempotency-Key was sent with another request before.",
                remedy="Send a new key with each new request, and the same one only to repeat it.",
            )
        return Answered(row.run_id, json.loads(row.answer), True)
