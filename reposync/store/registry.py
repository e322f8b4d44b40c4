"""What the registry adds to the repositories: the document that was applied, and GitLab groups whose projects register
themselves: when each is due, which worker updates it, and the repositories that it registered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, delete, or_, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import LeaseLost, RepoSyncError
from reposync.store.columns import truncate
from reposync.store.database import Connection, Guard, Stored
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.repositories import Repositories, change_repository, lock_repositories, outdate_links, scheduled
from reposync.store.repository import Repository
from reposync.store.tables import (
    GROUPS,
    REGISTRY_DOCUMENTS,
    REPOSITORIES,
    RUNS,
    ProjectGroup,
    RegistryDocument,
)

_LONGEST_LEASE_SECONDS = 3600.0
# Changes of a repository are decided from these columns: if one of them differs by now, they have to be decided again.
_DECIDED_BY = ("name", "origin", "group_key", "project_id", "is_active", "paused_reason")


ContentState = Literal["new", "current", "superseded"]
"""Of a document: never applied, applied last, or replaced by a later one."""

_ID = "registry"
# The oldest are forgotten: a pod does not start with a file that was replaced so often.
_MOST_SUPERSEDED = 100


class RegistrySuperseded(RepoSyncError):
    """A different process applied a different registry document meanwhile."""

    code = "REGISTRY_SUPERSEDED"
    status = 409


class RegistryDocuments(Stored):
    """One row: a document is replaced as a whole."""

    async def current(self) -> RegistryDocument | None:
        """None before the first one is applied."""
        async with self._database.read() as connection:
            row = await connection.one_or_none(select(REGISTRY_DOCUMENTS))
        return None if row is None else RegistryDocument.of(row)

    async def replace(
        self, path: str, digest: str, document: Mapping[str, Any], *, by: str, instead_of: str | None
    ) -> bool:
        """Compare-and-swap: make this the current document if `instead_of` is the digest of the current one (None:
        there is none). Returns whether it was."""
        new: dict[str, Any] = {"digest": digest, "document": dict(document), "path": path, "applied_by": by}
        async with self._database.write() as connection:
            new["applied_at"] = self._database.moment()
            if instead_of is None:
                insert = self._database.insert(REGISTRY_DOCUMENTS).values(id=_ID, superseded=[], **new)
                return bool(await connection.change(insert.on_conflict_do_nothing()))
            row = await connection.one_or_none(select(REGISTRY_DOCUMENTS).with_for_update())
            if row is None or row.digest != instead_of:
                return False
            earlier = [*(each for each in row.superseded if each not in (digest, instead_of)), instead_of]
            superseded = earlier[-_MOST_SUPERSEDED:]
            await connection.execute(update(REGISTRY_DOCUMENTS).values(superseded=superseded, **new))
            return True

    async def require_current(self, digest: str, connection: Connection) -> None:
        """Raises RegistrySuperseded unless this document is current, and keeps it so until the transaction ends."""
        query = select(REGISTRY_DOCUMENTS.c.digest).with_for_update(read=True)
        if await connection.scalar(query) != digest:
            raise RegistrySuperseded("A different registry was applied meanwhile; nothing more was written.")


# Groups --------------------------------------------------------------------------------------------------------------


class ProjectGroups(Stored):
    """The key of a group is `<server's address>/<path>`. A claim is its row then, and the fence of writes: an `attempt`
    is never reused."""

    async def declare(self, keys: Collection[str]) -> None:
        """These groups are configured, and due at once: a new configuration should take effect."""
        for key in sorted(keys):
            now = self._database.moment()
            insert = self._database.insert(GROUPS).values(key=key, due_at=now, projects=0)
            sooner = case((GROUPS.c.due_at > now, now), else_=GROUPS.c.due_at)
            await self._database.change(insert.on_conflict_do_update(index_elements=["key"], set_={"due_at": sooner}))

    async def claim_due(self, worker: str, lease_seconds: float, *, among: Collection[str]) -> ProjectGroup | None:
        """Claim the group of `among` that has been due for longest and has no lease, or one that ended."""
        now = self._database.moment()
        # Neither a lease nor a check can be in the future: the database's clock was set back since.
        lost = or_(GROUPS.c.lease_until < now, GROUPS.c.lease_until > self._database.moment(_LONGEST_LEASE_SECONDS))
        free = or_(GROUPS.c.lease_until.is_(None), lost)
        due = or_(GROUPS.c.due_at <= now, GROUPS.c.checked_at > self._database.moment(AHEAD_SECONDS))
        query = select(GROUPS.c.key).where(GROUPS.c.key.in_(among), due, free)
        query = query.order_by(GROUPS.c.due_at, GROUPS.c.key).limit(1)
        if await self._database.scalar(query) is None:
            return None
        async with self._database.write() as connection:
            chosen = query.with_for_update(skip_locked=True).scalar_subquery()
            return await self._take(connection, GROUPS.c.key == chosen, worker, lease_seconds)

    async def claim(self, key: str, worker: str, lease_seconds: float) -> ProjectGroup:
        """Claim this group for a person who waits, due or not; a different worker that has it loses its claim."""
        async with self._database.write() as connection:
            insert = self._database.insert(GROUPS).values(key=key, due_at=self._database.moment(), projects=0)
            await connection.execute(insert.on_conflict_do_nothing())
            claim = await self._take(connection, GROUPS.c.key == key, worker, lease_seconds)
        if claim is None:
            raise LeaseLost(f"Group {key} left the registry at this moment.")
        return claim

    async def _take(
        self, connection: Connection, which: ColumnElement[bool], worker: str, lease_seconds: float
    ) -> ProjectGroup | None:
        lease_until = self._database.moment(lease_seconds)
        taken = update(GROUPS).where(which).values(worker=worker, lease_until=lease_until, attempt=GROUPS.c.attempt + 1)
        row = await connection.one_or_none(taken.returning(*GROUPS.c))
        return None if row is None else ProjectGroup.of(row)

    async def renew(self, claim: ProjectGroup, lease_seconds: float) -> None:
        """Extend the lease. Raises LeaseLost."""
        renewed = update(GROUPS).where(_held(claim)).values(lease_until=self._database.moment(lease_seconds))
        if not await self._database.change(renewed):
            raise _lost(claim)

    async def require_held(self, claim: ProjectGroup, connection: Connection) -> None:
        """Raises LeaseLost unless the claim is valid, and keeps it valid until the transaction ends."""
        query = select(GROUPS.c.key).where(_held(claim)).with_for_update(read=True)
        if await connection.scalar(query) is None:
            raise _lost(claim)

    async def record(
        self,
        claim: ProjectGroup,
        next_due: Callable[[datetime], datetime],
        *,
        projects: int | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> bool:
        """Record the result and give up the claim. `next_due` maps the database's time to the next due time; `projects`
        is None if the listing was incomplete. Returns False, and writes nothing, if the claim is lost."""
        async with self._database.write() as connection:
            now = await connection.now()
            ended: dict[str, Any] = {
                "due_at": next_due(now),
                "worker": None,
                "lease_until": None,
                "error_code": error_code,
                "error_message": truncate(error_message) if error_message else None,
            }
            if projects is not None:
                ended |= {"projects": projects, "checked_at": now}
            query = update(GROUPS).where(_held(claim)).values(**ended)
            return bool(await connection.change(query))

    async def release(self, claim: ProjectGroup) -> None:
        """Give up the claim before the end: the group stays due, and the next worker can claim it at once."""
        await self._database.change(update(GROUPS).where(_held(claim)).values(worker=None, lease_until=None))

    async def forget(self, keep: Collection[str]) -> list[str]:
        """Delete groups that are no longer configured; returns their keys."""
        async with self._database.write() as connection:
            gone = delete(GROUPS).where(GROUPS.c.key.not_in(keep)).returning(GROUPS.c.key)
            return sorted(await connection.scalars(gone))

    async def list(self) -> list[ProjectGroup]:
        """By key."""
        rows = await self._database.rows(select(GROUPS).order_by(GROUPS.c.key))
        return [ProjectGroup.of(row) for row in rows]


def _held(claim: ProjectGroup) -> ColumnElement[bool]:
    """Including the worker: a group that was forgotten and is declared again counts its attempts from the start."""
    return and_(GROUPS.c.key == claim.key, GROUPS.c.attempt == claim.attempt, GROUPS.c.worker == claim.worker)


def _lost(claim: ProjectGroup) -> LeaseLost:
    return LeaseLost(f"Group {claim.key} was claimed by a different worker.")


class RegistrationsChanged(RepoSyncError):
    """A repository was changed while its group was updated."""

    code = "REGISTRATIONS_CHANGED"
    status = 409
    retryable = True


@dataclass(frozen=True, slots=True)
class RepositoryChange:
    """New values of columns of a repository; `before`: the row from which they were decided."""

    before: Repository
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.values.get("name", self.before.name))


class GroupRepositories(Repositories):
    """The repositories of a group: changes of several are applied together."""

    async def apply_changes(self, changes: Sequence[RepositoryChange], *, guard: Guard | None = None) -> None:
        """One transaction, in this order: a name that one gives up is free for the next. A new name applies to the
        history too, and to the points after the next run; one that began before publishes nothing. A pause cancels
        waiting runs of ticks and pushes. `guard`: see `register_all`.

        Raises RegistrationsChanged if a row differs from what was read, or a name was taken meanwhile.
        """
        if not changes:
            return
        try:
            await self._apply(changes, guard)
        except IntegrityError as error:
            raise RegistrationsChanged("A different repository took the name of a project of the group.") from error

    async def _apply(self, changes: Sequence[RepositoryChange], guard: Guard | None) -> None:
        columns = REPOSITORIES.c
        async with self._database.write(guard) as connection:
            touched = columns.id.in_([change.before.id for change in changes])
            present = {row.id: row for row in await lock_repositories(connection, touched)}
            for change in changes:
                row = present.get(change.before.id)
                if row is None or any(getattr(row, name) != getattr(change.before, name) for name in _DECIDED_BY):
                    raise RegistrationsChanged(f"Repository {change.before.name!r} was changed meanwhile.")
            now = await connection.now()
            for change in changes:
                values = {**change.values, "updated_at": now}
                if (is_active := values.get("is_active")) is not None:
                    begins = scheduled(change.before, now, change.before.last_sync_at)
                    values |= begins if is_active else {"next_due_at": None}
                if change.name != change.before.name:
                    values["generation"] = columns.generation + 1
                await change_repository(connection, change.before.id, values)
            renamed = [change for change in changes if change.name != change.before.name]
            for change in renamed:
                runs = update(RUNS).where(RUNS.c.repository_id == change.before.id)
                await connection.execute(runs.values(repository=change.name))
            if paused := [change.before.id for change in changes if change.values.get("is_active") is False]:
                await self._cancel_automatic(connection, paused, "The repository was paused by its group.")
            await outdate_links(connection, [change.before.id for change in renamed])
