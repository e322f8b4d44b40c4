"""What watchers ask again and again: small queries by primary key, each for all of them at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, literal_column, select

from reposync.store.database import Database
from reposync.store.run import Run, run_record
from reposync.store.tables import REPOSITORIES, REQUESTS, RUNS, VERSIONS, live_commit, with_live_version
from reposync.store.versions import VersionState

# SQLite takes 32,766 variables a statement; watchers are bounded far below.
MAX_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class IndexedCommit:
    """What the index holds of a repository: `commit` completely, since `last_sync_at` at the latest. Both None where
    there was no complete sync since it was registered or registered differently."""

    repository_id: str
    name: str
    commit: str | None
    last_sync_at: datetime | None
    is_active: bool
    paused_reason: str | None


async def runs_by_id(database: Database, ids: Collection[str]) -> dict[str, Run]:
    """By full ids; what was purged is left out. Raises StoreUnavailable."""
    query = select(RUNS).where(RUNS.c.id.in_(sorted(ids)[:MAX_KEYS]))
    async with database.read() as connection:
        return {row.id: run_record(row) for row in await connection.execute(query)}


async def run_of_request(database: Database, request_id: str) -> Run | None:
    """The run that does what was asked; None if that is no longer in the history. Raises StoreUnavailable."""
    query = select(*RUNS.c).join_from(REQUESTS, RUNS, REQUESTS.c.run_id == RUNS.c.id).where(REQUESTS.c.id == request_id)
    async with database.read() as connection:
        row = (await connection.execute(query)).one_or_none()
    return None if row is None else run_record(row)


async def indexed_commits(database: Database, ids: Collection[str]) -> dict[str, IndexedCommit]:
    """Of the repositories with these ids; those that were removed are left out. Raises StoreUnavailable."""
    each = REPOSITORIES.c
    columns = (each.id, each.name, live_commit(), each.last_sync_at, each.is_active, each.paused_reason)
    query = with_live_version(select(*columns)).where(each.id.in_(sorted(ids)[:MAX_KEYS]))
    async with database.read() as connection:
        return {row.id: IndexedCommit(*row) for row in await connection.execute(query)}


async def incomplete_versions(database: Database) -> dict[str, str]:
    """Name of a repository -> id of its live version, of those that lack files of their commit because these could not
    be read. Raises StoreUnavailable."""
    live = VERSIONS.c.state == literal_column(f"'{VersionState.LIVE}'")
    lacks_files = and_(VERSIONS.c.repository_id == REPOSITORIES.c.id, live, VERSIONS.c.partial_commit.is_not(None))
    query = select(REPOSITORIES.c.name, VERSIONS.c.id).select_from(REPOSITORIES).join(VERSIONS, lacks_files)
    async with database.read() as connection:
        return {row[0]: row[1] for row in await connection.execute(query)}
