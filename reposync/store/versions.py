"""Index versions: which points of a repository are searched, which are being built, and which will be removed.

`building -> live -> retired`. Search reads only live versions. Lines of `.gitattributes` (up to 13 MB) are read only by
runs and audits."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Row, and_, case, delete, desc, func, insert, select, update

from reposync.errors import DefinitionChanged
from reposync.store.attempts import fence, require_held
from reposync.store.database import Connection, Stored
from reposync.store.repository import Repository
from reposync.store.repository_rows import change_repository, lock_repository
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import (
    COMMIT_WORDS,
    FILES,
    REPOSITORIES,
    RUNS,
    VERSION_COLUMNS,
    VERSIONS,
    IndexVersion,
    VersionState,
    new_head,
)

AttributeFiles: TypeAlias = Mapping[str, Sequence[str]]
"""Path of a `.gitattributes` file -> (blob sha, its linguist lines)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the database knows of where a published version's points came from. `commits`: (the first epoch of a run,
    the commit that it indexed), by epoch; None if it is not known which one."""

    commits: Sequence[tuple[int, str | None]]

    def commit_of(self, epoch: int) -> str | None:
        at = bisect_right(self.commits, epoch, key=itemgetter(0)) - 1
        return self.commits[at][1] if at >= 0 else None


@dataclass(frozen=True, slots=True)
class Published:
    """The index that a run leaves. `complete`: no file of the commit is missing in it. `meaning_pending`: see
    `IndexVersion`; `secret_rules` too."""

    commit: str
    committed_at: datetime | None
    complete: bool
    index_identity: str
    fingerprint: str
    attributes: AttributeFiles
    links: str | None
    branch_name: str | None
    project_id: int | None
    meaning_pending: int | None = None
    secret_rules: str | None = None


class Versions(Stored):
    """Methods that take a run raise LeaseLost, and then have written nothing."""

    async def of(self, repository_id: str) -> list[IndexVersion]:
        """Oldest first."""
        return (await self.all([repository_id])).get(repository_id, [])

    async def all(self, identities: Collection[str] | None = None) -> dict[str, list[IndexVersion]]:
        """Repository id -> its versions, oldest first. `identities`: only of these repositories."""
        query = select(*VERSION_COLUMNS).order_by(VERSIONS.c.repository_id, VERSIONS.c.number)
        if identities is not None:
            query = query.where(VERSIONS.c.repository_id.in_(identities))
        found: dict[str, list[IndexVersion]] = {}
        for row in await self._database.rows(query):
            found.setdefault(row.repository_id, []).append(IndexVersion.of(row))
        return found

    async def attributes(self, version_id: str) -> dict[str, list[str]]:
        """The lines of `.gitattributes` that it was published with: path -> (blob sha, lines)."""
        stored = await self._database.scalar(select(VERSIONS.c.attributes).where(VERSIONS.c.id == version_id))
        return {path: list(entry) for path, entry in (stored or {}).items()}

    async def physical_collections(self) -> set[str]:
        """Every collection that has, or may have, points of a version."""
        return set(await self._database.scalars(select(VERSIONS.c.physical).distinct()))

    async def not_on(self, collection: str, physical: str) -> int:
        """How many active, indexed repositories of that collection are not live in `physical`."""
        each, version = REPOSITORIES.c, VERSIONS.c
        joined = REPOSITORIES.join(VERSIONS, and_(version.repository_id == each.id, version.state == VersionState.LIVE))
        query = select(func.count()).select_from(joined)
        query = query.where(each.collection == collection, each.is_active, version.physical != physical)
        return int(await self._database.scalar(query) or 0)

    async def commit_words(self, version_ids: Collection[str]) -> dict[str, bytes]:
        """What commits say of the files of these versions, as `CommitWords` stores it, by version; as far as it was
        read."""
        of_version = VERSIONS.join(COMMIT_WORDS, COMMIT_WORDS.c.repository_id == VERSIONS.c.repository_id)
        query = select(VERSIONS.c.id, COMMIT_WORDS.c.words).select_from(of_version)
        known = VERSIONS.c.id.in_(sorted(version_ids)), COMMIT_WORDS.c.words.is_not(None)
        return {row[0]: row[1] for row in await self._database.rows(query.where(*known))}

    async def asked_for_commit_words(self, repository_id: str, seconds: float) -> bool:
        """Whether the source was asked for them in the last `seconds`."""
        mine = COMMIT_WORDS.c.repository_id == repository_id
        query = select(COMMIT_WORDS.c.read_at > self._database.moment(-seconds)).where(mine)
        return bool(await self._database.scalar(query))

    # By runs ---------------------------------------------------------------------------------------------------------

    async def add(self, run: Run, state: VersionState, **columns: Any) -> IndexVersion:
        """A new version. The first one of a repository has the repository's id, so that an index that the database lost
        is found again. A `building` version replaces one that was being built, which is retired."""
        async with self._database.write() as connection:
            await self._lock(connection, run)
            mine = VERSIONS.c.repository_id == run.repository_id
            last: int = await connection.scalar(select(func.coalesce(func.max(VERSIONS.c.number), 0)).where(mine))
            if state is VersionState.BUILDING:
                await self._retire(connection, mine, VersionState.BUILDING)
            values = {
                "id": str(uuid.uuid4()) if last else run.repository_id,
                "repository_id": run.repository_id,
                "number": 1 + last,
                "state": state,
                "settings": {},
                "attributes": {},
                "created_at": self._database.moment(),
                **columns,
            }
            new = insert(VERSIONS).values(**values).returning(*VERSION_COLUMNS)
            return IndexVersion.of(await connection.one(new))

    async def build_again(self, run: Run, version: IndexVersion, **columns: Any) -> IndexVersion:
        """A retired version will become live again: it is brought up to date first."""
        async with self._database.write() as connection:
            await self._lock(connection, run)
            await self._retire(connection, VERSIONS.c.repository_id == run.repository_id, VersionState.BUILDING)
            changes = {"state": VersionState.BUILDING, "retired_at": None, "fingerprint": None, **columns}
            return await self._change(connection, version.id, changes)

    async def begin_epoch(self, run: Run, version: IndexVersion, *, identity: str, above: int | None = None) -> int:
        """A number for this attempt's writes, higher than all before it and than `above`. The version's fingerprint is
        cleared: its manifest is mixed until the run publishes. `identity`: of the collection that is written to."""
        async with self._database.write() as connection:
            await self._lock(connection, run)
            known = REPOSITORIES.c.epoch
            highest = known if above is None else case((known < above, above), else_=known)
            epoch: int = (await change_repository(connection, run.repository_id, {"epoch": highest + 1})).epoch
            begun = {"epoch": epoch, "index_identity": identity, "fingerprint": None}
            await self._change(connection, version.id, begun)
            first = and_(RUNS.c.id == run.id, RUNS.c.full_from_epoch.is_(None))
            await connection.execute(update(RUNS).where(first).values(full_from_epoch=epoch - 1))
            return epoch

    async def publish(self, run: Run, version: IndexVersion, read: Repository, published: Published) -> IndexVersion:
        """`version` holds the commit and is searched from now on; the previous live one is retired. `read`: the
        definition that the run used. Raises DefinitionChanged if it changed since."""
        async with self._database.write() as connection:
            row = await self._lock(connection, run)
            if row.generation != read.generation:
                raise DefinitionChanged(
                    f"The definition of {run.repository!r} changed during this run; its index is unchanged, and the "
                    "run begins again."
                )
            now = self._database.moment()
            complete = {"commit_sha": published.commit, "committed_at": published.committed_at, "partial_commit": None}
            changes: dict[str, Any] = {
                "state": VersionState.LIVE,
                "generation": row.generation,
                "index_identity": published.index_identity,
                "fingerprint": published.fingerprint,
                "attributes": {path: list(entry) for path, entry in published.attributes.items()},
                "links": published.links,
                "meaning_pending": published.meaning_pending,
                "secret_rules": published.secret_rules,
                **(complete if published.complete else {"partial_commit": published.commit}),
            }
            is_filled = version.meaning_pending is not None and published.meaning_pending is None
            if is_filled and not published.complete and version.commit_sha == published.commit:
                # The model refused texts of files that were found by their words: the commit is not complete after all.
                changes |= {"commit_sha": None, "committed_at": None}
            if published.branch_name is not None:
                changes["branch_name"] = published.branch_name
            if version.state is not VersionState.LIVE:
                await self._retire(connection, VERSIONS.c.repository_id == run.repository_id, VersionState.LIVE)
                changes |= {"live_at": now, "retired_at": None}
            live = await self._change(connection, version.id, changes)
            repeated = _repeated(live) | {"last_sync_at": now, "updated_at": now}
            if published.complete:
                repeated["lag_since"] = now
            if published.project_id is not None:
                repeated["project_id"] = published.project_id
            await change_repository(connection, run.repository_id, repeated)
            return live

    async def record_secret_rules(self, run: Run, version_id: str, rules: str) -> None:
        """By which the secrets of all its files were found."""
        changed = update(VERSIONS).where(VERSIONS.c.id == version_id).values(secret_rules=rules)
        await self._database.change(changed, guard=fence(run))

    async def record_meaning(self, run: Run, version_id: str, pending: int | None) -> None:
        """How many points still have no dense vector; None: none has to get one any more."""
        changed = update(VERSIONS).where(VERSIONS.c.id == version_id).values(meaning_pending=pending)
        await self._database.change(changed, guard=fence(run))

    async def record_commit_words(self, run: Run, words: bytes | None) -> None:
        """What commits say of the repository's files. None: the source refused, and what was known stays."""
        values = {"read_at": self._database.moment(), **({} if words is None else {"words": words})}
        new = self._database.insert(COMMIT_WORDS).values(repository_id=run.repository_id, **values)
        async with self._database.write() as connection:
            await self._lock(connection, run)
            await connection.execute(new.on_conflict_do_update(index_elements=["repository_id"], set_=values))

    async def origin(self, version: IndexVersion) -> Origin | None:
        """None if the version was never published, or a run has changed it since."""
        if version.fingerprint is None:
            return None
        wrote = and_(
            RUNS.c.repository_id == version.repository_id,
            RUNS.c.full_from_epoch.is_not(None),
            RUNS.c.completed_at.is_not(None),
        )
        at_once = and_(RUNS.c.status == RunStatus.COMPLETED, RUNS.c.attempt == 1)
        query = select(RUNS.c.full_from_epoch + 1, case((at_once, RUNS.c.commit_after))).where(wrote)
        commits: list[tuple[int, str | None]] = []
        for epoch, commit in await self._database.rows(query.order_by(desc(RUNS.c.completed_at))):
            if commits and epoch >= commits[-1][0]:
                break  # older runs are of an earlier repository with this name, which counted from 1, too
            commits.append((epoch, commit))
        return Origin(commits[::-1])

    async def record_head(self, run: Run, commit: str, known: str | None) -> None:
        """`run` read that the head of its source is `commit`. `known`: the head that was recorded when it began; what
        a push has recorded since is kept."""
        async with self._database.write() as connection:
            row = await self._lock(connection, run)
            if row.head_commit == known:
                await change_repository(connection, row.id, new_head(commit, self._database.moment()))

    async def remove(self, run: Run, version_id: str) -> None:
        """Delete the version and its manifest, after its points."""
        async with self._database.write() as connection:
            await self._lock(connection, run)
            gone = delete(VERSIONS).where(VERSIONS.c.id == version_id, VERSIONS.c.state != VersionState.LIVE)
            if await connection.change(gone):
                await connection.execute(delete(FILES).where(FILES.c.version_id == version_id))

    # -----------------------------------------------------------------------------------------------------------------

    async def _lock(self, connection: Connection, run: Run) -> Row[Any]:
        row = await lock_repository(connection, run.repository, run.repository_id)
        await require_held(connection, run)
        return row

    async def _retire(self, connection: Connection, which: ColumnElement[bool], state: VersionState) -> None:
        retired = {"state": VersionState.RETIRED, "retired_at": self._database.moment()}
        await connection.execute(update(VERSIONS).where(which, VERSIONS.c.state == state).values(**retired))

    async def _change(self, connection: Connection, version_id: str, changes: Mapping[str, Any]) -> IndexVersion:
        query = update(VERSIONS).where(VERSIONS.c.id == version_id).values(**changes).returning(*VERSION_COLUMNS)
        return IndexVersion.of(await connection.one(query))


def _repeated(live: IndexVersion) -> dict[str, Any]:
    """What `repositories` repeats of its live version."""
    return {"live_version": live.id, "last_commit": live.commit_sha, "last_committed_at": live.committed_at}


def unwritten_version(repository: Repository, state: VersionState, columns: Mapping[str, Any]) -> IndexVersion:
    """What `Versions.add` would return for the first version of a repository, without writing it."""
    made = {"id": repository.id, "repository_id": repository.id, "number": 1, "created_at": repository.updated_at}
    return IndexVersion.model_construct(**{**made, "state": state, **columns})
