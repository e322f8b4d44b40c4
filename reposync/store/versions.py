"""Index versions: which points of a repository are searched, which are being made, and which wait to be removed.

`building -> live -> retired`. Search reads the live version alone. What `repositories` says of the index repeats the
live version, for programs before 0.2, which know no other; a repository that only these have synced has no version
here, and its points bear the repository's own id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import DefinitionChanged, NoEarlierVersion
from reposync.store.columns import known_fields, storable
from reposync.store.database import REGISTRATIONS, Database
from reposync.store.fence import hold
from reposync.store.repositories import lock_repositories, lock_repository, lock_repository_by_id
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.status import known
from reposync.store.tables import FILES, REPOSITORIES, REPOSITORY_COLUMNS, RUNS, VERSION_COLUMNS, VERSIONS
from reposync.store.version_attributes import AttributeFiles, elsewhere, load_attributes, write_attributes


class VersionState(StrEnum):
    """The values stand in the database and in its partial indexes: do not rename them."""

    BUILDING = "building"
    LIVE = "live"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexVersion:
    """A row of `index_versions`. Times are aware UTC.

    `id` is the `repository_id` of its points and of its manifest rows. `settings_key`: a digest of `settings`, which
    say how its points are made; None where that is not known, as of an index that an older program left halfway.
    `collection` is the configured name, `physical` the collection that has the points. `fingerprint` of the path rules
    under which the whole manifest was made; None while a run is changing it. `links`: where the page of a file is.
    `commit` is held completely, `partial_commit` but for files that could not be read. `epoch`: of the last run of this
    program that wrote to it.
    """

    id: str
    repository_id: str
    number: int
    state: VersionState | str
    settings_key: str | None
    settings: Mapping[str, Any]
    generation: int
    collection: str
    physical: str
    index_identity: str | None
    fingerprint: str | None
    links: str | None
    branch_name: str | None
    commit: str | None
    committed_at: datetime | None
    partial_commit: str | None
    epoch: int
    created_at: datetime
    live_at: datetime | None
    retired_at: datetime | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a repository keeps its live version although other settings are configured. `settings_key`: only these
    settings are not built (a person rolled back from them); None: none are."""

    reason: str
    settings_key: str | None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Hold:
        """As it stands in `repositories.index_hold`."""
        return cls(**known_fields(cls, stored))

    def covers(self, settings_key: str) -> bool:
        return self.settings_key in (None, settings_key)


@dataclass(frozen=True, slots=True)
class Published:
    """What a run says of the index that it leaves. `complete`: no file of the commit is missing in it."""

    commit: str
    committed_at: datetime | None
    complete: bool
    index_identity: str
    fingerprint: str
    fingerprint_before_02: str
    attributes: AttributeFiles
    links: str | None
    branch_name: str | None
    project_id: int | None


class Versions:
    """Every method raises StoreUnavailable; those that take a run raise LeaseLost and then have written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, repository_id: str) -> list[IndexVersion]:
        """The oldest first."""
        query = select(*VERSION_COLUMNS).where(VERSIONS.c.repository_id == repository_id).order_by(VERSIONS.c.number)
        async with self._database.read() as connection:
            return [_record(row) for row in await connection.execute(query)]

    async def all(self, identities: Collection[str] | None = None) -> dict[str, list[IndexVersion]]:
        """Repository id -> its versions, the oldest first; of these repositories alone, where they are named."""
        query = select(*VERSION_COLUMNS).order_by(VERSIONS.c.repository_id, VERSIONS.c.number)
        if identities is not None:
            query = query.where(VERSIONS.c.repository_id.in_(identities))
        found: dict[str, list[IndexVersion]] = {}
        async with self._database.read() as connection:
            for row in await connection.execute(query):
                found.setdefault(row.repository_id, []).append(_record(row))
        return found

    async def attributes(self, version_id: str) -> dict[str, list[str]]:
        """The lines of `.gitattributes` that it was published with: path -> (blob sha, lines)."""
        async with self._database.read() as connection:
            return await load_attributes(connection, version_id)

    async def physical_collections(self) -> set[str]:
        """Every collection that a version has points in."""
        async with self._database.read() as connection:
            return set((await connection.execute(select(VERSIONS.c.physical).distinct())).scalars())

    async def not_on(self, collection: str, physical: str) -> int:
        """How many active repositories of that collection, with something indexed, are not live in `physical`."""
        each, version = REPOSITORIES.c, VERSIONS.c
        own = and_(version.repository_id == each.id, version.state == VersionState.LIVE)
        indexed = or_(version.id.is_not(None), each.last_sync_at.is_not(None))
        elsewhere = or_(version.id.is_(None), version.physical != physical)
        query = (
            select(func.count())
            .select_from(REPOSITORIES)
            .join(VERSIONS, own, isouter=True)
            .where(each.collection == collection, each.is_active, indexed, elsewhere)
        )
        async with self._database.read() as connection:
            return int(await connection.scalar(query) or 0)

    async def uses(self, physical: str) -> bool:
        """Whether any version has, or may have, points in that collection."""
        query = select(VERSIONS.c.id).where(VERSIONS.c.physical == physical).limit(1)
        unversioned = select(REPOSITORIES.c.id).where(
            func.coalesce(REPOSITORIES.c.indexed_collection, REPOSITORIES.c.collection) == physical,
            ~select(VERSIONS.c.id).where(VERSIONS.c.repository_id == REPOSITORIES.c.id).exists(),
        )
        async with self._database.read() as connection:
            for each in (query, unversioned.limit(1)):
                if await connection.scalar(each) is not None:
                    return True
        return False

    # In the name of a run ------------------------------------------------------------------------------------------

    async def add(self, run: Run, state: VersionState, **columns: Any) -> IndexVersion:
        """A new version. The first of a repository has the repository's id, so that an index that the database forgot
        is found again. `building` takes the place of another one that was being built, which is retired."""
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, run.repository_id, run.repository)
            await hold(connection, run)
            mine = VERSIONS.c.repository_id == run.repository_id
            known = (await connection.execute(select(VERSIONS.c.id, VERSIONS.c.number).where(mine))).all()
            if state is VersionState.BUILDING:
                await self._retire(connection, and_(mine, VERSIONS.c.state == VersionState.BUILDING))
            is_first = all(row.id != run.repository_id for row in known) and not known
            values = {
                "id": run.repository_id if is_first else str(uuid.uuid4()),
                "repository_id": run.repository_id,
                "number": 1 + max((row.number for row in known), default=0),
                "state": state,
                "settings": {},
                "attributes": {},
                "created_at": self._database.moment(),
                **columns,
            }
            return _record(
                (await connection.execute(insert(VERSIONS).values(**values).returning(*VERSION_COLUMNS))).one()
            )

    async def note(self, run: Run, version_id: str, **columns: Any) -> IndexVersion:
        """Write these columns."""
        async with self._database.write() as connection:
            await hold(connection, run)
            return await self._change(connection, version_id, columns)

    async def build_again(self, run: Run, version: IndexVersion, **columns: Any) -> IndexVersion:
        """A retired version is going to be live again: what it holds is brought up to date."""
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, run.repository_id, run.repository)
            await hold(connection, run)
            building = and_(VERSIONS.c.repository_id == run.repository_id, VERSIONS.c.state == VersionState.BUILDING)
            await self._retire(connection, building)
            changes = {"state": VersionState.BUILDING, "retired_at": None, "fingerprint": None, **columns}
            return await self._change(connection, version.id, changes)

    async def begin_epoch(
        self,
        run: Run,
        version: IndexVersion,
        *,
        identity: str,
        fingerprint_before_02: str | None = None,
        above: int | None = None,
    ) -> int:
        """A number for this attempt's writes, higher than any before it, and than `above`. Until the run publishes, the
        version's manifest is a mixture: its fingerprint holds no more. `identity`: of the collection that is written
        to. `fingerprint_before_02`: what programs before 0.2 are to take for it."""
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, run.repository_id, run.repository)
            await hold(connection, run)
            known = REPOSITORIES.c.epoch
            highest = known if above is None else case((known < above, above), else_=known)
            changes: dict[str, Any] = {"epoch": highest + 1}
            if version.id == run.repository_id:
                changes |= {"content_fingerprint": fingerprint_before_02, "indexed_collection": version.collection}
            mine = update(REPOSITORIES).where(REPOSITORIES.c.id == run.repository_id)
            row = (await connection.execute(mine.values(**changes).returning(REPOSITORIES.c.epoch))).one()
            noted = {"epoch": row.epoch, "index_identity": identity, "fingerprint": None}
            await self._change(connection, version.id, noted)
            first = and_(RUNS.c.id == run.id, RUNS.c.full_from_epoch.is_(None))
            await connection.execute(update(RUNS).where(first).values(full_from_epoch=row.epoch - 1))
            return int(row.epoch)

    async def publish(self, run: Run, version: IndexVersion, read: Repository, published: Published) -> IndexVersion:
        """`version` holds the commit, and is what is searched from now on; the one that was live before is retired.
        `read`: the definition that the run went by. Raises DefinitionChanged where that is another one by now."""
        attributes = await asyncio.to_thread(elsewhere, published.attributes)
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, run.repository_id, run.repository)
            await hold(connection, run)
            query = select(*REPOSITORY_COLUMNS).where(REPOSITORIES.c.id == run.repository_id)
            row = (await connection.execute(query)).one()
            if row.generation != read.generation or any(getattr(row, key) != getattr(read, key) for key in _DEFINED_BY):
                raise DefinitionChanged(
                    f"{run.repository!r} was registered differently while this run was under way; its index stays as "
                    "it was, and a run for the new definition is queued."
                )
            now = self._database.moment()
            if version.state is not VersionState.LIVE:
                mine = VERSIONS.c.repository_id == run.repository_id
                await self._retire(connection, and_(mine, VERSIONS.c.state == VersionState.LIVE))
            complete = {"commit_sha": published.commit, "committed_at": published.committed_at, "partial_commit": None}
            changes: dict[str, Any] = {
                "state": VersionState.LIVE,
                "generation": row.generation,
                "index_identity": published.index_identity,
                "fingerprint": published.fingerprint,
                "attributes": attributes,
                "links": published.links,
                **(complete if published.complete else {"partial_commit": published.commit}),
            }
            if published.branch_name is not None:
                changes["branch_name"] = published.branch_name
            if version.state is not VersionState.LIVE:
                changes |= {"live_at": now, "retired_at": None}
            await write_attributes(connection, version.id, published.attributes, attributes)
            live = await self._change(connection, version.id, changes)
            repeated = _repeated(live) | {
                "last_sync_at": now,
                "content_fingerprint": published.fingerprint_before_02,
                # Programs before 0.2 read `.gitattributes` again.
                "attributes": {},
                "updated_at": now,
            }
            if published.project_id is not None:
                repeated["project_id"] = published.project_id
            await connection.execute(
                update(REPOSITORIES).where(REPOSITORIES.c.id == run.repository_id).values(**repeated)
            )
            return live

    async def remove(self, run: Run, version_id: str) -> None:
        """The version and its manifest; its points are gone already."""
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(delete(FILES).where(FILES.c.repository_id == version_id))
            await connection.execute(delete(VERSIONS).where(VERSIONS.c.id == version_id))

    # In the name of a person ---------------------------------------------------------------------------------------

    async def roll_back(self, name: str) -> tuple[IndexVersion, IndexVersion]:
        """The version that was live before is so again, at once; the one that was live is retired, and is not built
        again until the settings change or a person resumes it. Returns both, the new live one first.

        Raises RepositoryNotFound, and NoEarlierVersion where no retired version is kept."""
        async with self._database.write() as connection:
            identity = await lock_repository(connection, name)
            mine = VERSIONS.c.repository_id == identity
            live = await self._one(connection, and_(mine, VERSIONS.c.state == VersionState.LIVE))
            kept = and_(mine, VERSIONS.c.state == VersionState.RETIRED, VERSIONS.c.live_at.is_not(None))
            before = await self._one(connection, kept)
            if live is None or before is None:
                raise NoEarlierVersion(
                    f"No earlier version of {name!r} is kept.",
                    remedy="`index: {keep_retired: 24h}` keeps the versions to come for a day.",
                )
            await self._retire(connection, VERSIONS.c.id == live.id)
            again = {"state": VersionState.LIVE, "retired_at": None, "live_at": self._database.moment()}
            now_live = await self._change(connection, before.id, again)
            held = {"reason": f"rolled back from version {live.number}", "settings_key": live.settings_key}
            # A run under way began with another live version: it publishes nothing.
            generation = REPOSITORIES.c.generation + 1
            changes = {**_repeated(now_live), "index_hold": held, "content_fingerprint": None, "generation": generation}
            await connection.execute(update(REPOSITORIES).where(REPOSITORIES.c.id == identity).values(**changes))
            await self._database.announce(connection, REGISTRATIONS)
            return now_live, live

    async def set_hold(self, names: Collection[str], held: Hold | None) -> None:
        """Whether repositories keep their live version although other settings are configured. A run under way that
        builds another one makes it live no more: it is superseded."""
        changes: dict[str, Any] = {"index_hold": None}
        if held is not None:
            value = {"reason": held.reason, "settings_key": held.settings_key}
            changes = {"index_hold": value, "generation": REPOSITORIES.c.generation + 1}
        async with self._database.write() as connection:
            named = REPOSITORIES.c.name.in_([storable(name) for name in names])
            rows = await lock_repositories(connection, named)
            these = REPOSITORIES.c.id.in_([row.id for row in rows])
            await connection.execute(update(REPOSITORIES).where(these).values(**changes))

    # -----------------------------------------------------------------------------------------------------------------

    async def _one(self, connection: AsyncConnection, which: Any) -> IndexVersion | None:
        latest = VERSIONS.c.retired_at.desc().nulls_first()
        row = (await connection.execute(select(*VERSION_COLUMNS).where(which).order_by(latest).limit(1))).one_or_none()
        return None if row is None else _record(row)

    async def _retire(self, connection: AsyncConnection, which: Any) -> None:
        retired = {"state": VersionState.RETIRED, "retired_at": self._database.moment()}
        await connection.execute(update(VERSIONS).where(which).values(**retired))

    async def _change(self, connection: AsyncConnection, version_id: str, changes: Mapping[str, Any]) -> IndexVersion:
        query = update(VERSIONS).where(VERSIONS.c.id == version_id).values(**changes).returning(*VERSION_COLUMNS)
        return _record((await connection.execute(query)).one())


# A change of one of these is another definition, also where a program before 0.2 wrote it and counted no generation.
_DEFINED_BY = ("location", "source", "branch", "collection")


def _repeated(live: IndexVersion) -> dict[str, Any]:
    """What `repositories` repeats of its live version."""
    return {
        "live_version": live.id,
        "last_commit": live.commit,
        "last_committed_at": live.committed_at,
        "index_identity": live.index_identity,
        # The name and not the physical collection: a program before 0.2 would take that for a former one, and empty it.
        "indexed_collection": live.collection,
    }


def unwritten_version(repository: Repository, state: VersionState, columns: Mapping[str, Any]) -> IndexVersion:
    """What `Versions.add` would return for the first version of a repository, without writing it."""
    empty = {column.name: None for column in VERSION_COLUMNS}
    made = {"id": repository.id, "repository_id": repository.id, "number": 1, "epoch": 0, "generation": 0}
    now = {"settings": {}, "state": state, "created_at": repository.updated_at}
    return _version({**empty, **made, **now, **columns})


def _record(row: Row[Any]) -> IndexVersion:
    return _version(dict(row._mapping))


def _version(values: dict[str, Any]) -> IndexVersion:
    values["commit"] = values.pop("commit_sha")
    values["state"] = known(VersionState, values["state"])
    return IndexVersion(**values)
