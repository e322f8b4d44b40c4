"""The registry files that were applied, and their superseded contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepoSyncError
from reposync.store.database import REGISTRATIONS, Stored
from reposync.store.tables import REGISTRY_FILES, SUPERSEDED_DIGESTS, RegistryFile

ContentState = Literal["new", "current", "superseded"]
"""Of a file's content: never applied (or applied again on request), current, or replaced by a later one."""


class RegistrySuperseded(RepoSyncError):
    """A different process applied a newer content of the same file meanwhile."""

    code = "REGISTRY_SUPERSEDED"
    status = 409


class RegistryFiles(Stored):
    async def all(self) -> list[RegistryFile]:
        """By the time of the first `put`."""
        query = select(REGISTRY_FILES).order_by(REGISTRY_FILES.c.created_at, REGISTRY_FILES.c.path)
        return [RegistryFile.of(row) for row in await self._database.rows(query)]

    async def stamp(self) -> Sequence[tuple[Any, ...]]:
        """Changes whenever a file is applied, even with the same content."""
        columns = REGISTRY_FILES.c
        query = select(columns.path, columns.digest, columns.applied_at).order_by(columns.path)
        return [tuple(row) for row in await self._database.rows(query)]

    async def content_state(self, path: str, digest: str) -> ContentState:
        async with self._database.read() as connection:
            return await self._state(connection, path, digest)

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
    ) -> ContentState:
        """Make this the current content of the file. A superseded content is refused, unless a person requests it, or
        the caller saw the file change from the current content (`instead_of`) to it."""
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
            state = await self._state(connection, path, digest)
            if state == "superseded" and not on_request and instead_of != row.digest:
                return state
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

    async def require_current(self, path: str, digest: str, connection: AsyncConnection) -> None:
        """Raises RegistrySuperseded unless this content is current, and keeps it so until the transaction ends."""
        query = select(REGISTRY_FILES.c.digest).where(REGISTRY_FILES.c.path == path).with_for_update(read=True)
        if await connection.scalar(query) != digest:
            raise RegistrySuperseded(
                f"{path} was applied with a different content meanwhile; nothing more was written."
            )

    async def rewrite(self, path: str, document: Mapping[str, Any]) -> None:
        """Remove from a file what a different one took over."""
        async with self._database.write() as connection:
            changed = update(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path)
            await connection.execute(changed.values(document=dict(document), applied_at=self._database.moment()))

    async def forget(self, path: str) -> None:
        """The file no longer exists."""
        async with self._database.write() as connection:
            await connection.execute(delete(REGISTRY_FILES).where(REGISTRY_FILES.c.path == path))
            await self._database.announce(connection, REGISTRATIONS)

    async def _state(self, connection: AsyncConnection, path: str, digest: str) -> ContentState:
        current = await connection.scalar(select(REGISTRY_FILES.c.digest).where(REGISTRY_FILES.c.path == path))
        if current == digest:
            return "current"
        columns = SUPERSEDED_DIGESTS.c
        found = await connection.scalar(select(columns.digest).where(columns.path == path, columns.digest == digest))
        return "new" if found is None else "superseded"
