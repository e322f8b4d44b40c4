"""Queries over index versions for searches, pages and metrics. They read indexes with few entries, or let the database
count, however many repositories there are. All raise StoreUnavailable.

`inactive`: whether repositories that have left the registry are searched, too. Whoever takes one out expects that its
code is no longer shown."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    select,
    text,
    union_all,
)

from reposync.errors import RepositoryInactive
from reposync.store.columns import path_key, sanitize_text
from reposync.store.database import Database
from reposync.store.repositories import unknown_repository
from reposync.store.tables import FILES, HAS_LEFT, REPOSITORIES, VERSIONS, VersionState

_LIVE: ColumnElement[str] = literal_column("'live'")

# SQLite allows 32,766 variables in a statement; callers have far fewer.
MAX_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What can be searched at one moment. `collections`: physical collections with a live version. `hidden`: ids of
    versions that searches must exclude, by physical collection. `last_live_at`: when a version became live last.
    `findable`: whether searches may return points with these ids; an unknown id is left out: its points belong to a
    removed repository, or to a different installation.

    A version that becomes live was in `hidden` before, or is newer than both readings and changes `last_live_at`."""

    collections: frozenset[str]
    hidden: Mapping[str, frozenset[str]]
    last_live_at: str | None
    findable: Mapping[str, bool] = field(default_factory=dict)

    def hidden_in(self, physical: str) -> frozenset[str]:
        return self.hidden.get(physical, frozenset())

    def still_holds(self, later: SearchScope) -> bool:
        """Whether nothing became live or was retired until `later`. A new version that is being built does not matter:
        `findable` excludes its points one by one."""
        same = (self.collections, self.last_live_at) == (later.collections, later.last_live_at)
        return same and all(ids <= later.hidden_in(physical) for physical, ids in self.hidden.items())


async def search_scope(database: Database, ids: Collection[str] = (), *, inactive: bool = False) -> SearchScope:
    """One exchange. `ids`: those in `findable`."""
    asked = VERSIONS.c.id.in_(sorted(ids))
    is_findable = VERSIONS.c.state == _LIVE if inactive else and_(VERSIONS.c.state == _LIVE, ~_OF_INACTIVE)
    findable = select(case((is_findable, "findable"), else_="hidden"), literal(""), VERSIONS.c.id).where(asked)
    parts = [*_SEARCH_SCOPE, *([] if inactive else [_INACTIVE_VERSIONS]), *([findable] if ids else [])]
    rows = await database.rows(union_all(*parts))
    hidden: dict[str, set[str]] = {}
    for row in rows:
        if row.kind == "hidden" and row.place:
            hidden.setdefault(row.place, set()).add(row.id)
    return SearchScope(
        collections=frozenset(row.place for row in rows if row.kind == "live"),
        hidden={physical: frozenset(ids) for physical, ids in hidden.items()},
        last_live_at=next((row.place for row in rows if row.kind == "last"), None),
        findable={row.id: row.kind == "findable" for row in rows if row.id is not None and not row.place},
    )


def _search_scope() -> list[Select[tuple[str, str, str]]]:
    version = VERSIONS.c
    # One index probe for each collection; `SELECT DISTINCT` would read the entries of all versions.
    live = select(func.min(version.physical).label("physical")).where(version.state == _LIVE).cte(recursive=True)
    following = select(func.min(version.physical)).where(version.state == _LIVE, version.physical > live.c.physical)
    live = live.union_all(select(following.scalar_subquery()).where(live.c.physical.is_not(None)))
    hidden = select(literal("hidden"), version.physical, version.id).where(version.state != _LIVE)
    last = select(literal("last"), cast(func.max(version.live_at), Text), null())
    physical = live.c.physical.label("place")
    found = select(literal("live").label("kind"), physical, cast(null(), Text).label("id")).where(physical.is_not(None))
    return [found, hidden, last]


_SEARCH_SCOPE = _search_scope()
_IS_INACTIVE: ColumnElement[bool] = literal_column(f"({HAS_LEFT})", Boolean)
_OF_INACTIVE = VERSIONS.c.repository_id.in_(select(REPOSITORIES.c.id).where(text(HAS_LEFT)))
_INACTIVE_VERSIONS = select(literal("hidden"), VERSIONS.c.physical, VERSIONS.c.id).where(
    VERSIONS.c.state == _LIVE, _OF_INACTIVE
)


async def searched_version(database: Database, name: str, *, inactive: bool = False) -> tuple[str, str] | None:
    """The physical collection and the id of the live version of the repository with this name; None if it has none.
    Raises RepositoryNotFound, RepositoryInactive."""
    each, version = REPOSITORIES.c, VERSIONS.c
    joined = REPOSITORIES.outerjoin(VERSIONS, and_(version.repository_id == each.id, version.state == _LIVE))
    query = select(version.physical, version.id, _IS_INACTIVE.label("has_left")).select_from(joined)
    async with database.read() as connection:
        row = await connection.one_or_none(query.where(each.name == sanitize_text(name)))
        if row is None:
            raise await unknown_repository(connection, name)
    if row.has_left and not inactive:
        raise RepositoryInactive(
            f"{name!r} has left the registry, and its code is no longer shown.",
            remedy="Add it there again, or set `search.include_inactive`.",
        )
    return None if row.id is None else (row.physical, row.id)


async def repository_names(database: Database, ids: Collection[str]) -> dict[str, str]:
    """Id of a version -> name of its repository."""
    joined = VERSIONS.join(REPOSITORIES, VERSIONS.c.repository_id == REPOSITORIES.c.id)
    query = select(VERSIONS.c.id, REPOSITORIES.c.name).select_from(joined).where(VERSIONS.c.id.in_(sorted(ids)))
    return {row.id: row.name for row in await database.rows(query)} if ids else {}


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """The index that a repository is searched in. `collection`: the physical one. `settings`: how points are made."""

    repository: str
    id: str
    collection: str
    settings: Mapping[str, Any]


def _live_versions(*, inactive: bool) -> Select[Any]:
    """By name; repositories of which nothing is indexed are left out."""
    each, live = REPOSITORIES.c, VERSIONS.c
    joined = REPOSITORIES.join(VERSIONS, and_(live.repository_id == each.id, live.state == _LIVE))
    query = select(each.name, live.id, live.physical, live.settings).select_from(joined).order_by(each.name)
    return query if inactive else query.where(~_IS_INACTIVE)


async def live_versions(
    database: Database, repositories: Collection[str] = (), *, inactive: bool = False
) -> list[LiveVersion]:
    """By name; of all repositories if none is given."""
    query = _live_versions(inactive=inactive)
    if repositories:
        query = query.where(REPOSITORIES.c.name.in_([sanitize_text(name) for name in repositories]))
    return [LiveVersion(*row) for row in await database.rows(query)]


async def versions_with(
    database: Database, path: str, repository: str | None = None, *, inactive: bool = False
) -> list[LiveVersion]:
    """At most 10 live versions that have points of the file at `path`, of all repositories or of one."""
    of_file = and_(FILES.c.repository_id == VERSIONS.c.id, FILES.c.path == path_key(path), FILES.c.chunks > 0)
    query = _live_versions(inactive=inactive).join(FILES, of_file).limit(10)
    if repository is not None:
        query = query.where(REPOSITORIES.c.name == sanitize_text(repository))
    return [LiveVersion(*row) for row in await database.rows(query)]


async def stored_files(
    database: Database,
    version: str,
    *,
    paths: Collection[str] | None = None,
    language: str | None = None,
    after: str = "",
    limit: int = MAX_KEYS,
) -> dict[str, int]:
    """Path -> number of points: files of an index version that have some, in the order of `path_key`. `after`: a path.
    `paths`: only these; at most MAX_KEYS."""
    column = FILES.c
    query = (
        select(func.coalesce(column.long_path, column.path), column.chunks)
        .where(column.repository_id == version, column.path > path_key(after), column.chunks > 0)
        .order_by(column.path)
        .limit(limit)
    )
    if paths is not None:
        query = query.where(column.path.in_([path_key(path) for path in paths]))
    if language is not None:
        query = query.where(column.language == language)
    return dict(await database.rows(query))


async def indexed_meaning(database: Database, ids: Collection[str]) -> dict[str, float]:
    """Of those of these live versions that have words only: the share of their chunks that the version with dense
    vectors, which is built beside them, has."""
    query = select(VERSIONS.c.id, VERSIONS.c.repository_id, VERSIONS.c.settings).where(VERSIONS.c.id.in_(sorted(ids)))
    words = {row.id: row.repository_id for row in await database.rows(query) if row.settings.get("words_only")}
    if not words:
        return {}
    version = VERSIONS.c
    stored = (
        select(version.repository_id, version.state, func.coalesce(func.sum(FILES.c.chunks), 0).label("chunks"))
        .select_from(VERSIONS.outerjoin(FILES, FILES.c.repository_id == version.id))
        .where(version.repository_id.in_(sorted(set(words.values()))))
        .group_by(version.repository_id, version.state)
    )
    chunks = {(row.repository_id, str(row.state)): int(row.chunks) for row in await database.rows(stored)}
    return {
        each: min(
            1.0, chunks.get((owner, VersionState.BUILDING), 0) / max(1, chunks.get((owner, VersionState.LIVE), 0))
        )
        for each, owner in words.items()
    }


async def words_only(database: Database) -> set[str]:
    """Names of the repositories of which only words are searched: their first sync has not come to its end."""
    has_words_only = and_(
        VERSIONS.c.repository_id == REPOSITORIES.c.id,
        VERSIONS.c.state == _LIVE,
        VERSIONS.c.settings["words_only"].as_boolean(),
    )
    query = select(REPOSITORIES.c.name).select_from(REPOSITORIES).join(VERSIONS, has_words_only)
    return {row[0] for row in await database.rows(query)}


async def commit_pages(database: Database, identities: Collection[str]) -> dict[str, str]:
    """By id, of repositories on GitLab: the address of a commit's page, up to the name of the commit."""
    column = VERSIONS.c
    query = select(column.repository_id, column.links).where(
        column.repository_id.in_(identities), column.state == _LIVE, column.links.is_not(None)
    )
    pages = {identity: links.partition("/-/blob/") for identity, links in await database.rows(query)}
    return {identity: f"{project}/-/commit/" for identity, (project, blob, _) in pages.items() if blob}


async def incomplete_versions(database: Database) -> dict[str, str]:
    """Name of a repository -> id of its live version, if that lacks files because they could not be read."""
    lacks_files = and_(
        VERSIONS.c.repository_id == REPOSITORIES.c.id, VERSIONS.c.state == _LIVE, VERSIONS.c.partial_commit.is_not(None)
    )
    query = select(REPOSITORIES.c.name, VERSIONS.c.id).select_from(REPOSITORIES).join(VERSIONS, lacks_files)
    return {row[0]: row[1] for row in await database.rows(query)}


@dataclass(frozen=True, slots=True)
class SimilarIndexes:
    """Active repositories of a collection whose live versions are alike. `live_collection`: the name that these were
    made under; `spec`: of their model, None if it is unknown. `chunks` is 0 if they were not counted."""

    collection: str
    live_collection: str
    spec: Mapping[str, Any] | None
    is_building: bool
    repositories: int
    chunks: int


async def similar_indexes(database: Database, *, count_chunks: bool) -> list[SimilarIndexes]:
    """Of all active repositories with an index."""
    each, live, building = REPOSITORIES.c, VERSIONS.c, VERSIONS.alias("building").c
    is_building = select(building.id).where(
        building.repository_id == each.id, building.state == literal_column("'building'")
    )
    joined = REPOSITORIES.join(VERSIONS, and_(live.repository_id == each.id, live.state == _LIVE))
    chunks: ColumnElement[Any] = literal_column("0")
    if count_chunks:
        held = select(FILES.c.repository_id, func.sum(FILES.c.chunks).label("chunks")).group_by(FILES.c.repository_id)
        counts = held.subquery()
        joined = joined.outerjoin(counts, counts.c.repository_id == live.id)
        chunks = func.coalesce(counts.c.chunks, 0)
    indexed = (
        select(
            *(each.collection, live.collection.label("live_collection")),
            cast(live.settings["spec"], Text).label("spec"),
            is_building.exists().label("is_building"),
            chunks.label("chunks"),
        )
        .select_from(joined)
        .where(each.is_active)
        .subquery()
    )
    *keys, chunks = indexed.c
    query = select(*keys, func.count(), func.sum(chunks)).group_by(*keys)
    return [
        SimilarIndexes(name, live_name, spec and json.loads(spec), bool(built), number, int(total))
        for name, live_name, spec, built, number, total in await database.rows(query)
    ]


async def version_states(database: Database) -> dict[str, int]:
    """How many versions of all repositories are in each state."""
    query = select(VERSIONS.c.state, func.count()).group_by(VERSIONS.c.state)
    counted = {str(row[0]): row[1] for row in await database.rows(query)}
    return {**{state.value: 0 for state in VersionState}, **counted}
