"""How many of the points that a query's words are in have each value of a field.

A filter cannot ask for a term of a sparse vector, but a sparse query returns exactly the points that share a term with
it: their ids are asked for first, without payload, and then the fields are counted over these ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from reposync.supervision import in_thread, together
from reposync.vectors.hybrid_search import Request, filter_of, path_patterns
from reposync.vectors.port import SPARSE, IndexQuery, Payload
from reposync.vectors.raw_requests import Limits, within
from reposync.vectors.request_bodies import Filter, one_of

MOST_COUNTED: Final = 2_000
"""Points with a word of the query, the best ones. As many ids are 80 kB of a request."""
_MOST_VERSIONS, _MOST_PATHS, _MOST_VALUES = 2_000, 2_000, 50
_MOST_LISTED: Final = 10_000

AreShown = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Returns which of these ids of versions have points that may be counted."""


@dataclass(frozen=True, slots=True)
class FacetCounts:
    """`counted`: points; `is_complete`: no others match."""

    counted: int = 0
    is_complete: bool = True
    versions: Mapping[str, int] = field(default_factory=dict)
    languages: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    paths: Mapping[str, int] = field(default_factory=dict)


async def facet_counts(request: Request, query: IndexQuery, limits: Limits, are_shown: AreShown) -> FacetCounts:
    """Count the points that have a word of the query and fit its filters. Raises UsageError for an invalid glob."""
    glob = path_patterns(query.path_glob)
    if not len(query.sparse.indices):
        return FacetCounts()
    most = within(MOST_COUNTED, limits.get("max_query_limit"), limits.get("condition_max_size"))
    body = {
        "query": {"indices": query.sparse.indices, "values": query.sparse.values},
        "using": SPARSE,
        "filter": filter_of(query, limits),
        "limit": most,
        "with_payload": False,
    }
    ids = [each["id"] for each in (await request("find words", "POST", "/points/query", body))["points"]]
    if not ids:
        return FacetCounts()
    must: list[Filter] = [{"has_id": ids}]

    async def counts(key: str, limit: int) -> dict[str, int]:
        # Exact would be a count for each value: ten times as long for paths. Among so few points the others are right.
        values = {"key": key, "filter": {"must": must}, "exact": False, "limit": within(limit, most)}
        answer = await request("count values", "POST", "/facet", values)
        return {str(hit["value"]): int(hit["count"]) for hit in answer["hits"] if hit["count"]}

    if glob is not None:
        known = list(await counts(Payload.PATH, _MOST_PATHS))
        matching = await in_thread(lambda: [path for path in known if glob.match(path) is not None])
        must.append(one_of(Payload.PATH, matching))
    versions = await counts(Payload.VERSION_ID, _MOST_VERSIONS)
    shown = set(await are_shown(versions))
    if not shown:
        return FacetCounts()
    if shown != versions.keys():
        versions = {each: number for each, number in versions.items() if each in shown}
        must.append(one_of(Payload.VERSION_ID, sorted(shown)))
    languages, kinds, paths = await together(
        counts(Payload.LANGUAGE, _MOST_VALUES),
        counts(Payload.SYMBOL_KIND, _MOST_VALUES),
        counts(Payload.PATH, _MOST_PATHS),
    )
    return FacetCounts(
        counted=sum(versions.values()),
        is_complete=len(ids) < most,
        versions=versions,
        languages=languages,
        kinds=kinds,
        paths=paths,
    )


async def has_any(request: Request, query: IndexQuery, limits: Limits) -> bool:
    """Whether a point fits the filters; also true if there are too many paths to be sure."""
    glob, selected = path_patterns(query.path_glob), filter_of(query, limits)
    if glob is None:
        one = {"filter": selected, "limit": 1, "with_payload": False, "with_vector": False}
        return bool((await request("look for points", "POST", "/points/scroll", one))["points"])
    most = within(_MOST_LISTED, limits.get("max_query_limit"))
    body = {"key": Payload.PATH, "filter": selected, "exact": False, "limit": most}
    paths = [hit["value"] for hit in (await request("list paths", "POST", "/facet", body))["hits"] if hit["count"]]
    return len(paths) == most or await in_thread(lambda: any(glob.match(path) is not None for path in paths))
