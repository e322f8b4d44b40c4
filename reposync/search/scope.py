"""Which points searches and readers answer from: those of one version, or of all live ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from reposync.config.settings import Configuration
from reposync.errors import IndexUnavailable, NothingIndexed
from reposync.next_steps import Sync
from reposync.store.database import Database
from reposync.store.index_queries import (
    SearchedVersion,
    SearchScope,
    VersionOwner,
    search_scope,
    searched_version,
    version_owners,
)
from reposync.vectors.port import IndexQuery
from reposync.visible import Visible

if TYPE_CHECKING:
    from reposync.vectors.index import QdrantIndex

_MOST_KEPT = 64
TRIES = 10
"""How often a question is repeated because a version became live or was retired meanwhile. Each takes milliseconds."""


class IndexParts(Protocol):
    database: Database
    configuration: Configuration

    @property
    def live(self) -> LiveVersions:
        """The live versions of all repositories, also if `database` is limited."""

    def index(self, collection: str) -> QdrantIndex:
        """The index of a physical collection, or of an alias."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Physical collections, and in them the `versions` of some repositories, or all live ones. `by_words`: those of
    `versions` that are found by words alone. `others`: by collection, all further versions that are known in it, if it
    may be quicker to leave these out."""

    collections: frozenset[str]
    versions: frozenset[str] = frozenset()
    by_words: frozenset[str] = frozenset()
    served: SearchScope | None = None
    others: Mapping[str, frozenset[str]] | None = field(default=None, compare=False)

    def limited(self, query: IndexQuery, physical: str, unwanted: Set[str]) -> IndexQuery:
        if self.served is None:
            others = None if self.others is None else self.others[physical] | unwanted
            # Of 5,000 ids, a filter takes the embedded engine 15 ms.
            if others is not None and len(others) < len(self.versions):
                return replace(query, hidden=sorted(others), by_words=sorted(self.by_words))
            return replace(query, versions=sorted(self.versions), by_words=sorted(self.by_words))
        hidden, by_words = self.served.hidden_in(physical) | unwanted, self.served.by_words_in(physical)
        return replace(query, hidden=sorted(hidden), by_words=sorted(by_words))

    def finds_by_words(self, version: str) -> bool:
        """Whether the version is found by words alone."""
        if self.served is None:
            return version in self.by_words
        return any(version in versions for versions in self.served.by_words.values())

    def lasts(self, later: Scope) -> bool:
        """Whether what was read in this scope is also the answer in `later`, which was read afterwards."""
        if self.served is None or later.served is None:
            return self == later
        return self.served.still_holds(later.served)


async def scope_of(
    parts: IndexParts,
    repository: str | Sequence[str] | None = None,
    ids: Collection[str] = (),
) -> Scope:
    """The scope of one repository, of several, or of all that the database shows (None or empty): then only live
    versions, and whether points with these `ids` may be shown. Raises RepositoryNotFound, RepositoryInactive,
    NothingIndexed if one has no live version, and what index and store raise."""
    if repository:
        names = [repository] if isinstance(repository, str) else dict.fromkeys(repository)
        found = [await version_of(parts, each) for each in names]
        return Scope(
            frozenset(version.physical for version in found),
            versions=frozenset(version.id for version in found),
            by_words=frozenset(version.id for version in found if version.by_words),
        )
    if not parts.database.visible.is_everything:
        return await parts.live.scope(parts.database.visible, inactive=with_inactive(parts))
    every = await search_scope(parts.database, ids, inactive=with_inactive(parts))
    return Scope(every.collections, served=every)


class LiveVersions:
    """The live versions of all repositories, with the repository of each: a search in 5,000 of them does not read 5,000
    rows, unless a version has become live or was retired since the last one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: Sequence[VersionOwner] = ()
        self._owner_of: dict[str, str] = {}
        self._read_in: SearchScope | None = None
        self._of: dict[Visible, _Parted] = {}

    async def scope(self, visible: Visible, *, inactive: bool) -> Scope:
        """The scope of the repositories that are visible. Raises StoreUnavailable."""
        every = await search_scope(self._database, inactive=inactive)
        for _ in range(TRIES):
            if self._read_in is not None and self._read_in.still_holds(every):
                break
            owners = await version_owners(self._database)
            # What was read between two equal scopes belongs to both.
            before, every = every, await search_scope(self._database, inactive=inactive)
            if before.still_holds(every):
                self._owners, self._read_in, self._of = owners, every, {}
                self._owner_of = {each.id: each.repository_id for each in owners}
        return self._scope(visible, every)

    def repositories_of(self, versions: Iterable[str]) -> Visible:
        """Those of these versions that belong to one, as of the last scope."""
        return Visible(frozenset(self._owner_of[each] for each in versions if each in self._owner_of))

    def _scope(self, visible: Visible, every: SearchScope) -> Scope:
        if visible not in self._of:
            if len(self._of) >= _MOST_KEPT:
                self._of.clear()
            self._of[visible] = _Parted.of(self._owners, visible)
        parted = self._of[visible]
        places, shown, others = dict[str, frozenset[str]](), frozenset[str](), dict[str, frozenset[str]]()
        for physical, versions in parted.shown.items():
            hidden = every.hidden_in(physical)
            if searched := versions - hidden if hidden else versions:
                places[physical] = searched
                others[physical] = hidden | parted.others.get(physical, frozenset())
        shown = next(iter(places.values())) if len(places) == 1 else shown.union(*places.values())
        by_words = frozenset[str]().union(*every.by_words.values()) & shown
        return Scope(frozenset(places), versions=shown, by_words=by_words, others=others)


@dataclass(frozen=True, slots=True)
class _Parted:
    """Live versions by collection: of visible repositories, and of the others."""

    shown: Mapping[str, frozenset[str]]
    others: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, owners: Sequence[VersionOwner], visible: Visible) -> _Parted:
        parts: tuple[defaultdict[str, set[str]], ...] = (defaultdict(set), defaultdict(set))
        for each in owners:
            parts[each.repository_id in visible][each.physical].add(each.id)
        others, shown = ({key: frozenset(ids) for key, ids in part.items()} for part in parts)
        return cls(shown, others)


def with_inactive(parts: IndexParts) -> bool:
    """Whether repositories that have left the registry are searched, too."""
    return parts.configuration.registry.search.include_inactive


async def version_of(parts: IndexParts, repository: str) -> SearchedVersion:
    """The live version. Raises as `scope_of`."""
    if live := await searched_version(parts.database, repository, inactive=with_inactive(parts)):
        return live
    raise _not_indexed(NothingIndexed(f"Nothing of {repository!r} is indexed yet.", next_steps=[Sync(repository)]))


def nothing_indexed() -> NothingIndexed:
    return _not_indexed(NothingIndexed("Nothing is indexed yet.", next_steps=[Sync()]))


def _not_indexed(error: NothingIndexed) -> NothingIndexed:
    error.details = {"reason": "not_indexed"}  # as `Missing` has it
    return error


def index_missing(what: str = "search") -> IndexUnavailable:
    return IndexUnavailable(
        f"There is nothing to {what}: the index is missing, or was damaged and set aside.",
        remedy="The next sync rebuilds it, and its run says why.",
        next_steps=[Sync()],
    )
