"""One search: hybrid by reciprocal rank fusion. Qdrant cannot match globs over paths: it leaves out most of the other
paths by their tokens, and the rest is matched here. Every request is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reposync.errors import UsageError, VectorIndexError
from reposync.supervision import in_thread
from reposync.vectors.limits import RequestLimits, within
from reposync.vectors.path_tokens import glob_tokens
from reposync.vectors.port import DENSE, SPARSE, IndexQuery, Payload, SearchHit
from reposync.vectors.request_bodies import Filter, equals, is_empty, one_of
from reposync.wildmatch import PathPatterns, check_pattern

# Candidates of each kind of vector for the fusion: enough to find a hit that one kind ranks low and the other high, and
# so that the first results do not depend on the limit.
_MIN_CANDIDATES = 50
_CANDIDATES_PER_HIT = 4
_MAX_CANDIDATES = 4_096
# With a glob, so many times the limit is fetched, and again while too few match.
_GROWTH = 8
# Paths that are listed and matched here, of 100 bytes each, if too few candidates match.
_MAX_PATHS = 10_000
# Of those that match, in one request: a server accepts 32 MiB.
_MAX_PATH_CHARS = 5_000_000


Request = Callable[[str, str, str, Any], Awaitable[Any]]
"""What it does, for messages; method, path and body."""


class Search:
    """`has_path_tokens`: the collection has an index over path tokens. Raises UsageError for an invalid glob."""

    def __init__(
        self,
        request: Request,
        query: IndexQuery,
        dense_params: Mapping[str, Any],
        limits: RequestLimits,
        *,
        has_path_tokens: bool,
    ) -> None:
        self._request = request
        self._query = query
        self._dense_params = {"params": dense_params} if dense_params else {}
        self._max_candidates = within(_MAX_CANDIDATES, limits.results)
        self._max_paths = within(_MAX_PATHS, limits.results)
        self._max_values = within(_MAX_PATHS, limits.values)
        self._limit = min(query.limit, self._max_candidates)
        self._glob = _glob(query.path_glob)
        tokens = glob_tokens(query.path_glob) if query.path_glob is not None and has_path_tokens else ()
        self._filter = _filter(query, [_with_tokens(tokens)] if tokens else [])

    async def hits(self) -> list[SearchHit]:
        """Best first."""
        if self._limit < 1:
            return []
        if self._glob is None:
            return [_hit(point) for point in await self._points(self._limit, True)]
        return await self._matching(self._glob)

    async def _matching(self, glob: PathPatterns) -> list[SearchHit]:
        """If too few of the best candidates match, only the matching paths are searched. If there are too many paths to
        list, a file that matches may be missed: it is not among the best candidates."""
        limit = self._limit
        while True:
            limit = min(limit * _GROWTH, self._max_candidates)
            points = await self._points(limit, [Payload.PATH])
            matching = await in_thread(partial(self._of_glob, points, glob))
            if len(matching) == self._limit or len(points) < limit:
                return await self._with_texts(matching)
            if limit == self._max_candidates:
                break
        paths = await self._paths(glob)
        if paths is None:
            return await self._with_texts(matching)
        self._filter = _filter(self._query, [one_of(Payload.PATH, paths)])
        return [_hit(point) for point in await self._points(self._limit, True)] if paths else []

    async def _paths(self, glob: PathPatterns) -> list[str] | None:
        """All paths that match; None if there are too many. Exact counts would take a count for each path, and a server
        in strict mode refuses them."""
        body = {"key": Payload.PATH, "filter": self._filter, "exact": False, "limit": self._max_paths}
        answer = await self._request("list paths", "POST", "/facet", body)
        paths = [hit["value"] for hit in answer["hits"]]
        if len(paths) == self._max_paths:
            return None
        matching = await in_thread(lambda: [path for path in paths if glob.match(path) is not None])
        fit = len(matching) <= self._max_values and sum(map(len, matching)) <= _MAX_PATH_CHARS
        return matching if fit else None

    def _of_glob(self, points: list[dict[str, Any]], glob: PathPatterns) -> list[dict[str, Any]]:
        return [point for point in points if glob.match(_metadata(point)["path"]) is not None][: self._limit]

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
        candidates = min(max(_MIN_CANDIDATES, limit * _CANDIDATES_PER_HIT), self._max_candidates)
        common = {"filter": self._filter, "limit": candidates}
        return {"prefetch": [dense | common, sparse | common], "query": {"fusion": "rrf"}}


def _with_tokens(tokens: Sequence[str]) -> Filter:
    """Points of programs before 0.2 and of the longest paths have no tokens."""
    return {"should": [{"must": [equals(Payload.PATH_TOKENS, each) for each in tokens]}, is_empty(Payload.PATH_TOKENS)]}


def _filter(query: IndexQuery, of_paths: Sequence[Filter]) -> Filter | None:
    wanted = [(Payload.REPOSITORY_ID, query.version), (Payload.LANGUAGE, query.language)]
    must = [*(equals(key, value) for key, value in wanted if value is not None), *of_paths]
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
