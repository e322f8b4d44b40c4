"""The registered repositories: registering, reading, pausing and removing them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, Text, and_, case, cast, delete, func, null, or_, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import RegistryConflict, RepositoryChanged, RepositoryNotFound, UsageError
from reposync.next_steps import RemoveRepository
from reposync.store.attempts import require_held
from reposync.store.columns import sanitize_text
from reposync.store.database import Connection, Guard, Stored
from reposync.store.repository import (
    MAX_NAME_CHARS,
    Registration,
    Repository,
    belongs_to_another,
    repository_id,
)
from reposync.store.repository_rows import (
    change_repository,
    lock_repositories,
    lock_repository,
    missing_repository,
    outdate_links,
    same_repository,
    scheduled,
)
from reposync.store.run import Run
from reposync.store.run_state import REPOSITORY_REMOVED, Event, cancel, lock_unfinished, locked, move
from reposync.store.status import WAITING, RunTrigger
from reposync.store.tables import (
    FILES,
    REPOSITORIES,
    REPOSITORY_COLUMNS,
    RUNS,
    VERSIONS,
    GroupEntry,
    is_active,
    status_is,
)

_REGISTERED = set(Registration.model_fields) - {"name"}
_ELSEWHERE = frozenset({"location", "source", "branch", "collection"})
_STATE_COLUMNS = tuple(column for column in REPOSITORY_COLUMNS if column.name not in ("definition", "resolved"))
_NOT_INDEXED = frozenset({"name", "schedule", "timezone", "username", "password", "readers"})


@dataclass(frozen=True, slots=True)
class RepositoryPlace:
    """`readers`: as in its definition."""

    id: str
    source: str
    location: str
    project_id: int | None
    readers: frozenset[str]


class Repositories(Stored):
    """Methods that take a run raise LeaseLost, and then have written nothing."""

    # Reading ---------------------------------------------------------------------------------------------------------

    async def get(self, name: str, identity: str | None = None) -> Repository:
        """By its `identity`, if given: it may have been renamed. Raises RepositoryNotFound."""
        async with self._database.read() as connection:
            row = await connection.one_or_none(select(*REPOSITORY_COLUMNS).where(same_repository(name, identity)))
            if row is None:
                raise await missing_repository(connection, name, identity)
        return Repository.of(row)

    async def by_id(self, identity: str) -> Repository:
        """Raises RepositoryNotFound."""
        return await self.get(identity, identity)

    async def list(self, names: Collection[str] | None = None) -> list[Repository]:
        """By name. `names`: only these."""
        which = [] if names is None else [REPOSITORIES.c.name.in_(map(sanitize_text, names))]
        return [Repository.of(row) for row in await self._rows(select(*REPOSITORY_COLUMNS).where(*which))]

    async def find(self, *, source: str, location: str) -> Sequence[Repository]:
        """The repositories with this location, by name."""
        columns = REPOSITORIES.c
        same = and_(columns.source == source, columns.location == sanitize_text(location))
        return [Repository.of(row) for row in await self._rows(select(*REPOSITORY_COLUMNS).where(same))]

    async def states(self, identities: Collection[str] | None = None) -> Sequence[Repository]:
        """All repositories, or these, by name, without their definitions: cheap to read."""
        which = [] if identities is None else [REPOSITORIES.c.id.in_(sorted(identities))]
        return [Repository.of(row) for row in await self._rows(select(*_STATE_COLUMNS).where(*which))]

    async def places(self) -> Sequence[RepositoryPlace]:
        """The places of all repositories: what decides who may read them."""
        columns = REPOSITORIES.c
        # Few definitions name readers, and parsing a thousand of them takes longer than the query.
        named = case((cast(columns.resolved, Text).like('%"readers"%'), columns.resolved), else_=null()).label("named")
        query = select(columns.id, columns.source, columns.location, columns.project_id, named)
        rows = await self._rows(query)
        return [
            RepositoryPlace(row.id, row.source, row.location, row.project_id, frozenset(_readers(row.named)))
            for row in rows
        ]

    async def names(self) -> Sequence[str]:
        """All names, sorted."""
        return [row.name for row in await self._rows(select(REPOSITORIES.c.name))]

    async def names_of(self, identities: Collection[str] | None = None) -> dict[str, str]:
        """The names of all repositories, or of those of these that are registered, by id."""
        which = [] if identities is None else [REPOSITORIES.c.id.in_(sorted(identities))]
        rows = await self._database.rows(select(REPOSITORIES.c.id, REPOSITORIES.c.name).where(*which))
        return {row.id: row.name for row in rows}

    async def of_project(self, project_id: int, locations: Collection[str]) -> Sequence[Repository]:
        """By name: repositories with this project number, on any server, and those without a known number at one of
        `locations` (lower-case addresses). Not those that were only synced by hand."""
        columns = REPOSITORIES.c
        query = select(*REPOSITORY_COLUMNS).where(~REPOSITORIES.c.by_hand)
        # Two index ranges: for a condition with OR, SQLite would read all rows if it has no statistics.
        by_number = query.where(columns.source == "gitlab", columns.project_id == project_id)
        by_place = query.where(columns.project_id.is_(None), func.lower(columns.location).in_(sorted(locations)))
        found = [Repository.of(row) for each in (by_number, by_place) for row in await self._database.rows(each)]
        return sorted(found, key=lambda each: each.name)

    async def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        return await self._database.rows(query.order_by(REPOSITORIES.c.name))

    # Registering -----------------------------------------------------------------------------------------------------

    async def register(self, registration: Registration, *, expected: Repository | None = None) -> Repository:
        """Insert or update by name. A definition that requires a different index increments the generation: a run that
        began before publishes nothing. The index is unchanged until the next sync. A repository that `deactivate`
        switched off becomes active again; a paused one stays paused. `expected`: the row that the caller read.

        Raises UsageError for a name that is empty or over 255 characters, RepositoryChanged if the row differs from
        `expected`.
        """
        (row,) = await self.register_all([registration], expected=expected)
        return row

    async def register_all(
        self,
        registrations: Collection[Registration],
        *,
        leaving: Collection[str] = (),
        expected: Repository | None = None,
        guard: Guard | None = None,
    ) -> Sequence[Repository]:
        """As `register`, and `deactivate` of those that are `leaving`, in one transaction that begins with `guard`.
        Returns the registered ones. Raises RegistryConflict for the name of a repository that does not belong to the
        registry file."""
        named = REPOSITORIES.c.name.in_([*(sanitize_text(each.name) for each in registrations), *leaving])
        while True:
            with suppress(_RegisteredMeanwhile):
                async with self._database.write(guard) as connection:
                    # Existing rows are locked first, and the others inserted, in the same order by every caller.
                    rows = {row.name: row for row in await lock_repositories(connection, named)}
                    now = await connection.now()
                    ordered = sorted(registrations, key=lambda each: repository_id(each.name))
                    registered = [await self._register(connection, each, rows, now, expected) for each in ordered]
                    for name in rows.keys() & set(leaving):
                        await self._switch(connection, rows[name], now, is_active=False)
                    return registered

    async def _register(
        self,
        connection: Connection,
        registration: Registration,
        rows: dict[str, Row[Any]],
        now: datetime,
        expected: Repository | None,
    ) -> Repository:
        """`rows`: those that are registered and locked, by name. Raises _RegisteredMeanwhile."""
        name = _checked_name(registration.name)
        columns = registration.model_dump(include=_REGISTERED) | {
            "location": sanitize_text(registration.location),
            "branch": None if registration.branch is None else sanitize_text(registration.branch),
        }
        if registration.project_id is None:
            del columns["project_id"]
        row = rows.get(sanitize_text(name))
        if row is None:
            since = {"created_at": now, "updated_at": now, **scheduled(registration, now)}
            row = await self._insert(connection, name, {"is_active": True, "epoch": 0} | since | columns)
        record = Repository.of(row)
        _require_as_expected(record, expected)
        if belongs_to_another(record, registration):
            raise conflict_over([record])
        changes = {key: value for key, value in columns.items() if getattr(row, key) != value}
        if row.origin_host is not None and "location" not in changes:
            changes.pop("origin_host", None)  # the machine that has the folder
        elsewhere = bool(changes.keys() & _ELSEWHERE)
        if elsewhere or _indexed(row.resolved) != _indexed(registration.resolved):
            changes["generation"] = REPOSITORIES.c.generation + 1
        if elsewhere:
            changes |= {"head_commit": None, "lag_since": None}
        if "location" in changes and registration.project_id is None:
            changes["project_id"] = None  # the number belongs to a different project
        if record.has_left:
            changes["is_active"] = True
        if "is_active" in changes or (row.is_active and changes.keys() & {"cron_expression", "timezone"}):
            changes |= scheduled(registration, now, row.last_sync_at)
        if changes:
            row = await change_repository(connection, row.id, changes | {"updated_at": now})
        if "location" in changes:
            await outdate_links(connection, row.id)
        rows[row.name] = row
        return Repository.of(row)

    async def _insert(self, connection: Connection, name: str, columns: Mapping[str, Any]) -> Row[Any]:
        # A second id, if a renamed repository has kept the id of this name.
        for identity in (repository_id(name), repository_id(f"{name}\n{uuid.uuid4()}")):
            insert = self._database.insert(REPOSITORIES).values(id=identity, name=name, **columns)
            query = insert.on_conflict_do_nothing().returning(*REPOSITORY_COLUMNS)
            if (row := await connection.one_or_none(query)) is not None:
                return row
        raise _RegisteredMeanwhile

    # Pausing, removing -----------------------------------------------------------------------------------------------

    async def deactivate(self, *names: str) -> None:
        """They left the registry: no more ticks, the index stays. A new registration activates them again."""
        await self.register_all([], leaving=names)

    async def pause(
        self,
        name: str,
        reason: str,
        identity: str | None = None,
        *,
        expected: Repository | None = None,
        by: str = "a person",
    ) -> Repository:
        """No ticks until `resume`. A waiting run that only ticks and pushes asked for is cancelled; a running one goes
        on, and a person can still sync the repository. `reason` must not be empty. `identity`: see `get`; `expected`:
        see `register`. Raises RepositoryInactive, as `resume` does."""
        if not reason:
            raise UsageError("A pause needs a reason.")
        async with self._database.write() as connection:
            row = await self._registered(connection, name, identity, expected)
            now = await connection.now()
            return await self._switch(connection, row, now, is_active=False, reason=sanitize_text(reason), by=by)

    async def resume(self, name: str, identity: str | None = None, *, expected: Repository | None = None) -> Repository:
        async with self._database.write() as connection:
            row = await self._registered(connection, name, identity, expected)
            return await self._switch(connection, row, await connection.now(), is_active=True)

    async def rename(self, row: Repository, name: str) -> None:
        """The name applies to the history too, and to the points after the next run; one that began before publishes
        nothing. Raises RepositoryChanged if a different repository has the name, or the row was removed."""
        try:
            async with self._database.write() as connection:
                renamed = {"name": name, "generation": REPOSITORIES.c.generation + 1}
                renamed["updated_at"] = self._database.moment()
                identity = (await lock_repository(connection, row.name, row.id)).id
                await change_repository(connection, identity, renamed)
                runs = update(RUNS).where(RUNS.c.repository_id == identity)
                await connection.execute(runs.values(repository=name))
                await outdate_links(connection, identity)
        except (IntegrityError, RepositoryNotFound) as error:
            raise RepositoryChanged(
                f"{row.name!r} was not renamed to {name!r}, which was registered meanwhile, or it was removed."
            ) from error

    async def adopt(self, name: str, project_id: int, *, expected: Repository) -> Repository:
        """Record that a different project is at its address now. A run that began before publishes nothing; the index
        stays until a run has built that of the new project. Raises RepositoryChanged if the row is not `expected`."""
        async with self._database.write() as connection:
            row = await lock_repository(connection, name)
            _require_as_expected(Repository.of(row), expected)
            changes: dict[str, Any] = {"project_id": project_id, "head_commit": None, "lag_since": None}
            changes |= {"generation": REPOSITORIES.c.generation + 1, "updated_at": self._database.moment()}
            row = await change_repository(connection, row.id, changes)
            return Repository.of(row)

    async def _registered(
        self, connection: Connection, name: str, identity: str | None, expected: Repository | None
    ) -> Row[Any]:
        row = await lock_repository(connection, name, identity)
        _require_as_expected(Repository.of(row), expected)
        Repository.of(row).require_registered()
        return row

    async def _switch(
        self,
        connection: Connection,
        row: Row[Any],
        now: datetime,
        *,
        is_active: bool,
        reason: str | None = None,
        by: str = "",
    ) -> Repository:
        """The row is locked. Without a `reason` an inactive repository has left the registry."""
        changes = {"is_active": is_active, "paused_reason": reason, "updated_at": now}
        if not is_active:
            why = "The repository has left the registry." if reason is None else f"The repository was paused by {by}."
            await self._cancel_automatic(connection, row.id, why)
            changes["next_due_at"] = None
        elif not row.is_active:
            changes |= scheduled(Repository.of(row), now, row.last_sync_at)
        return Repository.of(await change_repository(connection, row.id, changes))

    async def remove(self, name: str, *, by: Run | None = None) -> None:
        """Delete the repository and its manifest; its history stays. Unfinished runs are cancelled, and their workers
        find the lease lost at the next write. `by`: the run of this repository that does this; it is not cancelled and
        must still be held by its worker. Raises RepositoryNotFound."""
        async with self._database.write() as connection:
            identity = (await lock_repository(connection, name, by.repository_id if by is not None else None)).id
            if by is not None:
                await require_held(connection, by)
            await self._cancel_runs(connection, identity, by)
            versions = select(VERSIONS.c.id).where(VERSIONS.c.repository_id == identity)
            mine = or_(FILES.c.version_id == identity, FILES.c.version_id.in_(versions))
            await connection.execute(delete(FILES).where(mine))
            await connection.execute(delete(REPOSITORIES).where(REPOSITORIES.c.id == identity))

    async def _cancel_automatic(self, connection: Connection, identity: str, why: str) -> None:
        """Cancel the waiting runs that no person asked for. The caller has locked the repository."""
        waiting = and_(RUNS.c.repository_id == identity, is_active(), status_is(*WAITING))
        automatic = RUNS.c.trigger.in_((RunTrigger.SCHEDULE, RunTrigger.WEBHOOK))  # the most urgent of all
        for row in await connection.rows(locked(connection, waiting, automatic)):
            await cancel(connection, row, "REPOSITORY_PAUSED", why)

    async def _cancel_runs(self, connection: Connection, identity: str, by: Run | None) -> None:
        error: dict[str, Any] = {"error_code": REPOSITORY_REMOVED, "error_message": "The repository was removed."}
        for row in await lock_unfinished(connection, identity):
            if by is None or row.id != by.id:
                await move(connection, row, Event.STOP, **error)


class _RegisteredMeanwhile(Exception):
    """The name was registered after the transaction had locked existing rows. Locking that row too would violate the
    lock order: the transaction starts again."""


def _readers(resolved: Mapping[str, Any] | None) -> Sequence[str]:
    return (resolved or {}).get("readers") or ()


def _indexed(resolved: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of a definition that determines the index."""
    return {key: value for key, value in (resolved or {}).items() if key not in _NOT_INDEXED}


def conflict_over(rows: Sequence[Repository], groups: Sequence[GroupEntry] = ()) -> RegistryConflict:
    named = [f"{row.name!r} comes from {row.origin_words}" for row in rows]
    named += [f"the group {group.path!r} comes from {group.origin_words}" for group in groups]
    what = " and ".join(["repositories"] * bool(rows) + ["groups"] * bool(groups))
    return RegistryConflict(
        f"The registry file has names of {what} that it did not register, and they are unchanged: {'; '.join(named)}.",
        remedy=f"Rename the entries, or remove these {what}.",
        next_steps=[RemoveRepository(row.name) for row in rows[:1]],
    )


def _require_as_expected(row: Repository, expected: Repository | None) -> None:
    """Compares what a person can change. Syncs change other columns all the time."""
    if expected is None or expected.changeable == row.changeable:
        return
    raise RepositoryChanged(f"{expected.name!r} was changed meanwhile; nothing was written.", remedy="Read it again.")


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(f"A repository's name has 1 to {MAX_NAME_CHARS} characters; this one has {len(name)}.")
    return name
