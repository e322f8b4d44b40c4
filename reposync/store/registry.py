"""What the registry adds to the repositories: the document that was applied, and GitLab groups, whose projects register
themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import and_, delete, select, update

from reposync.errors import RegistryConflict, RepositoryChanged
from reposync.store.database import Connection, Guard, Stored
from reposync.store.tables import GROUP_COLUMNS, GROUPS, REGISTRY_DOCUMENTS, GroupEntry, ProjectGroup, RegistryDocument

ContentState = Literal["new", "current", "superseded"]
"""The state of a document: never applied, applied last, or replaced by a later one."""

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


class ProjectGroups(Stored):
    """GitLab groups whose projects register themselves: those of the registry file, and others."""

    async def all(self) -> list[ProjectGroup]:
        """By key."""
        return [
            ProjectGroup.of(row) for row in await self._database.rows(select(*GROUP_COLUMNS).order_by(GROUPS.c.key))
        ]

    async def write(self, connection: Connection, written: Collection[GroupEntry], gone: Collection[str] = ()) -> None:
        """Each of `written` is due at once: a new definition should take effect. `gone`: keys. Raises RegistryConflict
        if a group belongs to the registry file now and does not come from it, or the reverse."""
        await connection.execute(delete(GROUPS).where(GROUPS.c.key.in_(sorted(gone))))
        for group in sorted(written, key=lambda group: group.key):
            values = {"definition": group.definition, "origin": group.origin, "due_at": self._database.moment()}
            insert = self._database.insert(GROUPS).values(key=group.key, **values)
            is_of_file = GROUPS.c.origin == "config"
            allowed = is_of_file if group.origin == "config" else ~is_of_file
            upsert = insert.on_conflict_do_update(index_elements=["key"], set_=values, where=allowed)
            if not await connection.change(upsert):
                raise RegistryConflict(f"The group {group.key} was registered in a different way meanwhile.")

    async def make_due(self) -> None:
        """Each is listed again at once."""
        now = self._database.moment()
        await self._database.change(update(GROUPS).where(GROUPS.c.due_at > now).values(due_at=now))

    async def take(self, again_seconds: float) -> ProjectGroup | None:
        """The group that has been due for longest, None if none is due. It is due again that much later, which is its
        `due_at`, unless `schedule` sets a different time: the process that takes it may die."""
        due = select(GROUPS.c.key).where(GROUPS.c.definition.is_not(None), GROUPS.c.due_at <= self._database.moment())
        due = due.order_by(GROUPS.c.due_at, GROUPS.c.key).limit(1)
        if await self._database.scalar(due) is None:  # the answer to most polls, which write nothing
            return None
        async with self._database.write() as connection:
            chosen = due.with_for_update(skip_locked=True).scalar_subquery()
            taken = update(GROUPS).where(GROUPS.c.key == chosen).values(due_at=self._database.moment(again_seconds))
            row = await connection.one_or_none(taken.returning(*GROUP_COLUMNS))
            return None if row is None else ProjectGroup.of(row)

    def guard(self, key: str) -> Guard:
        """Raises RepositoryChanged if the group is gone: its repositories are not activated again."""
        query = select(GROUPS.c.key).where(GROUPS.c.key == key).with_for_update(read=True)

        async def require_registered(connection: Connection) -> None:
            if await connection.scalar(query) is None:
                raise RepositoryChanged(f"The group {key} has left the registry meanwhile; nothing was written.")

        return require_registered

    async def schedule(self, taken: ProjectGroup, due_at: datetime) -> None:
        """Unless it was made due or written since it was taken: its definition may be different."""
        unchanged = and_(GROUPS.c.key == taken.key, GROUPS.c.due_at == taken.due_at)
        await self._database.change(update(GROUPS).where(unchanged).values(due_at=due_at))
