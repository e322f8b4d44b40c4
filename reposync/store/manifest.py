"""The manifest: for every file of a repository, at which blob the index holds it, or why it does not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import bindparam, case, delete, func, select

from reposync.store.columns import path_key, storable
from reposync.store.database import Database
from reposync.store.fence import Attempt, hold
from reposync.store.tables import FILES

LOAD_ROWS = 5_000


class ManifestRow(NamedTuple):
    """One file. `path` is text as `path_text` makes it. `chunks` is how many points the index holds of it; 0 where
    `skip_reason` says why. `epoch` is that of the attempt that wrote its points. A tuple, because there are many."""

    path: str
    blob_sha: str
    mode: int
    size_bytes: int | None
    chunks: int
    skip_reason: str | None
    language: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class ManifestTotals:
    """`files` have points or at least no reason to lack them, `skipped` have a reason. `max_epoch` is the newest epoch
    that wrote any point that is still there (0: none did), `chunks_of_max_epoch` how many points are of it."""

    files: int
    chunks: int
    skipped: int
    max_epoch: int
    chunks_of_max_epoch: int


_VALUES = (FILES.c.blob_sha, FILES.c.mode, FILES.c.size_bytes, FILES.c.chunks, FILES.c.skip_reason, FILES.c.language)


@dataclass(frozen=True, slots=True)
class ManifestCounts:
    """Files that are indexed, files that are not, and the points of the first."""

    files: int = 0
    skipped: int = 0
    chunks: int = 0


class Manifests:
    """Every method raises StoreUnavailable; those that take a run raise LeaseLost and then have written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, repository_id: str) -> dict[str, ManifestRow]:
        """All rows by path. 50,000 take about 20 MB."""
        query = select(func.coalesce(FILES.c.long_path, FILES.c.path), *_VALUES, FILES.c.epoch).where(
            FILES.c.repository_id == repository_id
        )
        rows: dict[str, ManifestRow] = {}
        # The few values that most rows share need to be in memory once.
        shared: dict[str | None, str | None] = {}
        async with self._database.read(streams=True) as connection, connection.stream(query) as result:
            async for page in result.partitions(LOAD_ROWS):
                for path, blob_sha, mode, size_bytes, chunks, skip_reason, language, epoch in page:
                    rows[path] = ManifestRow(
                        path,
                        blob_sha,
                        mode,
                        size_bytes,
                        chunks,
                        shared.setdefault(skip_reason, skip_reason),
                        shared.setdefault(language, language),
                        epoch,
                    )
        return rows

    async def record(self, run: Attempt, repository_id: str, rows: Sequence[ManifestRow]) -> None:
        """Insert or replace by path, all of them or none."""
        if not rows:
            return
        insert = self._database.insert(FILES)
        replaced = [column.name for column in FILES.c if not column.primary_key]
        upsert = insert.on_conflict_do_update(
            index_elements=[FILES.c.repository_id, FILES.c.path],
            set_={name: insert.excluded[name] for name in replaced},
        )
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(upsert, [_stored(repository_id, row) for row in rows])

    async def forget(self, run: Attempt, repository_id: str, paths: Iterable[str]) -> None:
        """Delete the rows of these paths, all of them or none; a path that has no row is fine."""
        keys = [{"key": path_key(path)} for path in paths]
        if not keys:
            return
        query = delete(FILES).where(FILES.c.repository_id == repository_id, FILES.c.path == bindparam("key"))
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(query, keys)

    async def clear(self, run: Attempt, repository_id: str) -> None:
        """Delete all rows of the repository."""
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(delete(FILES).where(FILES.c.repository_id == repository_id))

    async def counts(self, identities: Collection[str] | None = None) -> dict[str, ManifestCounts]:
        """Of every repository (of these alone, where they are named) that has rows, by id."""
        query = select(
            FILES.c.repository_id,
            func.count().filter(FILES.c.skip_reason.is_(None)),
            func.count(FILES.c.skip_reason),
            func.coalesce(func.sum(FILES.c.chunks), 0),
        ).group_by(FILES.c.repository_id)
        if identities is not None:
            query = query.where(FILES.c.repository_id.in_(identities))
        async with self._database.read() as connection:
            return {row[0]: ManifestCounts(*map(int, row[1:])) for row in await connection.execute(query)}

    async def totals(self, repository_id: str) -> ManifestTotals:
        """What the index should hold, in one query."""
        mine = FILES.c.repository_id == repository_id
        newest = select(func.coalesce(func.max(FILES.c.epoch), 0)).where(mine, FILES.c.chunks > 0).scalar_subquery()
        query = select(
            func.count().filter(FILES.c.skip_reason.is_(None)),
            func.coalesce(func.sum(FILES.c.chunks), 0),
            func.count(FILES.c.skip_reason),
            newest,
            func.coalesce(func.sum(case((FILES.c.epoch == newest, FILES.c.chunks), else_=0)), 0),
        ).where(mine)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one()
        return ManifestTotals(*(int(value) for value in row))


def _stored(repository_id: str, row: ManifestRow) -> dict[str, object]:
    path, key = storable(row.path), path_key(row.path)
    return {
        **row._asdict(),
        "repository_id": repository_id,
        "path": key,
        "long_path": path if key != path else None,
    }
