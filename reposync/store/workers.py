"""Which workers there are: each says so again and again, by the database's clock.

A command that finds one leaves its run to it. A row says that a worker claims runs, and not that it is busy: the lease
of a run says who executes it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select

from reposync.store.database import Database
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.tables import WORKERS

BEAT_SECONDS = 5.0
ALIVE_SECONDS = 15.0
"""As long as a lease: a worker that was not heard of for so long executes nothing."""
_KEPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`name` as in the rows of its runs; `host`: the machine; `version` of its program. Times are aware UTC.
    `clock_skew_seconds`: how far its machine's clock is ahead of the database's; None: its program
    does not measure it."""

    name: str
    host: str
    version: str
    started_at: datetime
    seen_at: datetime
    clock_skew_seconds: float | None


class Workers:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, name: str, *, host: str, version: str) -> None:
        """This worker begins to claim runs. Removes the rows of workers that left without a word long ago."""
        forgotten = WORKERS.c.seen_at < self._database.moment(-_KEPT_SECONDS)
        gone = select(WORKERS.c.name).where(forgotten).with_for_update(skip_locked=True)
        async with self._database.write() as connection:
            await connection.execute(delete(WORKERS).where(WORKERS.c.name.in_(gone)))
            seen = self._seen()
            new = self._database.insert(WORKERS).values(
                name=name, host=host, version=version, started_at=seen["seen_at"], **seen
            )
            await connection.execute(
                new.on_conflict_do_update(index_elements=[WORKERS.c.name], set_={"seen_at": new.excluded.seen_at})
            )

    async def beat(self, name: str) -> bool:
        """This worker goes on. False: its row is gone, as after hours of standing still; it is to join again."""
        mine = WORKERS.update().where(WORKERS.c.name == name).values(**self._seen())
        async with self._database.write() as connection:
            return bool((await connection.execute(mine)).rowcount)

    async def leave(self, name: str) -> None:
        """This worker claims no more runs."""
        async with self._database.write() as connection:
            await connection.execute(delete(WORKERS).where(WORKERS.c.name == name))

    async def alive(self) -> list[Worker]:
        """Those that were heard of within ALIVE_SECONDS, the oldest first."""
        columns = [WORKERS.c[each.name] for each in fields(Worker)]
        # Nobody was heard of in the future: the database's clock was set back since.
        lately = self._database.moment(-ALIVE_SECONDS), self._database.moment(AHEAD_SECONDS)
        query = select(*columns).where(WORKERS.c.seen_at.between(*lately))
        async with self._database.read() as connection:
            rows = await connection.execute(query.order_by(WORKERS.c.started_at, WORKERS.c.name))
            return [Worker(**row._mapping) for row in rows]

    def _seen(self) -> dict[str, Any]:
        return {"seen_at": self._database.moment(), "clock_skew_seconds": self._database.clock.skew_seconds}
