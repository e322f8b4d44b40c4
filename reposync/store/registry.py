"""What the registry adds to the repositories: the document that was applied, and when each of its GitLab groups, whose
projects register themselves, is listed next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import and_, case, delete, select, update

from reposync.errors import RepositoryChanged
from reposync.store.database import Connection, Guard, Stored
from reposync.store.tables import GROUPS, REGISTRY_DOCUMENTS, RegistryDocument

ContentState = Literal["new", "current", "superseded"]
"""Of a document: never applied, applied last, or replaced by a later one."""

_ID = "registry"
# The oldest are forgotten: a pod does not start with a file that was replaced so often.
_MOST_SUPERSEDED = 100


class RegistryReplaced(Exception):
    """A different process applied a document meanwhile."""


class RegistryDocuments(Stored):
    """One row: a document is replaced as a whole."""

    async def current(self) -> RegistryDocument | None:
        """None before the first one is applied."""
        async with self._database.read() as connection:
            row = await connection.one_or_none(select(REGISTRY_DOCUMENTS))
        return None if row is None else RegistryDocument.of(row)

    async def replace(
        self,
        connection: Connection,
        path: str,
        digest: str,
        document: Mapping[str, Any],
        *,
        by: str,
        instead_of: str | None,
    ) -> None:
        """Compare-and-swap: make this the current document, together with what else the transaction writes. Raises
        RegistryReplaced unless `instead_of` is the digest of the current one (None: there is none)."""
        row = await connection.one_or_none(select(REGISTRY_DOCUMENTS).with_for_update())
        if (None if row is None else row.digest) != instead_of:
            raise RegistryReplaced
        if digest == instead_of:
            return
        new: dict[str, Any] = {"digest": digest, "document": dict(document), "path": path, "applied_by": by}
        new["applied_at"] = self._database.moment()
        if row is None:
            insert = self._database.insert(REGISTRY_DOCUMENTS).values(id=_ID, superseded=[], **new)
            if not await connection.change(insert.on_conflict_do_nothing()):
                raise RegistryReplaced
            return
        earlier = [*(former for former in row.superseded if former not in (digest, instead_of)), instead_of]
        await connection.execute(update(REGISTRY_DOCUMENTS).values(superseded=earlier[-_MOST_SUPERSEDED:], **new))


class DueGroup(NamedTuple):
    """A group that was taken. `again_at`: when it is due again if its worker dies."""

    key: str
    again_at: datetime


class DueGroups(Stored):
    """The key of a group is `<server's address>/<path>`."""

    async def declare(self, keys: Collection[str]) -> None:
        """These groups are configured, and no others. Each is due at once: a new configuration should take effect."""
        await self._database.change(delete(GROUPS).where(GROUPS.c.key.not_in(keys)))
        for key in sorted(keys):
            now = self._database.moment()
            insert = self._database.insert(GROUPS).values(key=key, due_at=now)
            sooner = case((GROUPS.c.due_at > now, now), else_=GROUPS.c.due_at)
            await self._database.change(insert.on_conflict_do_update(index_elements=["key"], set_={"due_at": sooner}))

    async def take(self, among: Collection[str], again_seconds: float) -> DueGroup | None:
        """The group of `among` that has been due for longest, None if none is due. It is due again that much later,
        unless `schedule` sets a different time: the process that takes it may die."""
        due = select(GROUPS.c.key).where(GROUPS.c.key.in_(among), GROUPS.c.due_at <= self._database.moment())
        due = due.order_by(GROUPS.c.due_at, GROUPS.c.key).limit(1)
        if await self._database.scalar(due) is None:  # the answer to most polls, which write nothing
            return None
        async with self._database.write() as connection:
            chosen = due.with_for_update(skip_locked=True).scalar_subquery()
            taken = update(GROUPS).where(GROUPS.c.key == chosen).values(due_at=self._database.moment(again_seconds))
            row = await connection.one_or_none(taken.returning(GROUPS.c.key, GROUPS.c.due_at))
            return None if row is None else DueGroup(row.key, row.due_at)

    def guard(self, key: str) -> Guard:
        """Raises RepositoryChanged if the group has left the registry: its repositories are not activated again."""
        query = select(GROUPS.c.key).where(GROUPS.c.key == key).with_for_update(read=True)

        async def require_declared(connection: Connection) -> None:
            if await connection.scalar(query) is None:
                raise RepositoryChanged(f"The group {key} has left the registry meanwhile; nothing was written.")

        return require_declared

    async def schedule(self, group: DueGroup, due_at: datetime) -> None:
        """Unless it was declared again since it was taken: its definition may be different."""
        taken = and_(GROUPS.c.key == group.key, GROUPS.c.due_at == group.again_at)
        await self._database.change(update(GROUPS).where(taken).values(due_at=due_at))
