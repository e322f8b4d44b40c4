"""Which points searches and readers answer from: those of one version, or of all live ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from reposync.config.settings import Configuration
from reposync.errors import IndexUnavailable, NothingIndexed
from reposync.next_steps import Sync
from reposync.store.database import Database
from reposync.store.index_queries import SearchedVersion, SearchScope, search_scope, searched_version
from reposync.vectors.port import IndexQuery

if TYPE_CHECKING:
    from reposync.vectors.index import QdrantIndex

TRIES = 10
"""How often a question is repeated because a version became live or was retired meanwhile. Each takes milliseconds."""


class IndexParts(Protocol):
    database: Database
    configuration: Configuration

    def index(self, collection: str) -> QdrantIndex:
        """Of a physical collection, or of an alias."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Physical collections, and in them the `versions` of some repositories, or all live ones. `by_words`: those of
    `versions` that are found by words alone."""

    collections: frozenset[str]
    versions: frozenset[str] = frozenset()
    by_words: frozenset[str] = frozenset()
    served: SearchScope | None = None

    def limited(self, query: IndexQuery, physical: str, unwanted: Set[str]) -> IndexQuery:
        if self.served is None:
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
    """Of one repository, of several, or of all (None or empty): then only live versions, and whether points with these
    `ids` may be shown. Raises RepositoryNotFound, RepositoryInactive, NothingIndexed if one has no live version, and
    what index and store raise."""
    if repository:
        names = [repository] if isinstance(repository, str) else dict.fromkeys(repository)
        found = [await version_of(parts, each) for each in names]
        return Scope(
            frozenset(version.physical for version in found),
            versions=frozenset(version.id for version in found),
            by_words=frozenset(version.id for version in found if version.by_words),
        )
    every = await search_scope(parts.database, ids, inactive=with_inactive(parts))
    return Scope(every.collections, served=every)


def with_inactive(parts: IndexParts) -> bool:
    """Whether repositories that have left the registry are searched, too."""
    return parts.configuration.registry.search.include_inactive


async def version_of(parts: IndexParts, repository: str) -> SearchedVersion:
    """The live version. Raises as `scope_of`."""
    if live := await searched_version(parts.database, repository, inactive=with_inactive(parts)):
        return live
    raise NothingIndexed(
        f"Nothing of {repository!r} is indexed yet.",
        next_steps=[Sync(repository)],
    )


def nothing_indexed() -> NothingIndexed:
    return NothingIndexed("Nothing is indexed yet.", next_steps=[Sync()])


def index_missing(what: str = "search") -> IndexUnavailable:
    return IndexUnavailable(
        f"There is nothing to {what}: the index is missing, or was damaged and set aside.",
        remedy="The next sync rebuilds it, and its run says why.",
        next_steps=[Sync()],
    )
