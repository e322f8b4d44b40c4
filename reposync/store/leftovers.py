"""Runs for what a repository left in the index that is registered no more."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from reposync.store.claims import take
from reposync.store.database import Database
from reposync.store.requests import add_requests, new_request, new_run
from reposync.store.run import Run
from reposync.store.status import RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, is_active


async def begin_leftover_removal(
    database: Database, identity: str, name: str, worker: str, lease_seconds: float, *, asked_by: str = ""
) -> Run | None:
    """A run that removes what is left of the repository with this id. Claimed by `worker` from its first moment on, so
    that nobody who registers that name anew finds it waiting and takes it for a sync. As long as it runs, no sync of
    that id begins. None where the id is registered, or a run of it is not over. Raises StoreUnavailable."""
    registered = select(REPOSITORIES.c.id).where(REPOSITORIES.c.id == identity)
    active = select(RUNS.c.id).where(RUNS.c.repository_id == identity, is_active()).limit(1)
    try:
        async with database.write() as connection:
            for known in (registered, active):
                if await connection.scalar(known) is not None:
                    return None
            now = database.moment()
            request = new_request(RunTrigger.COMMAND, now, asked_by=asked_by, max_attempts=1, removal=True, repair=True)
            run = new_run(identity, name, now, [request])
            await connection.execute(insert(RUNS).values(**run))
            await add_requests(connection, [request], run_id=run["id"], repository_id=identity)
            claimed, _ = await take(connection, database, worker, lease_seconds, run["id"])
            return claimed
    except IntegrityError:
        return None  # somebody registered it in this moment, and asked for a sync


async def ever_known(database: Database, identities: Collection[str]) -> dict[str, str]:
    """Those of these ids that had a run here, each with its latest name. Raises StoreUnavailable."""
    known: dict[str, str] = {}
    async with database.read() as connection:
        for identity in identities:
            latest = select(RUNS.c.repository).where(RUNS.c.repository_id == identity)
            name = await connection.scalar(latest.order_by(RUNS.c.queued_at.desc()).limit(1))
            if name is not None:
                known[identity] = str(name)
    return known
