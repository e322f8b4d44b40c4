"""What a search reads: which collections have live versions, and whose points must not be found. By indexes that hold
few entries, however many repositories there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, CompoundSelect, Text, cast, func, literal, literal_column, null, select, union_all

from reposync.store.columns import storable
from reposync.store.database import Database
from reposync.store.status import known
from reposync.store.tables import REPOSITORIES, VERSIONS
from reposync.store.unknown import unknown_repository
from reposync.store.versions import VersionState

_LIVE: ColumnElement[str] = literal_column("'live'")


@dataclass(frozen=True, slots=True)
class Served:
    """What can be searched at one moment. `collections`: the physical ones with a live version; `names`: of those that
    programs before 0.2 alone have synced to. `hidden`: ids of versions, by physical collection, whose points are not to
    be found. `last_live_at`: when a version became live last.

    A version becomes live out of `hidden`, or it is newer than both readings and moves `last_live_at`."""

    collections: frozenset[str]
    names: frozenset[str]
    hidden: Mapping[str, frozenset[str]]
    last_live_at: str | None

    def hidden_in(self, physical: str) -> frozenset[str]:
        return self.hidden.get(physical, frozenset())

    def lasts(self, later: Served) -> bool:
        """Whether nothing became live or was retired until `later`. What began to be built meanwhile does not count:
        its points are found out one by one."""
        same = (self.collections, self.names, self.last_live_at) == (later.collections, later.names, later.last_live_at)
        return same and all(ids <= later.hidden_in(physical) for physical, ids in self.hidden.items())


@dataclass(frozen=True, slots=True)
class SearchedRepository:
    """`collection`: what a program before 0.2 indexed it to, None if it did not. `versions`: by state, the physical
    collection and the id."""

    id: str
    collection: str | None
    versions: Mapping[VersionState | str, tuple[str, str]]


async def served(database: Database) -> Served:
    """One exchange. Raises StoreUnavailable."""
    async with database.read() as connection:
        rows = (await connection.execute(_SERVED)).all()
    hidden: dict[str, set[str]] = {}
    for row in rows:
        if row.kind == "hidden":
            hidden.setdefault(row.place, set()).add(row.id)
    return Served(
        collections=frozenset(row.place for row in rows if row.kind == "live"),
        names=frozenset(row.place for row in rows if row.kind == "name"),
        hidden={physical: frozenset(ids) for physical, ids in hidden.items()},
        last_live_at=next((row.place for row in rows if row.kind == "last"), None),
    )


async def searched_repository(database: Database, name: str) -> SearchedRepository:
    """Raises RepositoryNotFound, StoreUnavailable."""
    each, version = REPOSITORIES.c, VERSIONS.c
    place = func.coalesce(each.indexed_collection, each.collection).label("place")
    query = select(each.id, place, each.last_sync_at, version.state, version.physical, version.id.label("version"))
    joined = REPOSITORIES.outerjoin(VERSIONS, version.repository_id == each.id)
    async with database.read() as connection:
        rows = (await connection.execute(query.select_from(joined).where(each.name == storable(name)))).all()
        if not rows:
            raise await unknown_repository(connection, name)
    versions = {known(VersionState, row.state): (row.physical, row.version) for row in rows if row.version is not None}
    unversioned = not versions and rows[0].last_sync_at is not None
    return SearchedRepository(rows[0].id, rows[0].place if unversioned else None, versions)


async def findable(database: Database, ids: Collection[str]) -> dict[str, bool]:
    """Whether points with these ids of versions may be found now. An id that the database does not know is left out:
    what bears it belongs to a repository that was removed, or to another installation. Raises StoreUnavailable."""
    each, version = REPOSITORIES.c, VERSIONS.c
    known = select(version.id, version.state == _LIVE).where(version.id.in_(sorted(ids)))
    # A program before 0.2 writes under the repository's id, also where another version is live now.
    has_first = select(version.id).where(version.id == each.id).exists()
    has_any = select(version.id).where(version.repository_id == each.id).exists()
    first = select(each.id, ~has_any).where(each.id.in_(sorted(ids)), ~has_first)
    async with database.read() as connection:
        return {row[0]: bool(row[1]) for row in await connection.execute(union_all(known, first))}


def _served() -> CompoundSelect[tuple[str, str, str]]:
    each, version = REPOSITORIES.c, VERSIONS.c
    # Each collection is one probe of an index; `SELECT DISTINCT` would read the entries of all versions.
    live = select(func.min(version.physical).label("physical")).where(version.state == _LIVE).cte(recursive=True)
    following = select(func.min(version.physical)).where(version.state == _LIVE, version.physical > live.c.physical)
    live = live.union_all(select(following.scalar_subquery()).where(live.c.physical.is_not(None)))
    hidden = select(literal("hidden"), version.physical, version.id).where(version.state != _LIVE)
    # Few: a run of this program gives its repository a live version.
    waiting = each.live_version.is_(None) & each.last_sync_at.is_not(None)
    has_version = select(version.id).where(version.repository_id == each.id).exists()
    name = select(literal("name"), func.coalesce(each.indexed_collection, each.collection), null()).distinct()
    last = select(literal("last"), cast(func.max(version.live_at), Text), null())
    physical = live.c.physical.label("place")
    found = select(literal("live").label("kind"), physical, cast(null(), Text).label("id")).where(physical.is_not(None))
    return union_all(found, hidden, name.where(waiting, ~has_version), last)


_SERVED = _served()
