"""Where the words of a query are: how many chunks with one of them each repository, language, folder and kind of
definition has, over the whole index and not only among the first hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from reposync.embedding.sparse import query_vector
from reposync.search.documents import Facet, Facets
from reposync.search.query import SearchText, written
from reposync.search.ranking import telling_words
from reposync.search.scope import IndexParts, scope_of
from reposync.search.searching import canonical
from reposync.store.index_queries import repository_names
from reposync.supervision import in_thread, together
from reposync.vectors.facets import FacetCounts
from reposync.vectors.port import CollectionMissing, IndexQuery

_MOST_VALUES = 20
_FIELDS = {"path": "path_glob", "lang": "language", "kind": "kind", "symbol": "symbol"}
"""The fields of an index query, by filter."""


async def facets_of(parts: IndexParts, asked: SearchText) -> Facets | None:
    """None for a search that has no words. Raises as `Searching.search`."""
    if asked.like is not None:
        return None
    language = canonical(asked.language) if asked.language else None
    words = await in_thread(lambda: query_vector(telling_words(asked.all_words)))
    query = IndexQuery(words, path_glob=asked.path, language=language, symbol=asked.symbol, kind=asked.kind)
    scope = await scope_of(parts, asked.repositories)
    names: dict[str, str] = {}

    async def are_shown(versions: Collection[str]) -> Collection[str]:
        # What the database does not show is counted nowhere.
        of = await repository_names(parts.database, versions)
        names.update(of)
        return of.keys() if scope.served is not None else of.keys() & scope.versions

    async def counted(physical: str) -> FacetCounts:
        try:
            return await parts.index(physical).facets(scope.limited(query, physical, set()), are_shown)
        except CollectionMissing:  # dropped after its last version was replaced
            return FacetCounts(is_complete=False)

    found = await together(*map(counted, sorted(scope.collections)))

    def summed(counts: Mapping[str, int], *more: Mapping[str, int]) -> Counter[str]:
        return sum(map(Counter, more), Counter(counts))

    versions = summed({}, *(each.versions for each in found))
    repositories = Counter[str]()
    for version, number in versions.items():
        repositories[names[version]] += number
    folders = _folders(summed({}, *(each.paths for each in found)), asked.path)
    return Facets(
        counted=sum(each.counted for each in found),
        is_complete=all(each.is_complete for each in found),
        repository=_most(repositories),
        language=_most(summed({}, *(each.languages for each in found))),
        folder=_most(folders),
        kind=_most(summed({}, *(each.kinds for each in found))),
    )


async def filters_of_nothing(parts: IndexParts, asked: SearchText) -> list[str]:
    """The filters that fit no chunk of the searched repositories, each by itself, as they are written."""
    scope = await scope_of(parts, asked.repositories)
    given = {"path": asked.path, "lang": asked.language, "kind": asked.kind, "symbol": asked.symbol}
    query = IndexQuery(await in_thread(lambda: query_vector("")))

    async def fits(physical: str, only: IndexQuery) -> bool:
        try:
            return await parts.index(physical).has_any(scope.limited(only, physical, set()))
        except CollectionMissing:  # nothing is in it, and a search does without it too
            return False

    async def is_met(key: str, value: str) -> bool:
        known = canonical(value) if key == "lang" else value
        field: dict[str, Any] = {_FIELDS[key]: known}
        only = replace(query, **field)
        return any(await together(*(fits(each, only) for each in sorted(scope.collections))))

    filters = {key: value for key, value in given.items() if value is not None}
    are_met = await together(*(is_met(*each) for each in filters.items()))
    return [written(*each) for each, met in zip(filters.items(), are_met, strict=True) if not met]


def _folders(paths: Mapping[str, int], path: str | None) -> Counter[str]:
    """The folders in the one that `path` names, or those at the top, with a slash at both ends."""
    within = path if path is not None and path.startswith("/") and path.endswith("/") else "/"
    folders = Counter[str]()
    for each, number in paths.items():
        folder, slash, _ = f"/{each}".removeprefix(within).partition("/")
        if slash and f"/{each}".startswith(within):
            folders[f"{within}{folder}/"] += number
    return folders


def _most(counts: Counter[str]) -> list[Facet]:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [Facet(value, number) for value, number in ordered[:_MOST_VALUES]]
