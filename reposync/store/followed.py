"""Repositories that a group registered: they follow their projects, whatever these are called and wherever they go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import RepoSyncError
from reposync.store.database import REGISTRATIONS
from reposync.store.repositories import Guard, Repositories, Repository, lock_repositories
from reposync.store.status import RunStatus
from reposync.store.tables import REPOSITORIES, RUNS

# What a decision about a repository is made from: if one of these is another by now, it has to be made again.
_DECIDED_BY = ("name", "origin", "group_key", "project_id", "is_active", "paused_reason")


class RegistrationsChanged(RepoSyncError):
    """Somebody changed a repository while its project was looked at."""

    code = "REGISTRATIONS_CHANGED"
    status = 409
    retryable = True


@dataclass(frozen=True, slots=True)
class Change:
    """New values of columns of a repository, `before` as it was read when they were decided."""

    before: Repository
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.values.get("name", self.before.name))

    @property
    def pauses(self) -> bool:
        return self.values.get("is_active") is False


class FollowedRepositories(Repositories):
    """See `Repositories`; what concerns several of them is done together or not at all."""

    async def settle(self, changes: Sequence[Change], *, guard: Guard | None = None) -> None:
        """All of it in one transaction: two that swap their names are never seen without one. A changed name is so in
        the history too; a pause cancels what waits because of a tick. The index is not touched. `guard`: see
        `register_all`.

        Raises RegistrationsChanged where one of them is not as it was read, or a name was given away meanwhile.
        """
        if not changes:
            return
        try:
            await self._settle(changes, guard)
        except IntegrityError as error:
            raise RegistrationsChanged("A repository took a name that a project of the group has.") from error

    async def _settle(self, changes: Sequence[Change], guard: Guard | None) -> None:
        columns = REPOSITORIES.c
        async with self._database.write() as connection:
            if guard is not None:
                await guard(connection)
            touched = columns.id.in_([change.before.id for change in changes])
            present = {row.id: row for row in await lock_repositories(connection, touched)}
            for change in changes:
                row = present.get(change.before.id)
                if row is None or any(getattr(row, name) != getattr(change.before, name) for name in _DECIDED_BY):
                    raise RegistrationsChanged(f"Repository {change.before.name!r} was changed meanwhile.")
            renamed = [change for change in changes if change.name != change.before.name]
            for change in renamed:  # out of each other's way first; no name has a line break
                aside = {"name": f"\n{change.before.id}"}
                await connection.execute(update(REPOSITORIES).where(columns.id == change.before.id).values(**aside))
            now = self._database.moment()
            for change in changes:
                values = {**change.values, "updated_at": now}
                if values.get("is_active"):  # ticks of the time in which it was paused are not missed ones
                    values["scheduled_since"] = now
                await connection.execute(update(REPOSITORIES).where(columns.id == change.before.id).values(**values))
            for change in renamed:
                runs = update(RUNS).where(RUNS.c.repository_id == change.before.id)
                await connection.execute(runs.values(repository=change.name))
            if paused := [change.before.id for change in changes if change.pauses]:
                await self._withdraw_unasked(connection, paused, "its group")
            await self._database.announce(connection, REGISTRATIONS)

    async def relocate(self, repository: Repository, location: str, *, guard: Guard | None = None) -> None:
        """It is the same project at another address: nothing that is known of it changes. `guard`: see
        `register_all`."""
        columns = REPOSITORIES.c
        same = and_(columns.id == repository.id, columns.name == repository.name)
        async with self._database.write() as connection:
            if guard is not None:
                await guard(connection)
            await connection.execute(update(REPOSITORIES).where(same).values(location=location))

    async def running(self, identities: Collection[str]) -> set[str]:
        """Those that a run is under way for."""
        query = select(RUNS.c.repository_id).where(
            RUNS.c.repository_id.in_(identities), RUNS.c.status == RunStatus.RUNNING
        )
        async with self._database.read() as connection:
            return set((await connection.execute(query)).scalars())
