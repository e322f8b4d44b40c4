"""One search: hybrid by reciprocal rank fusion, with globs over paths, which Qdrant cannot filter by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from reposync.errors import UsageError, VectorIndexError
from reposync.supervision import in_thread
from reposync.vectors.port import DENSE, SPARSE, IndexQuery, Payload, SearchHit
from reposync.vectors.request_bodies import Filter, equals, one_of
from reposync.wildmatch import PathPatterns, check_pattern

# Candidates of each kind of vector for the fusion: enough to find a hit that one kind ranks low and the other high, and
# so that the first results do not depend on the limit.
_MIN_CANDIDATES = 50
_CANDIDATES_PER_HIT = 4
# With a glob, so many times the limit is fetched, and again while too few match.
_GROWTH = 4
# Paths that are listed and matched here: 100 bytes each.
_MAX_PATHS = 200_000


Request = Callable[[str, str, str, Any], Awaitable[Any]]
"""What it does, for messages; method, path and body."""


class Search:
    """Raises UsageError for an invalid glob."""

    def __init__(self, request: Request, query: IndexQuery, dense_params: Mapping[str, Any]) -> None:
        self._request = request
        self._query = query
        self._dense_params = {"params": dense_params} if dense_params else {}
        self._filter = _filter(query)
        self._glob = _glob(query.path_glob)

    async def hits(self) -> list[SearchHit]:
        """Best first."""
        if self._query.limit < 1:
            return []
        if self._glob is None:
            return [_hit(point) for point in await self._points(self._query.limit, True)]
        return await self._matching(self._glob)

    async def _matching(self, glob: PathPatterns) -> list[SearchHit]:
        """Exact: if too few of the best points match, only the matching paths are searched; if there are too many paths
        to list, more points are fetched until enough match."""
        limit = self._query.limit
        are_listed = False
        while True:
            limit *= _GROWTH
            points = await self._points(limit, [Payload.PATH])
            matching = await in_thread(partial(self._of_glob, points, glob))
            if len(matching) == self._query.limit or len(points) < limit:
                return await self._with_texts(matching)
            if not are_listed:
                are_listed = True
                paths = await self._paths(glob)
                if paths is not None:
                    self._filter = {"must": [one_of(Payload.PATH, paths), *filter(None, [self._filter])]}
                    return [_hit(point) for point in await self._points(self._query.limit, True)] if paths else []

    async def _paths(self, glob: PathPatterns) -> list[str] | None:
        """All paths that match; None if there are too many to list."""
        body = {"key": Payload.PATH, "filter": self._filter, "exact": True, "limit": _MAX_PATHS}
        answer = await self._request("list paths", "POST", "/facet", body)
        paths = [hit["value"] for hit in answer["hits"]]
        if len(paths) == _MAX_PATHS:
            return None
        return await in_thread(lambda: [path for path in paths if glob.match(path) is not None])

    def _of_glob(self, points: list[dict[str, Any]], glob: PathPatterns) -> list[dict[str, Any]]:
        return [point for point in points if glob.match(_metadata(point)["path"]) is not None][: self._query.limit]

    async def _with_texts(self, points: list[dict[str, Any]]) -> list[SearchHit]:
        """Texts are fetched for hits only."""
        if not points:
            return []
        body = {"ids": [point["id"] for point in points], "with_payload": True}
        found = await self._request("read the results", "POST", "/points", body)
        payloads = {point["id"]: point["payload"] for point in found}
        # A point may be deleted in between: then it is not a hit.
        return [_hit(each | {"payload": payloads[each["id"]]}) for each in points if each["id"] in payloads]

    async def _points(self, limit: int, with_payload: bool | list[str]) -> list[dict[str, Any]]:
        body = self._ranking(limit) | {"limit": limit, "with_payload": with_payload}
        answer = await self._request("search", "POST", "/points/query", body)
        points: list[dict[str, Any]] = answer["points"]
        return points

    def _ranking(self, limit: int) -> dict[str, Any]:
        query = self._query
        sparse = {"query": {"indices": query.sparse.indices, "values": query.sparse.values}, "using": SPARSE}
        if query.dense is None:
            return sparse | {"filter": self._filter}
        # One row is one vector, also for a collection of multivectors.
        nearest = query.dense[0] if len(query.dense) == 1 else query.dense
        dense = {"query": nearest, "using": DENSE} | self._dense_params
        if not len(query.sparse.indices):
            return dense | {"filter": self._filter}
        common = {"filter": self._filter, "limit": max(_MIN_CANDIDATES, limit * _CANDIDATES_PER_HIT)}
        return {"prefetch": [dense | common, sparse | common], "query": {"fusion": "rrf"}}


def _filter(query: IndexQuery) -> Filter | None:
    """What Qdrant itself can filter by: no globs."""
    wanted = [(Payload.REPOSITORY_ID, query.version), (Payload.LANGUAGE, query.language)]
    must = [equals(key, value) for key, value in wanted if value is not None]
    hidden = [one_of(Payload.REPOSITORY_ID, sorted(query.hidden))] if query.hidden else []
    found: Filter = ({"must": must} if must else {}) | ({"must_not": hidden} if hidden else {})
    return found or None


def _glob(pattern: str | None) -> PathPatterns | None:
    if pattern is None:
        return None
    try:
        check_pattern(pattern)
    except ValueError as error:
        raise UsageError(f"{pattern!r} matches nothing: {error}.") from error
    return PathPatterns([pattern])


def _metadata(point: dict[str, Any]) -> dict[str, Any]:
    metadata = (point.get("payload") or {}).get("metadata")
    if not isinstance(metadata, dict) or "path" not in metadata:
        raise VectorIndexError(f"The point {point['id']} was not written by reposync.", remedy="Delete it.")
    return metadata


def _hit(point: dict[str, Any]) -> SearchHit:
    metadata = _metadata(point)
    return SearchHit(
        version=metadata["repository_id"],
        repository=metadata["repository"],
        path=metadata["path"],
        start_line=metadata["start_line"],
        end_line=metadata["end_line"],
        language=metadata["language"],
        score=point["score"],
        text=point["payload"]["page_content"],
        url=metadata["url"],
        commit=metadata["commit"],
    )
