"""Queries over index versions for searches, pages and metrics. They read indexes with few entries, or let the database
count, however many repositories there are. All raise StoreUnavailable.

`inactive`: whether repositories that have left the registry are searched, too. Whoever takes one out expects that its
code is no longer shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    or_,
    select,
    text,
    union_all,
)

from reposync.errors import RepositoryInactive
from reposync.store.columns import path_key, sanitize_text
from reposync.store.database import Database
from reposync.store.repository import RepositoryGlance
from reposync.store.repository_rows import unknown_repository
from reposync.store.tables import FILES, HAS_LEFT, REPOSITORIES, VERSIONS, VersionState

_LIVE: ColumnElement[str] = literal_column("'live'")

# SQLite allows 32,766 variables in a statement; callers have far fewer.
MAX_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What can be searched at one moment. `collections`: physical collections with a live version. `hidden`: ids of
    versions that searches must exclude, and `by_words` of those that are found by words alone, because not all of their
    points have dense vectors yet, by physical collection. `last_live_at`: when a version became live last.
    `findable`: whether searches may return points with these ids; an unknown id is left out: its points belong to a
    removed repository, or to a different installation.

    A version that becomes live was in `hidden` before, or is newer than both readings and changes `last_live_at`."""

    collections: frozenset[str]
    hidden: Mapping[str, frozenset[str]]
    last_live_at: str | None
    findable: Mapping[str, bool] = field(default_factory=dict)
    by_words: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def hidden_in(self, physical: str) -> frozenset[str]:
        return self.hidden.get(physical, frozenset())

    def by_words_in(self, physical: str) -> frozenset[str]:
        return self.by_words.get(physical, frozenset())

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

    def listed(kind: str) -> dict[str, frozenset[str]]:
        listed: dict[str, set[str]] = {}
        for row in rows:
            if row.kind == kind and row.place:
                listed.setdefault(row.place, set()).add(row.id)
        return {physical: frozenset(ids) for physical, ids in listed.items()}

    return SearchScope(
        collections=frozenset(row.place for row in rows if row.kind == "live"),
        hidden=listed("hidden"),
        last_live_at=next((row.place for row in rows if row.kind == "last"), None),
        findable={row.id: row.kind == "findable" for row in rows if row.id is not None and not row.place},
        by_words=listed("by words"),
    )


def _search_scope() -> list[Select[tuple[str, str, str]]]:
    version = VERSIONS.c
    # One index probe for each collection; `SELECT DISTINCT` would read the entries of all versions.
    live = select(func.min(version.physical).label("physical")).where(version.state == _LIVE).cte(recursive=True)
    following = select(func.min(version.physical)).where(version.state == _LIVE, version.physical > live.c.physical)
    live = live.union_all(select(following.scalar_subquery()).where(live.c.physical.is_not(None)))
    hidden = select(literal("hidden"), version.physical, version.id).where(version.state != _LIVE)
    by_words = select(literal("by words"), version.physical, version.id).where(_IS_PENDING)
    last = select(literal("last"), cast(func.max(version.live_at), Text), null())
    physical = live.c.physical.label("place")
    found = select(literal("live").label("kind"), physical, cast(null(), Text).label("id")).where(physical.is_not(None))
    return [found, hidden, by_words, last]


_IS_PENDING = VERSIONS.c.meaning_pending.is_not(None)
_SEARCH_SCOPE = _search_scope()
_IS_INACTIVE: ColumnElement[bool] = literal_column(f"({HAS_LEFT})", Boolean)
_OF_INACTIVE = VERSIONS.c.repository_id.in_(select(REPOSITORIES.c.id).where(text(HAS_LEFT)))
_INACTIVE_VERSIONS = select(literal("hidden"), VERSIONS.c.physical, VERSIONS.c.id).where(
    VERSIONS.c.state == _LIVE, _OF_INACTIVE
)


class SearchedVersion(NamedTuple):
    """`physical`: its collection. `by_words`: not all of its points have dense vectors yet."""

    physical: str
    id: str
    by_words: bool


async def searched_version(database: Database, name: str, *, inactive: bool = False) -> SearchedVersion | None:
    """The live version of the repository with this name; None if it has none. Raises RepositoryNotFound,
    RepositoryInactive."""
    each, version = REPOSITORIES.c, VERSIONS.c
    joined = REPOSITORIES.outerjoin(VERSIONS, and_(version.repository_id == each.id, version.state == _LIVE))
    columns = version.physical, version.id, _IS_PENDING.label("by_words")
    query = select(*columns, _IS_INACTIVE.label("has_left")).select_from(joined)
    async with database.read() as connection:
        row = await connection.one_or_none(query.where(each.name == sanitize_text(name)))
        if row is None:
            raise await unknown_repository(connection, name)
    if row.has_left and not inactive:
        raise RepositoryInactive(
            f"{name!r} has left the registry, and its code is no longer shown.",
            remedy="Add it there again, or set `search.include_inactive`.",
        )
    return None if row.id is None else SearchedVersion(row.physical, row.id, row.by_words)


class VersionOwner(NamedTuple):
    """A live version, the repository that it belongs to, and its collection."""

    id: str
    repository_id: str
    physical: str


async def version_owners(database: Database) -> list[VersionOwner]:
    """The owners of all live versions."""
    query = select(VERSIONS.c.id, VERSIONS.c.repository_id, VERSIONS.c.physical).where(VERSIONS.c.state == _LIVE)
    return [VersionOwner(*row) for row in await database.rows(query)]


async def repository_names(database: Database, ids: Collection[str]) -> dict[str, str]:
    """Id of a version -> name of its repository."""
    joined = VERSIONS.join(REPOSITORIES, VERSIONS.c.repository_id == REPOSITORIES.c.id)
    query = select(VERSIONS.c.id, REPOSITORIES.c.name).select_from(joined).where(VERSIONS.c.id.in_(sorted(ids)))
    return {row.id: row.name for row in await database.rows(query)} if ids else {}


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """The index that a repository is searched in; a repository of which nothing is indexed has none. `collection`: the
    physical one. `settings`: how points are made."""

    repository: str
    id: str
    collection: str
    settings: Mapping[str, Any]


async def live_versions(
    database: Database, repositories: Collection[str] = (), *, path: str | None = None, inactive: bool = False
) -> list[LiveVersion]:
    """By name; of all repositories if none is given. `path`: at most 10, of those that have points of that file."""
    each, live = REPOSITORIES.c, VERSIONS.c
    query = select(each.name, live.id, live.physical, live.settings).order_by(each.name)
    query = query.join_from(REPOSITORIES, VERSIONS, and_(live.repository_id == each.id, live.state == _LIVE))
    if not inactive:
        query = query.where(~_IS_INACTIVE)
    if repositories:
        query = query.where(each.name.in_([sanitize_text(name) for name in repositories]))
    if path is not None:
        of_file = and_(FILES.c.version_id == live.id, FILES.c.path == path_key(path), FILES.c.chunks > 0)
        query = query.join(FILES, of_file).limit(10)
    return [LiveVersion(*row) for row in await database.rows(query)]


class UnfinishedRepository(NamedTuple):
    """A repository whose index lacks its newest known commit, or that has none (`is_live` is false)."""

    name: str
    is_live: bool


async def unfinished_repositories(
    database: Database, names: Collection[str] = (), *, limit: int = 20, inactive: bool = False
) -> list[UnfinishedRepository]:
    """Those without an index first. `names`: only of these."""
    each = REPOSITORIES.c
    is_live = each.live_version.is_not(None)
    lags = and_(each.head_commit.is_not(None), func.coalesce(each.last_commit, "") != each.head_commit)
    query = select(each.name, is_live.label("is_live")).where(or_(~is_live, lags)).order_by("is_live", each.name)
    if not inactive:
        query = query.where(~_IS_INACTIVE)
    if names:
        query = query.where(each.name.in_([sanitize_text(name) for name in names]))
    return [UnfinishedRepository(row.name, bool(row.is_live)) for row in await database.rows(query.limit(limit))]


class LeftOutFile(NamedTuple):
    """A file of a commit that a rule excludes from the index."""

    repository: str
    path: str
    reason: str


async def left_out_files(
    database: Database,
    names: Collection[str] = (),
    *,
    path: str | None,
    most_repositories: int,
    inactive: bool = False,
    limit: int = 20_000,
) -> list[LeftOutFile]:
    """By repository and path; of all repositories if no name is given. `path`: only this one; without it, nothing is
    read if there are more than `most_repositories`. A file that could not be read is none of them."""
    versions = await live_versions(database, names, inactive=inactive) if path is None else []
    if len(versions) > most_repositories:
        return []
    each, live, file = REPOSITORIES.c, VERSIONS.c, FILES.c
    of_live = and_(live.repository_id == each.id, live.state == _LIVE)
    query = select(each.name, func.coalesce(file.long_path, file.path), file.skip_reason)
    query = query.join_from(REPOSITORIES, VERSIONS, of_live).join(FILES, file.version_id == live.id)
    query = query.where(file.skip_reason.is_not(None), file.skip_reason != "failed")
    if path is None:
        query = query.where(live.id.in_([version.id for version in versions]))
    else:
        query = query.where(file.path == path_key(path))
        query = query if inactive else query.where(~_IS_INACTIVE)
        query = query.where(each.name.in_([sanitize_text(name) for name in names])) if names else query
    rows = await database.rows(query.order_by(each.name, file.path).limit(limit))
    return [LeftOutFile(*row) for row in rows]


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
        .where(column.version_id == version, column.path > path_key(after), column.chunks > 0)
        .order_by(column.path)
        .limit(limit)
    )
    if paths is not None:
        query = query.where(column.path.in_([path_key(path) for path in paths]))
    if language is not None:
        query = query.where(column.language == language)
    return dict(await database.rows(query))


async def repository_glances(database: Database) -> list[RepositoryGlance]:
    """All repositories, by name."""
    columns = [REPOSITORIES.c[name] for name in RepositoryGlance._fields]
    return [RepositoryGlance(*row) for row in await database.rows(select(*columns).order_by(REPOSITORIES.c.name))]


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """A version of an index, as pages and metrics need it of all repositories."""

    repository: str
    repository_id: str
    configured: str
    """The collection of the repository now."""
    is_active: bool
    id: str
    state: str
    collection: str
    """The collection that the version was made for."""
    lacks_files: bool
    """Some files could not be read."""
    by_words: bool
    """Not all of its points have dense vectors yet."""
    spec: str | None
    """The spec of its model, as JSON; None if it is unknown."""
    links: str | None
    """See `IndexVersion`."""

    @property
    def is_live(self) -> bool:
        return self.state == VersionState.LIVE

    @property
    def commit_page(self) -> str | None:
        """On GitLab: the address of a commit's page, up to the name of the commit."""
        project, blob, _ = (self.links or "").partition("/-/blob/")
        return f"{project}/-/commit/" if blob else None


async def version_summaries(database: Database, identities: Collection[str] | None = None) -> list[VersionSummary]:
    """By repository and number. `identities`: only of these repositories."""
    each, version = REPOSITORIES.c, VERSIONS.c
    query = (
        select(
            *(each.name, each.id, each.collection, each.is_active, version.id, version.state, version.collection),
            version.partial_commit.is_not(None),
            _IS_PENDING,
            cast(version.settings["spec"], Text),
            version.links,
        )
        .join_from(REPOSITORIES, VERSIONS, version.repository_id == each.id)
        .order_by(each.name, version.number)
    )
    if identities is not None:
        query = query.where(each.id.in_(sorted(identities)))
    return [VersionSummary(*row) for row in await database.rows(query)]


async def commit_page(database: Database, repository_id: str) -> str | None:
    """See `VersionSummary.commit_page`; of the live version."""
    return (await commit_pages(database, [repository_id])).get(repository_id)


async def commit_pages(database: Database, identities: Collection[str]) -> dict[str, str]:
    """By id of the repository: see `VersionSummary.commit_page`; of the live version."""
    versions = await version_summaries(database, identities)
    live = ((version.repository_id, version.commit_page) for version in versions if version.is_live)
    return {identity: page for identity, page in live if page is not None}
