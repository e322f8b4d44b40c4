"""What a push to a project of GitLab means for the repositories that are registered for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select

from reposync.errors import RepositoryNotFound
from reposync.store.database import Database
from reposync.store.repositories import lock_repository_by_id
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, is_active, live_commit, registered, with_live_version


@dataclass(frozen=True, slots=True)
class PushedRepository:
    """A registered repository that may be the project of a push. `location`: the address of its project or of git."""

    id: str
    name: str
    location: str
    branch: str | None
    definition: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Why a push starts no run. Not paused and not inactive: the index holds that commit already."""

    is_active: bool
    paused_reason: str | None


async def repositories_of_project(
    database: Database, project_id: int, locations: Collection[str]
) -> list[PushedRepository]:
    """Repositories of the project with that number, on whichever server, and those at one of `locations` (addresses in
    lower case) whose number nobody knows yet. None that was synced by hand alone. Raises StoreUnavailable."""
    columns = REPOSITORIES.c
    query = select(columns.id, columns.name, columns.location, columns.branch, columns.definition)
    query = query.where(registered())
    # Two ranges of two indexes: of a condition with OR, SQLite would read all rows where it has no statistics.
    by_number = query.where(columns.source == "gitlab", columns.project_id == project_id)
    by_place = query.where(columns.project_id.is_(None), func.lower(columns.location).in_(sorted(locations)))
    async with database.read() as connection:
        found = [PushedRepository(*row) for each in (by_number, by_place) for row in await connection.execute(each)]
    return sorted(found, key=lambda each: each.name)


async def enqueue_pushed(
    database: Database, runs: Runs, repository: PushedRepository, commit: str, *, asked_by: str = "", max_attempts: int
) -> tuple[Run, bool] | Standing:
    """A run of `repository`, whose branch is at `commit` since a push, and whether it is new; or why there is none.

    In one transaction, so that a pause comes before it or after it. A commit that the index holds is no reason only as
    long as nothing is under way: a run that began before the push may be on its way to another one. Raises
    RepositoryNotFound, StoreUnavailable.
    """
    columns = REPOSITORIES.c
    async with database.write() as connection:
        await lock_repository_by_id(connection, repository.id, repository.name)
        query = select(
            columns.name,
            columns.is_active,
            columns.paused_reason,
            live_commit().label("last_commit"),
            exists().where(RUNS.c.repository_id == repository.id, is_active()).label("busy"),
        ).where(columns.id == repository.id)
        row = (await connection.execute(with_live_version(query))).one_or_none()
        if row is None:
            raise RepositoryNotFound(f"No repository {repository.name!r} is registered.")
        if not row.is_active or (row.last_commit == commit and not row.busy):
            return Standing(row.is_active, row.paused_reason)
        return await runs.enqueue(
            row.name, RunTrigger.WEBHOOK, asked_by=asked_by, max_attempts=max_attempts, within=connection
        )
