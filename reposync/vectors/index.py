"""The index port on Qdrant: a server and the embedded engine answer the same requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.errors import VectorIndexError, first_error
from reposync.vectors import request_bodies as bodies
from reposync.vectors.collection import (
    PAYLOAD_INDEXES,
    QUANTIZATION_SINCE,
    identity_of,
    new_collection,
    recorded_spec,
    resolve,
    search_params,
)
from reposync.vectors.connection import AlreadyExists, QdrantConnection
from reposync.vectors.embedded import EmbeddedEngine
from reposync.vectors.hybrid_search import Search
from reposync.vectors.port import (
    DENSE,
    CollectionMissing,
    FileWrite,
    IndexQuery,
    IndexSettings,
    Payload,
    PointId,
    ResolvedCollection,
    SearchHit,
    StoredPoint,
    WriteScope,
    no_check,
)
from reposync.vectors.request_bodies import Filter, WriteRequest, write_requests

T = TypeVar("T")

# Two keep the server busy while the next is encoded; the embedded engine flushes them together.
_WRITES_AT_ONCE = 2
_HASHES_PER_PAGE = 512
_VECTORS_PER_PAGE = 128
_MULTIVECTORS_PER_PAGE = 32
_IDS_PER_PAGE = 4_000
# With texts of 7,000 characters each: about 4 MB.
_POINTS_PER_PAGE = 500
# Limits of facets. An id is 36 bytes.
_MAX_REPOSITORIES = 100_000
_MAX_NAMES = 10
_SELECTED_PER_REQUEST = 1_000


class QdrantIndex:
    """One collection of one Qdrant: implements `reposync.vectors.port.Index`."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._path = f"/collections/{quote(settings.collection, safe='')}"
        self._spec: EmbeddingSpec | None = None

    async def spec(self) -> EmbeddingSpec | None:
        try:
            return recorded_spec(await self._describe())
        except CollectionMissing:
            return None

    async def resolve(self) -> ResolvedCollection | None:
        try:
            return resolve(await self._describe(), self._settings.collection, self._connection.where)
        except CollectionMissing:
            return None

    async def take_name(self, name: str) -> None:
        """An existing alias is replaced in the same request."""
        mine = {"create_alias": {"collection_name": self._settings.collection, "alias_name": name}}
        body = {"actions": [{"delete_alias": {"alias_name": name}}, mine]}
        await self._connection.request(f"name the collection {name}", "POST", "/collections/aliases", body)

    async def drop(self) -> None:
        await self._request("drop the collection", "DELETE", "")

    async def ensure(self, spec: EmbeddingSpec) -> str:
        try:
            collection = await self._describe()
        except CollectionMissing:
            collection = await self._create(spec)
        identity = identity_of(collection, spec, self._settings.collection, self._connection.where)
        for field, schema in PAYLOAD_INDEXES.items():
            if field not in collection["payload_schema"]:
                body = {"field_name": field, "field_schema": schema}
                await self._request(f"index the payload field {field}", "PUT", "/index", body, wait=True)
        self._spec = spec
        return identity

    async def lost(self) -> str | None:
        return " ".join(each["message"] for each in (await self._describe()).get("warnings") or []) or None

    async def _describe(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._request("describe the collection", "GET", "")
        return found

    async def _create(self, spec: EmbeddingSpec) -> dict[str, Any]:
        """If two processes make it at once, the second uses what the first made: one identity."""
        with contextlib.suppress(AlreadyExists):
            try:
                await self._request("make the collection", "PUT", "", new_collection(spec, self._settings))
            except VectorIndexError as refused:
                quantization = self._settings.quantization
                since = QUANTIZATION_SINCE.get(quantization)
                if since is not None and "QuantizationConfig" in str(refused):
                    refused.remedy = f"qdrant.quantization {quantization} needs Qdrant {since}: upgrade it."
                raise
        return await self._describe()

    async def known(self, content_hashes: Sequence[str]) -> Mapping[str, Matrix]:
        found: dict[str, Matrix] = {}
        if self._spec is not None and not self._spec.dimension:
            return found
        wanted = list(dict.fromkeys(content_hashes))
        for start in range(0, len(wanted), _HASHES_PER_PAGE):
            await self._find_vectors(wanted[start : start + _HASHES_PER_PAGE], found)
        return found

    async def _find_vectors(self, hashes: list[str], found: dict[str, Matrix]) -> None:
        multivector = self._spec is None or self._spec.multivector
        limit = _MULTIVECTORS_PER_PAGE if multivector else _VECTORS_PER_PAGE
        while hashes:
            # A hash may be in thousands of points (a licence in every file): each page requests only the missing ones.
            page = await self._request(
                "read known vectors",
                "POST",
                "/points/scroll",
                {
                    "filter": {"must": [bodies.one_of(Payload.CONTENT_HASH, hashes), {"has_vector": DENSE}]},
                    "limit": limit,
                    "with_payload": [Payload.CONTENT_HASH],
                    "with_vector": [DENSE],
                },
            )
            import numpy as np  # only if something is embedded: takes 0.1 s

            for point in page["points"]:
                content_hash = point["payload"]["metadata"]["content_hash"]
                if content_hash not in found:
                    found[content_hash] = np.array(point["vector"][DENSE], dtype=np.float32, ndmin=2)
            if page["next_page_offset"] is None:
                return
            hashes = [each for each in hashes if each not in found]

    async def replace_files(self, scope: WriteScope, files: Sequence[FileWrite]) -> None:
        requests = write_requests(scope, files, multivector=self._spec is not None and self._spec.multivector)
        sent: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                # Encoding takes 10 ms per request: a thread does it while the previous requests are sent.
                while (request := await asyncio.to_thread(next, requests, None)) is not None:
                    if request.continues and sent:
                        _, sent = await asyncio.wait(sent)
                    elif len(sent) == _WRITES_AT_ONCE:
                        _, sent = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
                    sent.add(tasks.create_task(self._store(scope, request)))
        except ExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _store(self, scope: WriteScope, request: WriteRequest) -> None:
        body, check = request.body, scope.check
        results = await self._request("store points", "POST", "/points/batch", body, wait=True, check=check)
        if len(results) != request.operations:
            raise VectorIndexError(f"{self._connection.where} answered {len(results)} of {request.operations} writes.")

    async def remove_files(self, scope: WriteScope, paths: Sequence[str]) -> None:
        for page in _pages(paths):
            await self._delete(bodies.writable(scope, bodies.one_of(Payload.PATH, page)), scope.check)

    async def remove_points(self, scope: WriteScope, ids: Sequence[PointId]) -> None:
        """A point of another program may have no epoch, or one that is not a number."""
        for page in _pages(ids):
            mine = bodies.points_of_repository(scope.repository_id, {"has_id": list(page)})
            await self._delete(mine | {"must_not": [bodies.later_than(scope.epoch)]}, scope.check)

    async def remove_repository(self, repository_id: str, *, check: Callable[[], None] = no_check) -> None:
        await self._delete(bodies.points_of_repository(repository_id), check)

    async def _delete(self, selected: Filter, check: Callable[[], None]) -> None:
        await self._request("delete points", "POST", "/points/delete", {"filter": selected}, wait=True, check=check)

    async def rename_repository(self, repository_id: str, name: str, *, links: str | None = None) -> None:
        stale = bodies.points_of_repository(repository_id) | {"must_not": [bodies.equals(Payload.REPOSITORY, name)]}
        renamed = {"payload": {"repository": name}, "key": "metadata", "filter": stale}
        await self._request("rename a repository", "POST", "/points/payload", renamed, wait=True)
        if links is not None:
            await self._rewrite_urls(repository_id, lambda metadata: _moved(metadata, links), no_check)

    async def relink(
        self,
        version_id: str,
        url_of: Callable[[str, int, int], str | None],
        *,
        check: Callable[[], None] = no_check,
    ) -> int:
        def url(metadata: Mapping[str, Any]) -> str | None:
            return url_of(metadata["path"], metadata["start_line"], metadata["end_line"])

        return await self._rewrite_urls(version_id, url, check)

    async def _rewrite_urls(
        self, repository_id: str, url_of: Callable[[Mapping[str, Any]], str | None], check: Callable[[], None]
    ) -> int:
        written = 0
        wanted = [Payload.URL, Payload.PATH, Payload.START_LINE, Payload.END_LINE]
        async for page in self._scrolled(bodies.points_of_repository(repository_id), wanted):
            metadata = {point["id"]: point["payload"]["metadata"] for point in page}
            moved = {each: url for each, had in metadata.items() if (url := url_of(had)) != had.get("url")}
            operations = [
                {"set_payload": {"payload": {"url": url}, "key": "metadata", "points": [identity]}}
                for identity, url in moved.items()
            ]
            for some in _pages(operations):
                body = {"operations": some}
                await self._request("renew links", "POST", "/points/batch", body, wait=True, check=check)
            written += len(moved)
        return written

    async def count(self, repository_id: str | None = None, *, epoch: int | None = None) -> int:
        wanted = [(Payload.REPOSITORY_ID, repository_id), (Payload.EPOCH, epoch)]
        must = [bodies.equals(key, value) for key, value in wanted if value is not None]
        body = {"filter": {"must": must} if must else None, "exact": True}
        answer = await self._request("count points", "POST", "/points/count", body)
        return int(answer["count"])

    async def point_ids(self, repository_id: str) -> AsyncIterator[Sequence[PointId]]:
        async for page in self._scrolled(bodies.points_of_repository(repository_id), False):
            yield [point["id"] for point in page]

    async def points(self, repository_id: str, *, without_vector: bool = False) -> AsyncIterator[Sequence[StoredPoint]]:
        without = {"must_not": [{"has_vector": DENSE}]} if without_vector else {}
        async for page in self._stored(bodies.points_of_repository(repository_id) | without):
            yield page

    async def chunks(self, version_id: str, paths: Sequence[str]) -> AsyncIterator[Sequence[StoredPoint]]:
        for page in _pages(paths):
            async for points in self._stored(
                bodies.points_of_repository(version_id, bodies.one_of(Payload.PATH, page))
            ):
                yield points

    async def _stored(self, selected: Filter) -> AsyncIterator[Sequence[StoredPoint]]:
        async for page in self._scrolled(selected, True, limit=_POINTS_PER_PAGE):
            yield [StoredPoint(point["id"], point["payload"] or {}) for point in page]

    async def later_epoch(self, repository_id: str, epoch: int) -> int | None:
        later = bodies.points_of_repository(repository_id, bodies.later_than(epoch))
        found: int | None = None
        async for page in self._scrolled(later, [Payload.EPOCH]):
            epochs = [each for point in page if isinstance(each := point["payload"]["metadata"]["epoch"], int)]
            found = max([*epochs, *([] if found is None else [found])], default=None)
        return found

    async def repositories(self) -> Mapping[str, int]:
        return await self._facet(Payload.REPOSITORY_ID, None, _MAX_REPOSITORIES)

    async def names_of(self, repository_id: str) -> Sequence[str]:
        return list(await self._facet(Payload.REPOSITORY, bodies.points_of_repository(repository_id), _MAX_NAMES))

    async def _facet(self, key: str, selected: Filter | None, limit: int) -> dict[str, int]:
        body = {"key": key, "filter": selected, "exact": True, "limit": limit}
        answer = await self._request("count points by a field", "POST", "/facet", body)
        # The embedded engine still lists values whose last point is deleted.
        return {str(hit["value"]): int(hit["count"]) for hit in answer["hits"] if hit["count"]}

    async def _scrolled(
        self, selected: Filter, payload: bool | list[str], *, limit: int = _IDS_PER_PAGE
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """All selected points, in non-empty pages."""
        request = {"filter": selected, "limit": limit, "with_payload": payload, "with_vector": False}
        offset: Any = None
        while True:
            page = await self._request("list points", "POST", "/points/scroll", request | {"offset": offset})
            if page["points"]:
                yield page["points"]
            if (offset := page["next_page_offset"]) is None:
                return

    async def search(self, query: IndexQuery) -> list[SearchHit]:
        return await Search(self._request, query, search_params(self._settings)).hits()

    async def ping(self) -> None:
        if self._settings.url is None:
            await EmbeddedEngine(self._settings.state_dir).ping()
        else:
            # Not Qdrant's own health routes: these answer without an API key, too.
            await self._request("check the connection", "GET", "/exists", once=True)

    async def close(self) -> None:
        await self._connection.close()

    async def _request(self, what: str, method: str, path: str, body: Any = None, **options: Any) -> Any:
        return await self._connection.request(what, method, self._path + path, body, **options)


def open_index(
    settings: IndexSettings, *, long_lived: bool = False, transport: httpx.AsyncBaseTransport | None = None
) -> QdrantIndex:
    """Connects at the first request. `long_lived`: by Qdrant's client, whose import takes a second. `transport`
    replaces the connection. Raises ConfigError."""
    return QdrantIndex(settings, QdrantConnection(settings, long_lived=long_lived, transport=transport))


def _moved(metadata: Mapping[str, Any], links: str) -> str | None:
    """The url with `links` before its `/-/`, which no path of a GitLab project contains."""
    url: str | None = metadata.get("url")
    _, separator, rest = (url or "").partition("/-/")
    return f"{links}/-/{rest}" if separator else url


def _pages(selected: Sequence[T]) -> list[Sequence[T]]:
    return [selected[start : start + _SELECTED_PER_REQUEST] for start in range(0, len(selected), _SELECTED_PER_REQUEST)]
