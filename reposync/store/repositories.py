"""The registered repositories and how far each of them got."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import (
    RegistryConflict,
    Remedy,
    RepositoryChanged,
    RepositoryExists,
    UsageError,
)
from reposync.store.attempts import break_off_attempts
from reposync.store.columns import storable
from reposync.store.database import REGISTRATIONS, Database
from reposync.store.fence import hold
from reposync.store.repository import (
    MAX_NAME_CHARS,
    Registration,
    Repository,
    RepositoryState,
    belongs_to_another,
    repository_id,
    repository_record,
    unregistered,
)
from reposync.store.requests import withdraw_of
from reposync.store.run import Run
from reposync.store.status import WAITING, RunTrigger
from reposync.store.tables import FILES, REPOSITORIES, REPOSITORY_COLUMNS, RUNS, VERSIONS, is_active, status_is
from reposync.store.transitions import Event, lock_unfinished, locked, move
from reposync.store.unknown import unknown_repository

__all__ = [
    "Guard",
    "Registration",
    "Repositories",
    "Repository",
    "RepositoryState",
    "belongs_to_another",
    "lock_repositories",
    "lock_repository",
    "lock_repository_by_id",
    "repository_id",
    "unregistered",
]

Guard = Callable[[AsyncConnection], Awaitable[None]]
"""Called first in a transaction, which it ends by an exception."""

_REGISTERED_AT_ONCE = 50
_NOT_INDEXED_BY = frozenset({"name", "schedule", "timezone", "username", "password"})


class Repositories:
    """Every method raises StoreUnavailable; those that take a run raise LeaseLost and then have written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(self, registration: Registration, *, expected: Repository | None = None) -> Repository:
        """Insert or update by name. A definition that asks for another index is another generation: a run
        that began before publishes nothing. What is indexed stays as it is until the next sync. A repository that
        `deactivate` switched off is active again; a paused one stays paused. `expected`: as it was read by whoever
        changes it.

        Raises UsageError for a name that is empty or over 255 characters, RepositoryChanged where it is not as
        expected.
        """
        (row,) = await self._register_together([registration], expected=expected)
        return row

    async def register_all(
        self,
        registrations: Sequence[Registration],
        *,
        takes: Collection[str] | None = (),
        guard: Guard | None = None,
    ) -> None:
        """As `register`, many at a time: a thousand transactions take a minute if each is made durable. `guard`: of
        each transaction. `takes`: see `belongs_to_another`."""
        ordered = sorted(registrations, key=lambda each: repository_id(each.name))
        for start in range(0, len(ordered), _REGISTERED_AT_ONCE):
            page = ordered[start : start + _REGISTERED_AT_ONCE]
            await self._register_together(page, takes=takes, guard=guard)

    async def _register_together(
        self,
        registrations: Sequence[Registration],
        *,
        expected: Repository | None = None,
        takes: Collection[str] | None = (),
        guard: Guard | None = None,
    ) -> Sequence[Repository]:
        """In one transaction, which first locks those that exist. The others are inserted in the order of
        `registrations`, the same one for everybody."""
        named = REPOSITORIES.c.name.in_([storable(each.name) for each in registrations])
        while True:
            with suppress(_RegisteredMeanwhile):
                async with self._database.write() as connection:
                    if guard is not None:
                        await guard(connection)
                    rows = {row.name: row for row in await lock_repositories(connection, named)}
                    return [await self._register(connection, each, rows, expected, takes) for each in registrations]

    async def _register(
        self,
        connection: AsyncConnection,
        registration: Registration,
        rows: dict[str, Row[Any]],
        expected: Repository | None,
        takes: Collection[str] | None,
    ) -> Repository:
        """`rows`: those that are registered and locked, by name. Raises _RegisteredMeanwhile."""
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
            "resolved": None if registration.resolved is None else dict(registration.resolved),
            "resolved_from": registration.resolved_from,
            "origin_file": registration.origin_file,
            "origin_host": registration.origin_host,
            "by_hand": registration.by_hand,
        }
        if registration.project_id is not None:
            said["project_id"] = registration.project_id
        now = self._database.moment()
        row = rows.get(storable(name))
        if is_new := row is None:
            since = {"scheduled_since": now, "updated_at": now}
            new = {"is_active": True, "epoch": 0, "attributes": {}, "created_at": now, **since, **said}
            row = await self._insert(connection, name, new)
        _require_as_expected(row, expected)
        if belongs_to_another(repository_record(row), registration, takes):
            raise conflict_over(name, registration.origin_file, repository_record(row))
        changes = {key: value for key, value in said.items() if getattr(row, key) != value}
        if row.origin_host is not None and "location" not in changes:
            changes.pop("origin_host", None)  # the machine that has the folder
        elsewhere = bool(changes.keys() & {"location", "source", "branch", "collection"})
        if row.resolved is None:  # of a program before 0.2: what it was resolved to is not known, and need not differ
            is_another = elsewhere or "definition" in changes
        else:
            is_another = elsewhere or _indexed_by(row.resolved) != _indexed_by(registration.resolved)
        if is_another:
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
        rows[row.name] = row
        return repository_record(row)

    async def _insert(self, connection: AsyncConnection, name: str, columns: Mapping[str, Any]) -> Row[Any]:
        # A second id, for a name whose first one went away with a repository that was renamed.
        for identity in (repository_id(name), repository_id(f"{name}\n{uuid.uuid4()}")):
            insert = self._database.insert(REPOSITORIES).values(id=identity, name=name, **columns)
            query = insert.on_conflict_do_nothing().returning(*REPOSITORY_COLUMNS)
            if (row := (await connection.execute(query)).one_or_none()) is not None:
                return row
        raise _RegisteredMeanwhile

    async def get(self, name: str) -> Repository:
        """Raises RepositoryNotFound."""
        return await self._by(REPOSITORIES.c.name == storable(name), name)

    async def by_id(self, identity: str) -> Repository:
        """Raises RepositoryNotFound."""
        return await self._by(REPOSITORIES.c.id == identity, identity)

    async def _by(self, condition: ColumnElement[bool], shown: str) -> Repository:
        async with self._database.read() as connection:
            row = (await connection.execute(select(*REPOSITORY_COLUMNS).where(condition))).one_or_none()
            if row is None:
                raise await unknown_repository(connection, shown)
        return repository_record(row)

    async def list(self, names: Collection[str] | None = None) -> list[Repository]:
        """All of them (of these names alone, where they are given), by name."""
        which = [] if names is None else [REPOSITORIES.c.name.in_(map(storable, names))]
        query = select(*REPOSITORY_COLUMNS).where(*which).order_by(REPOSITORIES.c.name)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return [repository_record(row) for row in rows]

    async def states(self) -> Sequence[RepositoryState]:
        """Of all of them, by name: little, and quickly read."""
        columns = [REPOSITORIES.c[field.name] for field in fields(RepositoryState)]
        query = select(*columns)
        async with self._database.read() as connection:
            return [RepositoryState(*row) for row in await connection.execute(query.order_by(REPOSITORIES.c.name))]

    async def find(self, *, source: str, location: str) -> Sequence[Repository]:
        """Those of that place, by name."""
        columns = REPOSITORIES.c
        query = select(*REPOSITORY_COLUMNS).where(columns.source == source, columns.location == storable(location))
        async with self._database.read() as connection:
            return [repository_record(row) for row in await connection.execute(query.order_by(columns.name))]

    async def names_of(self, identities: Collection[str]) -> dict[str, str]:
        """Of those of these repositories that are registered, by id."""
        query = select(REPOSITORIES.c.id, REPOSITORIES.c.name).where(REPOSITORIES.c.id.in_(sorted(identities)))
        async with self._database.read() as connection:
            return {row.id: row.name for row in await connection.execute(query)}

    async def names(self) -> Sequence[str]:
        """All of them, in order."""
        async with self._database.read() as connection:
            return (await connection.scalars(select(REPOSITORIES.c.name).order_by(REPOSITORIES.c.name))).all()

    async def deactivate(self, name: str, *, guard: Guard | None = None) -> Repository:
        """It left the registry: no more ticks, the index stays. Registering it again switches it on. `guard`: see
        `register_all`."""
        return await self._set(name, active=False, paused_reason=None, guard=guard)

    async def pause(
        self, name: str, reason: str, *, expected: Repository | None = None, by: str = "pause"
    ) -> Repository:
        """No ticks until `resume`. What ticks and pushes asked for is withdrawn from the run that waits; what runs goes
        on, and a person may still sync it. `reason` must not be empty. `expected`: see `register`."""
        if not reason:
            raise UsageError("A pause needs a reason.")
        return await self._set(name, active=False, paused_reason=storable(reason), expected=expected, by=by)

    async def resume(self, name: str, *, expected: Repository | None = None) -> Repository:
        return await self._set(name, active=True, paused_reason=None, expected=expected)

    async def rename(self, identity: str, name: str) -> Repository:
        """The repository with this id is called `name` from now on, in its history too. Raises RepositoryNotFound,
        RepositoryExists where the name is another one's, UsageError where it is empty or too long."""
        _checked_name(name)
        try:
            async with self._database.write() as connection:
                row = await _locked(connection, REPOSITORIES.c.id == identity, identity)
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
        self,
        name: str,
        *,
        active: bool,
        paused_reason: str | None,
        expected: Repository | None = None,
        guard: Guard | None = None,
        by: str = "the registry",
    ) -> Repository:
        async with self._database.write() as connection:
            if guard is not None:
                await guard(connection)
            row = await _locked(connection, REPOSITORIES.c.name == storable(name), name)
            _require_as_expected(row, expected)
            identity = str(row.id)
            now = self._database.moment()
            changes = {"is_active": active, "paused_reason": paused_reason, "updated_at": now}
            if not active:
                await self._withdraw_unasked(connection, [identity], by)
            elif not row.is_active:
                changes["scheduled_since"] = now  # ticks of the pause are nobody's
            row = await _change(connection, identity, changes)
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
            await self._end_others(connection, identity, by)
            versions = select(VERSIONS.c.id).where(VERSIONS.c.repository_id == identity)
            mine = or_(FILES.c.repository_id == identity, FILES.c.repository_id.in_(versions))
            await connection.execute(delete(FILES).where(mine))
            await connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.id == identity))
            await self._database.announce(connection, REGISTRATIONS)

    async def _withdraw_unasked(self, connection: AsyncConnection, identities: Sequence[str], by: str) -> None:
        """What no person asked for. The caller has locked these repositories."""
        waiting = and_(RUNS.c.repository_id.in_(identities), is_active(), status_is(*WAITING))
        rows = (await connection.execute(locked(self._database, waiting))).all()
        unasked = (RunTrigger.SCHEDULE, RunTrigger.WEBHOOK)
        said = {"error_code": "REPOSITORY_PAUSED", "error_message": "The repository was paused."}
        await withdraw_of(connection, self._database, rows, unasked, by, **said)

    async def _end_others(self, connection: AsyncConnection, identity: str, by: Run | None) -> None:
        said = {"error_code": "REPOSITORY_REMOVED", "error_message": "The repository was removed."}
        found = await lock_unfinished(connection, self._database, identity)
        rows = [row for row in found if by is None or row.id != by.id]
        ids = select(RUNS.c.id).where(RUNS.c.id.in_([row.id for row in rows]))
        await break_off_attempts(connection, ids, self._database.moment(), **said)
        for row in rows:
            await move(connection, self._database, row, Event.REMOVE, **said)


class _RegisteredMeanwhile(Exception):
    """The name was registered after the transaction had locked what it found. Locking that row too would be out of
    order: the transaction begins anew."""


async def lock_repositories(
    connection: AsyncConnection, which: ColumnElement[bool], columns: Sequence[Any] = REPOSITORY_COLUMNS
) -> Sequence[Row[Any]]:
    """These rows are this transaction's alone, locked in the order of their ids. A transaction that changes several
    repositories locks them by one call of this: PostgreSQL ends one of two that lock in different orders."""
    # NO KEY UPDATE: writers of manifest rows hold a KEY SHARE lock by their foreign key, and need not wait.
    query = select(*columns).where(which).order_by(REPOSITORIES.c.id).with_for_update(key_share=True)
    return (await connection.execute(query)).all()


async def lock_repository(connection: AsyncConnection, name: str) -> str:
    """The id of the repository; its row and its queue are this transaction's alone. Raises RepositoryNotFound."""
    return str((await _locked(connection, REPOSITORIES.c.name == storable(name), name)).id)


async def lock_repository_by_id(connection: AsyncConnection, identity: str, shown: str) -> None:
    """As `lock_repository`, where the name may be another one by now."""
    await _locked(connection, REPOSITORIES.c.id == identity, shown)


async def _locked(connection: AsyncConnection, which: ColumnElement[bool], shown: str) -> Row[Any]:
    rows = await lock_repositories(connection, which)
    if not rows:
        raise await unknown_repository(connection, shown)
    return rows[0]


async def _change(connection: AsyncConnection, identity: str, changes: Mapping[str, Any]) -> Row[Any]:
    query = update(REPOSITORIES).where(REPOSITORIES.c.id == identity).values(**changes).returning(*REPOSITORY_COLUMNS)
    return (await connection.execute(query)).one()


def _indexed_by(resolved: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of a definition decides what the index holds."""
    return {key: value for key, value in (resolved or {}).items() if key not in _NOT_INDEXED_BY}


def conflict_over(name: str, file: str | None, row: Repository) -> RegistryConflict:
    return RegistryConflict(
        f"Repository {name!r} is in the registry file {file} and comes from {row.origin_words}; it stays as it is.",
        remedy=Remedy(
            "Rename one of the two, or settle it with `reposync apply --take-over`.",
            "Rename one of the two, or let whoever runs this server settle it.",
        ),
    )


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


def _name_taken(name: str) -> RepositoryExists:
    return RepositoryExists(f"There is another repository called {name!r}.")
