"""The registered repositories and how far each of them got."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepositoryChanged, RepositoryNotFound, UsageError
from reposync.store.attempts import break_off_attempts
from reposync.store.columns import storable
from reposync.store.database import REGISTRATIONS, Database
from reposync.store.fence import hold
from reposync.store.repository import (
    MAX_NAME_CHARS,
    Registration,
    Repository,
    RepositoryState,
    repository_id,
    repository_record,
    unregistered,
)
from reposync.store.run import Run
from reposync.store.status import ACTIVE, WAITING, RunStatus, RunTrigger
from reposync.store.tables import FILES, REPOSITORIES, RUNS, VERSIONS, is_active, status_is

__all__ = [
    "Registration",
    "Repositories",
    "Repository",
    "RepositoryState",
    "lock_repository",
    "lock_repository_by_id",
    "repository_id",
    "unregistered",
]

_REGISTERED_AT_ONCE = 50


class Repositories:
    """Every method raises StoreUnavailable; those that take a run raise LeaseLost and then have written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(self, registration: Registration, *, expected: Repository | None = None) -> Repository:
        """Insert or update by name. Another location, branch, collection or definition is another generation: a run
        that began before publishes nothing. What is indexed stays as it is until the next sync. A repository that
        `deactivate` switched off is active again; a paused one stays paused. `expected`: as it was read by whoever
        changes it.

        Raises UsageError for a name that is empty or over 255 characters, RepositoryChanged where it is not as
        expected.
        """
        async with self._database.write() as connection:
            return await self._register(connection, registration, expected)

    async def register_all(self, registrations: Sequence[Registration]) -> None:
        """As `register`, many at a time: a thousand transactions take a minute where each is made durable."""
        # Always in the same order, so that two pods wait for each other and do not deadlock.
        ordered = sorted(registrations, key=lambda each: each.name)
        for start in range(0, len(ordered), _REGISTERED_AT_ONCE):
            async with self._database.write() as connection:
                for registration in ordered[start : start + _REGISTERED_AT_ONCE]:
                    await self._register(connection, registration)

    async def _register(
        self, connection: AsyncConnection, registration: Registration, expected: Repository | None = None
    ) -> Repository:
        name = _checked_name(registration.name)
        said: dict[str, Any] = {
            "location": storable(registration.location),
            "source": registration.source,
            "origin": registration.origin,
            "branch": None if registration.branch is None else storable(registration.branch),
            "collection": registration.collection,
            "cron_expression": registration.cron_expression,
            "timezone": registration.timezone,
            "definition": None if registration.definition is None else dict(registration.definition),
            "group_key": registration.group_key,
        }
        if registration.project_id is not None:
            said["project_id"] = registration.project_id
        now = self._database.moment()
        since = {"scheduled_since": now, "updated_at": now}
        new = {"name": name, "is_active": True, "epoch": 0, "attributes": {}, "created_at": now, **since, **said}
        # A second id, for a name whose first one went away with a repository that was renamed.
        is_new = False
        for identity in (repository_id(name), repository_id(f"{name}\n{uuid.uuid4()}")):
            row = await _row_of(connection, name)
            if row is not None:
                break
            insert = self._database.insert(REPOSITORIES).values(id=identity, **new).on_conflict_do_nothing()
            is_new = bool((await connection.execute(insert)).rowcount)
        row = row or await _row_of(connection, name)
        if row is None:
            raise _not_found(name)
        _require_as_expected(row, expected)
        changes = {key: value for key, value in said.items() if getattr(row, key) != value}
        if changes.keys() & {"location", "source", "branch", "collection", "definition"}:
            changes["generation"] = REPOSITORIES.c.generation + 1
        if changes.keys() & {"location", "source", "branch", "collection"} and row.live_version is None:
            # Nothing else says that what a program before 0.2 indexed was of another place.
            changes["last_commit"] = None
        if "collection" in changes and row.indexed_collection is None:
            changes["indexed_collection"] = row.collection
        if "location" in changes and registration.project_id is None:
            changes["project_id"] = None  # the number of another project
        if not row.is_active and row.paused_reason is None:
            changes |= {"is_active": True, "scheduled_since": now}
        if changes.keys() & {"cron_expression", "timezone"}:
            changes["scheduled_since"] = now
        if changes:
            row = await _change(connection, row.id, changes | {"updated_at": now})
        if changes or is_new:
            await self._database.announce(connection, REGISTRATIONS)
        return repository_record(row)

    async def get(self, name: str) -> Repository:
        """Raises RepositoryNotFound."""
        return await self._by(REPOSITORIES.c.name == storable(name), name)

    async def by_id(self, identity: str) -> Repository:
        """Raises RepositoryNotFound."""
        return await self._by(REPOSITORIES.c.id == identity, identity)

    async def _by(self, condition: ColumnElement[bool], shown: str) -> Repository:
        async with self._database.read() as connection:
            row = (await connection.execute(select(REPOSITORIES).where(condition))).one_or_none()
        if row is None:
            raise _not_found(shown)
        return repository_record(row)

    async def list(self, names: Collection[str] | None = None) -> list[Repository]:
        """All of them (of these names alone, where they are given), by name."""
        which = [] if names is None else [REPOSITORIES.c.name.in_(map(storable, names))]
        query = select(REPOSITORIES).where(*which).order_by(REPOSITORIES.c.name)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return [repository_record(row) for row in rows]

    async def states(self) -> Sequence[RepositoryState]:
        """Of all of them, by name: little, and quickly read."""
        columns = REPOSITORIES.c
        query = select(columns.name, columns.is_active, columns.paused_reason, columns.last_sync_at)
        async with self._database.read() as connection:
            return [RepositoryState(*row) for row in await connection.execute(query.order_by(columns.name))]

    async def deactivate(self, name: str) -> Repository:
        """It left the registry: no more ticks, the index stays. Registering it again switches it on."""
        return await self._set(name, active=False, paused_reason=None)

    async def pause(self, name: str, reason: str, *, expected: Repository | None = None) -> Repository:
        """No ticks until `resume`; what waits because of one is cancelled, what runs goes on, and a person may still
        sync it. `reason` must not be empty. `expected`: see `register`."""
        if not reason:
            raise UsageError("A pause needs a reason.")
        return await self._set(name, active=False, paused_reason=storable(reason), expected=expected)

    async def resume(self, name: str, *, expected: Repository | None = None) -> Repository:
        return await self._set(name, active=True, paused_reason=None, expected=expected)

    async def rename(self, identity: str, name: str) -> Repository:
        """The repository with this id is called `name` from now on, in its history too. Raises RepositoryNotFound,
        UsageError where the name is another one's, empty or too long."""
        _checked_name(name)
        try:
            async with self._database.write() as connection:
                row = await _locked(connection, identity, identity)
                if row.name == storable(name):
                    return repository_record(row)
                # Asked without a lock: two that want each other's name would wait for each other.
                if await connection.scalar(select(REPOSITORIES.c.id).where(REPOSITORIES.c.name == name)) is not None:
                    raise _name_taken(name)
                # The runs first: a writer of manifest rows holds its run, and then wants the repository's key.
                await connection.execute(update(RUNS).where(RUNS.c.repository_id == identity).values(repository=name))
                row = await _change(connection, identity, {"name": name, "updated_at": self._database.moment()})
                await self._database.announce(connection, REGISTRATIONS)
                return repository_record(row)
        except IntegrityError as error:
            raise _name_taken(name) from error

    async def _set(
        self, name: str, *, active: bool, paused_reason: str | None, expected: Repository | None = None
    ) -> Repository:
        async with self._database.write() as connection:
            row = await _row_of(connection, name)
            if row is None:
                raise _not_found(name)
            _require_as_expected(row, expected)
            identity = str(row.id)
            changes = {"is_active": active, "paused_reason": paused_reason}
            if not active:
                unasked = RUNS.c.trigger.in_([RunTrigger.SCHEDULE, RunTrigger.WEBHOOK])
                waiting = and_(RUNS.c.repository_id == identity, is_active(), status_is(*WAITING), unasked)
                await self._cancel(connection, waiting, "REPOSITORY_PAUSED", "The repository was paused.")
            row = await _change(connection, identity, changes | {"updated_at": self._database.moment()})
            await self._database.announce(connection, REGISTRATIONS)
            return repository_record(row)

    async def remove(self, name: str, *, by: Run | None = None) -> None:
        """The repository and its manifest go, its history stays. Runs that wait or run are cancelled (but for `by`, the
        run of this repository in whose name this is done, and which must still be its worker's): whoever executes one
        finds its lease lost at the next write. Raises RepositoryNotFound."""
        async with self._database.write() as connection:
            if by is None:
                identity = await lock_repository(connection, name)
            else:  # which knows better what it is about: the name may be another one by now
                identity = by.repository_id
                await lock_repository_by_id(connection, identity, name)
                await hold(connection, by)
            active = and_(RUNS.c.repository_id == identity, status_is(*ACTIVE))
            if by is not None:
                active = and_(active, RUNS.c.id != by.id)
            await self._cancel(connection, active, "REPOSITORY_REMOVED", "The repository was removed.")
            versions = select(VERSIONS.c.id).where(VERSIONS.c.repository_id == identity)
            mine = or_(FILES.c.repository_id == identity, FILES.c.repository_id.in_(versions))
            await connection.execute(delete(FILES).where(mine))
            await connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.id == identity))
            await self._database.announce(connection, REGISTRATIONS)

    async def _cancel(self, connection: AsyncConnection, which: ColumnElement[bool], code: str, message: str) -> None:
        now = self._database.moment()
        said = {"error_code": code, "error_message": message}
        await connection.execute(select(RUNS.c.id).where(which).order_by(RUNS.c.id).with_for_update())
        await break_off_attempts(connection, select(RUNS.c.id).where(which), now, **said)
        ending = {"status": RunStatus.CANCELLED, "completed_at": now, "lease_until": None}
        await connection.execute(update(RUNS).where(which).values(**ending, **said))


async def lock_repository(connection: AsyncConnection, name: str) -> str:
    """The id of the repository; its row and its queue are this transaction's alone. Raises RepositoryNotFound."""
    row = await _row_of(connection, name)
    if row is None:
        raise _not_found(name)
    return str(row.id)


async def lock_repository_by_id(connection: AsyncConnection, identity: str, shown: str) -> None:
    """As `lock_repository`, where the name may be another one by now."""
    await _locked(connection, identity, shown)


async def _row_of(connection: AsyncConnection, name: str) -> Row[Any] | None:
    query = select(REPOSITORIES).where(REPOSITORIES.c.name == storable(name)).with_for_update(key_share=True)
    return (await connection.execute(query)).one_or_none()


async def _locked(connection: AsyncConnection, identity: str, shown: str) -> Row[Any]:
    # NO KEY UPDATE: writers of manifest rows hold a KEY SHARE lock by their foreign key, and need not wait.
    query = select(REPOSITORIES).where(REPOSITORIES.c.id == identity).with_for_update(key_share=True)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise _not_found(shown)
    return row


async def _change(connection: AsyncConnection, identity: str, changes: Mapping[str, Any]) -> Row[Any]:
    query = update(REPOSITORIES).where(REPOSITORIES.c.id == identity).values(**changes).returning(*REPOSITORIES.c)
    return (await connection.execute(query)).one()


def _require_as_expected(row: Row[Any], expected: Repository | None) -> None:
    """What a person may change is as it was read. Syncs change other things all the time."""
    if expected is None or expected.changeable == repository_record(row).changeable:
        return
    raise RepositoryChanged(
        f"{expected.name!r} was changed by somebody else meanwhile; nothing was written.", remedy="Read it again."
    )


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(f"A repository's name has 1 to {MAX_NAME_CHARS} characters; this one has {len(name)}.")
    return name


def _name_taken(name: str) -> UsageError:
    return UsageError(f"There is another repository called {name!r}.")


def _not_found(name: str) -> RepositoryNotFound:
    return RepositoryNotFound(
        f"No repository {name!r} is registered.", remedy="`reposync repos list` names those that are."
    )
