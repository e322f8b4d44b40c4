"""The registry files that were applied, and which of their contents were superseded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepoSyncError
from reposync.store.database import REGISTRATIONS, Database
from reposync.store.tables import REGISTRY_FILES, SUPERSEDED_DIGESTS

Standing = Literal["new", "current", "superseded"]
"""Of a file's content: never applied (or applied again on request), in force, or replaced by a later one."""


class RegistrySuperseded(RepoSyncError):
    """Another process applied a newer content of the same file meanwhile."""

    code = "REGISTRY_SUPERSEDED"
    status = 409


@dataclass(frozen=True, slots=True)
class RegistryFile:
    """A row of `registry_files`."""

    path: str
    digest: str
    document: Mapping[str, Any]
    host: str
    applied_by: str
    applied_at: datetime
    created_at: datetime


class RegistryFiles:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[RegistryFile]:
        """In the order in which they were first applied."""
        query = select(REGISTRY_FILES).order_by(REGISTRY_FILES.c.created_at, REGISTRY_FILES.c.path)
        async with self._database.read() as connection:
            return [RegistryFile(**row._mapping) for row in await connection.execute(query)]

    async def stamp(self) -> Sequence[tuple[Any, ...]]:
        """Differs as soon as any file is applied, with other content or again."""
        columns = REGISTRY_FILES.c
        query = select(columns.path, columns.digest, columns.applied_at).order_by(columns.path)
        async with self._database.read() as connection:
            return [tuple(row) for row in await connection.execute(query)]

    async def standing(self, path: str, digest: str) -> Standing:
        async with self._database.read() as connection:
            return await self._standing(connection, path, digest)

    async def put(
        self,
        path: str,
        digest: str,
        document: Mapping[str, Any],
        *,
        host: str,
        by: str,
        instead_of: str | None = None,
        on_request: bool = False,
    ) -> Standing:
        """Make this the content of the file that is in force. A superseded content is refused, unless a person asks for
        it, or it replaces the content in force (`instead_of`): then somebody saw the file change to it."""
        new = {"digest": digest, "document": dict(document), "host": host, "applied_by": by}
        async with self._database.write() as connection:
            now = self._database.moment()
            first = self._database.insert(REGISTRY_FILES).values(path=path, applied_at=now, created_at=now, **new)
            if (await connection.execute(first.on_conflict_do_nothing())).rowcount:
                await self._database.announce(connection, REGISTRATIONS)
                return "new"
            row = (
                await connection.execute(select(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path).with_for_update())
            ).one()
            standing = await self._standing(connection, path, digest)
            if standing == "superseded" and not on_request and instead_of != row.digest:
                return standing
            if row.digest != digest:
                replaced = self._database.insert(SUPERSEDED_DIGESTS).values(
                    path=path, digest=row.digest, superseded_at=now
                )
                await connection.execute(replaced.on_conflict_do_nothing())
                mine = (SUPERSEDED_DIGESTS.c.path == path) & (SUPERSEDED_DIGESTS.c.digest == digest)
                await connection.execute(delete(SUPERSEDED_DIGESTS).where(mine))
            if any(getattr(row, key) != value for key, value in new.items() if key in ("digest", "document")):
                changed = update(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path)
                await connection.execute(changed.values(applied_at=now, **new))
                await self._database.announce(connection, REGISTRATIONS)
            return "current" if row.digest == digest else "new"

    async def hold(self, path: str, digest: str, connection: AsyncConnection) -> None:
        """Raises RegistrySuperseded unless this content is in force, and keeps it so until the transaction ends."""
        query = select(REGISTRY_FILES.c.digest).where(REGISTRY_FILES.c.path == path).with_for_update(read=True)
        if await connection.scalar(query) != digest:
            raise RegistrySuperseded(f"{path} was applied with another content meanwhile; nothing more was written.")

    async def rewrite(self, path: str, document: Mapping[str, Any]) -> None:
        """Take away from a file what another one took over."""
        async with self._database.write() as connection:
            changed = update(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path)
            await connection.execute(changed.values(document=dict(document), applied_at=self._database.moment()))

    async def forget(self, path: str) -> None:
        """The file is gone for good."""
        async with self._database.write() as connection:
            await connection.execute(delete(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path))
            await self._database.announce(connection, REGISTRATIONS)

    async def _standing(self, connection: AsyncConnection, path: str, digest: str) -> Standing:
        current = await connection.scalar(select(REGISTRY_FILES.c.digest).where(REGISTRY_FILES.c.path == path))
        if current == digest:
            return "current"
        columns = SUPERSEDED_DIGESTS.c
        found = await connection.scalar(select(columns.digest).where(columns.path == path, columns.digest == digest))
        return "new" if found is None else "superseded"
