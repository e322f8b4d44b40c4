"""One search: candidates by words and by meaning, fused here; the best of these are ranked, and the texts of the best
of those are read. Several phrasings of one question share each step, and its requests. Qdrant reads whole points, 7,000
characters each, whatever is selected of them: so each step reads as few as it needs. Qdrant cannot match globs over
paths: it leaves out most of the other paths by their tokens, and the rest is matched here. Every request is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from reposync.errors import UsageError, VectorIndexError
from reposync.finding import count_masks
from reposync.supervision import in_thread, together
from reposync.symbol import read_symbols
from reposync.vectors.fusion import Fused, best_of_each, candidates_at, fused, fused_phrasings
from reposync.vectors.overlaps import Passage, passages
from reposync.vectors.path_tokens import glob_tokens
from reposync.vectors.port import DENSE, SPARSE, Candidate, IndexQuery, Payload, Phrasing, PointId, SearchHit
from reposync.vectors.raw_requests import Limits, pages, within
from reposync.vectors.request_bodies import Filter, equals, one_of
from reposync.wildmatch import PathPatterns, check_pattern

# Candidates of each kind of vector: enough to find a hit that one kind ranks low and the other high, and so that the
# first results do not depend on the limit.
_MIN_CANDIDATES = 100
_CANDIDATES_PER_HIT = 4
_MAX_CANDIDATES = 4_096
# Of the fused candidates: those that are ranked.
_RANKED_SHARE = 0.8
# With a glob, so many times the candidates are fetched while too few match.
_GROWTH = 8
# Paths that are listed and matched here, of 100 bytes each, if too few candidates match.
_MAX_PATHS = 10_000
# Of those that match, in one request: a server accepts 32 MiB.
_MAX_PATH_CHARS = 5_000_000
# Of the files that a pasted text names.
_MAX_CHUNKS_AT_PLACES = 1_000
# What the ranking depends on; everything else is read of the hits alone.
_OF_RANKED = [
    *(Payload.VERSION_ID, Payload.REPOSITORY, Payload.PATH, Payload.START_LINE, Payload.END_LINE),
    *(Payload.LANGUAGE, Payload.SYMBOL_NAME),
]
_OF_HITS = [Payload.TEXT, Payload.URL, Payload.COMMIT, Payload.SYMBOLS]

Request = Callable[[str, str, str, Any], Awaitable[Any]]
"""What it does, for messages; method, path and body."""


class Search:
    """Raises UsageError for an invalid glob."""

    def __init__(self, request: Request, query: IndexQuery, dense_params: Mapping[str, Any], limits: Limits) -> None:
        self._request = request
        self._query = query
        self._phrasings = query.phrasings
        self._most_at_once = limits.get("search_max_batchsize")
        self._dense_params = {"params": dense_params} if dense_params else {}
        self._max_candidates = within(_MAX_CANDIDATES, limits.get("max_query_limit"))
        self._max_paths = within(_MAX_PATHS, limits.get("max_query_limit"))
        self._max_values = within(_MAX_PATHS, limits.get("condition_max_size"))
        self._limit = min(query.limit, self._max_candidates)
        self._wanted = min(max(_MIN_CANDIDATES, self._limit * _CANDIDATES_PER_HIT), self._max_candidates)
        self._glob = path_patterns(query.path_glob)
        self._most = limits.get("condition_max_size")
        self._filter = _filter(query, _of_tokens(query), self._most)

    async def hits(self) -> list[SearchHit]:
        """Best first."""
        if self._limit < 1:
            return []
        found = await self._nearest(self._wanted) if self._glob is None else await self._matching(self._glob)
        of_each = await self._candidates(best_of_each(found, max(self._limit, round(self._wanted * _RANKED_SHARE))))
        ranked = [
            candidates if phrasing.rank is None else await phrasing.rank(candidates)
            for phrasing, candidates in zip(self._phrasings, of_each, strict=True)
        ]
        first = await self._at_places() if self._query.places else []
        ids = {each.id for each in first}
        ordered = [*first, *(each for each in fused_phrasings(ranked) if each.id not in ids)]
        return await self._with_texts(passages(ordered)[: self._limit])

    async def _at_places(self) -> list[Candidate]:
        """The chunks at the places of the query, in their order."""
        places = self._query.places[: self._max_values]
        # In place of the tokens of the glob, which is compared with the paths: strict mode counts conditions.
        named = _filter(self._query, [one_of(Payload.PATH_TOKENS, sorted({each.name for each in places}))], self._most)
        listed = {"key": Payload.PATH, "filter": named, "exact": False, "limit": self._max_paths}
        paths = [hit["value"] for hit in (await self._request("list paths", "POST", "/facet", listed))["hits"]]
        if (glob := self._glob) is not None:
            paths = [path for path in paths if glob.match(path) is not None]
        files = await in_thread(lambda: [each.files(paths) for each in places])
        if not (wanted := sorted(set(chain(*files)))):
            return []
        body = {
            "filter": _filter(self._query, [one_of(Payload.PATH, wanted[: self._max_values])], self._most),
            "limit": within(_MAX_CHUNKS_AT_PLACES, self._max_candidates),
            "with_payload": _OF_RANKED,
        }
        points = (await self._request("read the places", "POST", "/points/scroll", body))["points"]
        chunks = [_candidate(Fused(each["id"], each, 0.0, 0.0), each) for each in points]
        return candidates_at(places, files, chunks)

    async def _matching(self, glob: PathPatterns) -> list[list[Fused]]:
        """If too few of the best candidates match, only the matching paths are searched. If there are too many paths to
        list, a file that matches may be missed: it is not among the best candidates."""
        wanted = self._wanted
        while True:
            found = await self._nearest(wanted)
            matching = [await in_thread(partial(_of_glob, each, glob)) for each in found]
            if len({each.id for each in chain(*matching)}) >= self._limit or all(len(each) < wanted for each in found):
                return matching
            if wanted == self._max_candidates:
                break
            wanted = min(wanted * _GROWTH, self._max_candidates)
        paths = await self._paths(glob)
        if paths is None:
            return matching
        self._filter = _filter(self._query, [one_of(Payload.PATH, paths)], self._most)
        return await self._nearest(self._wanted) if paths else [[] for _ in self._phrasings]

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

    async def _nearest(self, limit: int) -> list[list[Fused]]:
        """For each phrasing, the best by words and the best by meaning."""
        payload = False if self._glob is None else [Payload.PATH]
        of_words = {"filter": self._filter, "limit": limit, "with_payload": payload}
        of_meaning = of_words | {"filter": _without(self._filter, self._query.by_words)}
        asked = [
            nearest and nearest | more
            for phrasing in self._phrasings
            for nearest, more in ((_by_words(phrasing), of_words), (self._by_meaning(phrasing), of_meaning))
        ]
        found = await self._searched(asked)
        both = zip(self._phrasings, found[::2], found[1::2], strict=True)
        return [fused(by_words, by_meaning, each.words_weight) for each, by_words, by_meaning in both]

    def _by_meaning(self, phrasing: Phrasing) -> dict[str, Any] | None:
        query, dense = self._query, phrasing.dense
        if dense is None or (query.by_words and query.versions and {*query.versions} <= {*query.by_words}):
            return None
        # One row is one vector, also for a collection of multivectors.
        return {"query": dense[0] if len(dense) == 1 else dense, "using": DENSE} | self._dense_params

    async def _searched(self, asked: Sequence[dict[str, Any] | None]) -> list[list[dict[str, Any]]]:
        """The points of each; none of None. Those of one phrasing are two requests, of which a server with little to do
        answers the first while it reads the second."""
        bodies = [each for each in asked if each is not None]
        if len(self._phrasings) == 1:
            answers = await together(*(self._request("search", "POST", "/points/query", each) for each in bodies))
        else:
            answers = []
            for page in pages(bodies, within(len(bodies) or 1, self._most_at_once)):
                answers += await self._request("search", "POST", "/points/query/batch", {"searches": page})
        points = iter(answers)
        return [[] if each is None else next(points)["points"] for each in asked]

    async def _candidates(self, found: Sequence[Sequence[Fused]]) -> list[list[Candidate]]:
        ids = list(dict.fromkeys(each.id for each in chain(*found)))
        points = await self._read("read the candidates", ids, _OF_RANKED)
        # A point may be deleted in between: then it is none.
        return [[_candidate(each, points[each.id]) for each in one if each.id in points] for one in found]

    async def _read(self, what: str, ids: Sequence[PointId], payload: Sequence[str]) -> dict[PointId, dict[str, Any]]:
        if not ids:
            return {}
        points = await self._request(what, "POST", "/points", {"ids": ids, "with_payload": payload})
        return {point["id"]: point for point in points}

    async def _with_texts(self, found: Sequence[Passage]) -> list[SearchHit]:
        """Texts are fetched for hits only."""
        chunks = {chunk.id: chunk for each in found for chunk in each.chunks}
        points = await self._read("read the results", list(chunks), _OF_HITS)
        completed = {number: _hit(chunks[number], point["payload"]) for number, point in points.items()}
        return [each.shown(completed) for each in found if each.best.id in completed]


async def files_with_terms(request: Request, query: IndexQuery, limits: Limits) -> tuple[list[tuple[str, str]], bool]:
    """See `QdrantIndex.files_with_terms`. A sparse query returns exactly the points that share a term with it."""
    limit = within(query.limit, limits.get("max_query_limit"))
    body = {
        "query": {"indices": query.sparse.indices, "values": query.sparse.values},
        "using": SPARSE,
        "filter": filter_of(query, limits),
        "limit": limit,
        "with_payload": [Payload.VERSION_ID, Payload.PATH],
    }
    points = (await request("find terms", "POST", "/points/query", body))["points"]
    found = [_metadata(each) for each in points]
    files = dict.fromkeys((each["repository_id"], each["path"]) for each in found)
    return list(files), len(points) < limit


async def chunks_of(
    request: Request, query: IndexQuery, limits: Limits, fields: Sequence[str]
) -> tuple[list[Mapping[str, Any]], bool]:
    """See `QdrantIndex.chunks_of`."""
    limit = within(query.limit, limits.get("max_query_limit"))
    body = {"filter": filter_of(query, limits), "limit": limit, "with_payload": list(fields)}
    answer = await request("find chunks", "POST", "/points/scroll", body)
    return [_metadata(each) for each in answer["points"]], answer["next_page_offset"] is None


def filter_of(query: IndexQuery, limits: Limits) -> Filter | None:
    """What the query selects; of its glob only what tokens of paths tell."""
    return _filter(query, _of_tokens(query), limits.get("condition_max_size"))


def _by_words(phrasing: Phrasing) -> dict[str, Any] | None:
    sparse = phrasing.sparse
    if not len(sparse.indices):
        return None
    return {"query": {"indices": sparse.indices, "values": sparse.values}, "using": SPARSE}


def _of_glob(found: Sequence[Fused], glob: PathPatterns) -> list[Fused]:
    return [each for each in found if glob.match(_metadata(each.point)["path"]) is not None]


def _of_tokens(query: IndexQuery) -> list[Filter]:
    """Points of programs before 0.2 and of the longest paths have no tokens."""
    tokens = glob_tokens(query.path_glob) if query.path_glob is not None else ()
    has_all = {"must": [equals(Payload.PATH_TOKENS, each) for each in tokens]}
    return [{"should": [has_all, {"is_empty": {"key": Payload.PATH_TOKENS}}]}] if tokens else []


def _filter(query: IndexQuery, of_paths: Sequence[Filter], most: int | None) -> Filter | None:
    """`most`: values in one condition."""
    versions = query.versions
    only = versions[0] if len(versions) == 1 else None
    wanted = [(Payload.VERSION_ID, only), (Payload.LANGUAGE, query.language)]
    symbol = [equals(key, value) for key, value in (("name", query.symbol), ("kind", query.kind)) if value is not None]
    must = [*(equals(key, value) for key, value in wanted if value is not None), *of_paths]
    must += [_one_of_many(Payload.VERSION_ID, versions, most or len(versions))] if len(versions) > 1 else []
    must += [equals(Payload.CALLS, query.calls)] if query.calls is not None else []
    must += [{"nested": {"key": Payload.SYMBOLS, "filter": {"must": symbol}}}] if symbol else []
    return _without({"must": must} if must else None, query.hidden)


def _one_of_many(key: str, values: Sequence[str], most: int) -> Filter:
    parts = [one_of(key, values[start : start + most]) for start in range(0, len(values), most)]
    return parts[0] if len(parts) == 1 else {"should": parts}


def _without(selected: Filter | None, versions: Sequence[str]) -> Filter | None:
    """The filter for what is selected, without the points of these versions."""
    if not versions:
        return selected
    others = (selected or {}).get("must_not", [])
    return (selected or {}) | {"must_not": [*others, one_of(Payload.VERSION_ID, sorted(versions))]}


def path_patterns(pattern: str | None) -> PathPatterns | None:
    """Raises UsageError."""
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


def _candidate(fused: Fused, point: dict[str, Any]) -> Candidate:
    metadata = _metadata(point)
    return Candidate(
        id=fused.id,
        version=metadata["repository_id"],
        repository=metadata["repository"],
        path=metadata["path"],
        start_line=metadata["start_line"],
        end_line=metadata["end_line"],
        language=metadata["language"],
        names=_names(metadata.get("symbols")),
        score=fused.score,
        parts={"words": fused.words, "meaning": fused.meaning},
    )


def _names(symbols: object) -> list[str]:
    """From a payload, which any program may have written."""
    named = [each.get("name") for each in symbols if isinstance(each, dict)] if isinstance(symbols, list) else []
    return [each for each in named if isinstance(each, str)]


def _hit(chunk: Candidate, payload: dict[str, Any]) -> SearchHit:
    metadata = payload["metadata"]
    return SearchHit(
        repository=chunk.repository,
        path=chunk.path,
        start_line=chunk.start_line,
        end_line=chunk.end_line,
        language=chunk.language,
        score=chunk.score,
        text=payload[Payload.TEXT],
        url=metadata["url"],
        masked=count_masks(payload[Payload.TEXT]),
        commit=metadata["commit"],
        version=chunk.version,
        symbols=read_symbols(metadata.get("symbols")),
        parts=dict(chunk.parts),
        phrasings=list(chunk.phrasings),
    )
