"""The index on Qdrant: a server and the embedded engine answer the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import httpx

from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.vectors import request_bodies as bodies
from reposync.vectors.collection import (
    LAYOUT,
    PAYLOAD_INDEXES,
    check_made_for,
    physical_name,
    recorded_spec,
    resolve,
)
from reposync.vectors.connection import QdrantConnection
from reposync.vectors.embedded import EmbeddedEngine
from reposync.vectors.facets import AreShown, FacetCounts, facet_counts, has_any
from reposync.vectors.hybrid_search import Search, chunks_of, files_with_terms
from reposync.vectors.point_writes import PointWrites
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
from reposync.vectors.raw_requests import CollectionRequests, pages, within
from reposync.vectors.request_bodies import Filter

if TYPE_CHECKING:
    from reposync.vectors.changes import CollectionChanges

_HASHES_PER_PAGE = 512
_VECTORS_PER_PAGE = 128
_MULTIVECTORS_PER_PAGE = 32
# With texts of 7,000 characters each: about 4 MB.
_POINTS_PER_PAGE = 500
# Limits of facets. An id is 36 bytes.
_MAX_VERSIONS = 100_000
_MAX_NAMES = 10
# Encoding a change takes 50 us on the event loop.
_CHANGED_PER_REQUEST = 250
# Replicas agree within so many attempts, each after twice the delay of the one before.
_REPLICA_ATTEMPTS, _FIRST_DELAY_SECONDS = 4, 0.25


class QdrantIndex:
    """One collection of one Qdrant. Every method raises IndexUnavailable (retryable) or VectorIndexError.

    Connects at the first request. `transport` replaces the connection. Raises ConfigError."""

    def __init__(self, settings: IndexSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._connection = QdrantConnection(settings, transport=transport)
        self._collection = CollectionRequests(settings, self._connection)
        self._writes = PointWrites(self._collection, self._connection.where)
        self._client: CollectionChanges | None = None
        self._spec: EmbeddingSpec | None = None

    async def _changes(self) -> CollectionChanges:
        def imported() -> CollectionChanges:
            from reposync.vectors.changes import CollectionChanges  # Qdrant's client takes 1.3 s to import

            return CollectionChanges(self._settings, self._connection, self._collection)

        if self._client is None:
            self._client = await asyncio.to_thread(imported)
        return self._client

    async def spec(self) -> EmbeddingSpec | None:
        """What the collection was made for; None if there is none, or one that is not reposync's. Makes nothing."""
        try:
            return recorded_spec(await self._collection.describe())
        except CollectionMissing:
            return None

    async def resolve(self) -> ResolvedCollection | None:
        """The collection that this name, maybe an alias, leads to. None if it is free. Raises IndexMismatch."""
        try:
            return resolve(await self._collection.describe(), self._settings.collection, self._connection.where)
        except CollectionMissing:
            return None

    async def physical_for(self, spec: EmbeddingSpec) -> str:
        """The physical collection of this name for the model, whether it exists yet or not. Raises IndexMismatch."""
        found = await self.resolve()
        if found is not None and (found.spec, found.schema) == (spec, LAYOUT):
            return found.physical
        return physical_name(self._settings.collection, spec)

    async def lead_to(self, physical: str, *, if_free: bool = False) -> bool:
        """Make this name lead to `physical`; whether it does. An alias moves in one request. A collection that has the
        name itself is dropped first, once it is empty. `if_free`: whatever has the name keeps it."""
        name = self._settings.collection
        if physical == name:
            return True
        if (found := await self.resolve()) is not None:
            if found.physical == physical:
                return True
            if if_free or (found.physical == name and await self.count()):
                return False
            if found.physical == name:
                await self.drop()
        await (await self._changes()).lead_to(physical)
        return True

    async def drop_if_empty(self) -> None:
        """A collection that a different installation uses as well is not empty, and stays."""
        if await self.spec() is not None and not await self.count():
            await self.drop()

    async def drop(self) -> None:
        await (await self._changes()).drop()

    async def ensure(self, spec: EmbeddingSpec) -> str:
        """Make the collection and its payload indexes if missing. Returns its identity, a UUID in its metadata: a
        different one means that it was dropped and made again. Raises IndexMismatch."""
        try:
            collection = await self._collection.describe()
        except CollectionMissing:
            await (await self._changes()).make(spec)
            collection = await self._collection.describe()
        found = resolve(collection, self._settings.collection, self._connection.where)
        check_made_for(spec, found, self._settings.collection, self._connection.where)
        self._collection.learn_limits(collection)
        for field, schema in PAYLOAD_INDEXES.items():
            if field not in collection["payload_schema"]:
                await (await self._changes()).index_field(field, schema)
        self._spec = spec
        return found.identity

    async def lost(self) -> str | None:
        """Why the collection was made again, in a sentence; None if that is not known."""
        if not self._settings.is_embedded:
            return None  # the warnings of a server are about its settings
        return " ".join(each["message"] for each in (await self._collection.describe()).get("warnings") or []) or None

    async def known(self, content_hashes: Sequence[str]) -> Mapping[str, Matrix]:
        """Dense vectors of those content hashes that some point of the collection already has."""
        found: dict[str, Matrix] = {}
        if self._spec is not None and not self._spec.dimension:
            return found
        size = await self._collection.values_at_once(_HASHES_PER_PAGE)
        for page in pages(list(dict.fromkeys(content_hashes)), size):
            await self._find_vectors(list(page), found)
        return found

    async def _find_vectors(self, hashes: list[str], found: dict[str, Matrix]) -> None:
        multivector = self._spec is None or self._spec.multivector
        limit = _MULTIVECTORS_PER_PAGE if multivector else _VECTORS_PER_PAGE
        limit = within(limit, (await self._collection.limits()).get("max_query_limit"))
        while hashes:
            # A hash may be in thousands of points (a licence in every file): each page requests only the missing ones.
            page = await self._collection.request(
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
            for point in page["points"]:
                content_hash = point["payload"]["metadata"]["content_hash"]
                if content_hash not in found:
                    found[content_hash] = _dense(point)
            if page["next_page_offset"] is None:
                return
            hashes = [each for each in hashes if each not in found]

    async def replace_files(self, scope: WriteScope, files: Sequence[FileWrite]) -> None:
        """Upsert the new points, then delete the other points of these paths (if `replaces`, and epoch <=
        scope.epoch). Durable on return."""
        await self._writes.replace_files(scope, files, self._spec)

    async def add_vectors(self, scope: WriteScope, vectors: Mapping[PointId, Matrix]) -> None:
        """Set the dense vectors of points by id, except of points of a later epoch than scope.epoch. Durable on return.
        Raises PointMissing if one of the points does not exist; then some others may have their vectors."""
        await self._writes.add_vectors(scope, vectors, self._spec)

    async def remove_files(self, scope: WriteScope, paths: Sequence[str]) -> None:
        """Delete all points of these paths with epoch <= scope.epoch."""
        for page in pages(paths, await self._collection.values_at_once()):
            await self._delete_pages(bodies.writable(scope, bodies.one_of(Payload.PATH, page)), scope.check)

    async def remove_points(self, scope: WriteScope, ids: Sequence[PointId]) -> None:
        """Delete these points of the version, except those of a later epoch than scope.epoch. A point of another
        program may have no epoch, or one that is not a number."""
        mine = bodies.points_of_version(scope.version_id) | {"must_not": [bodies.later_than(scope.epoch)]}
        for page in pages(ids, await self._collection.values_at_once()):
            await self._collection.delete(mine, page, scope.check)

    async def remove_version(self, version_id: str, *, check: Callable[[], None] = no_check) -> None:
        """Delete all its points. `check`: see `WriteScope`."""
        # Again after the last page: a replica that was started again may have listed too few.
        for _ in range(_REPLICA_ATTEMPTS):
            if not await self._delete_pages(bodies.points_of_version(version_id), check):
                return

    async def _delete_pages(self, selected: Filter, check: Callable[[], None]) -> int:
        """In pages of ids: one delete of 500,000 points takes a server longer than any time-out."""
        size = await self._collection.values_at_once()
        deleted = 0
        async for page in self._collection.scrolled(selected, False, page_size=lambda: size):
            await self._collection.delete(selected, [point["id"] for point in page], check)
            deleted += len(page)
        return deleted

    async def relink(
        self,
        version_id: str,
        name: str,
        url_of: Callable[[str, int, int], str | None],
        *,
        check: Callable[[], None] = no_check,
    ) -> int:
        """Set the repository name of all its points, and their url to `url_of` (path, first line, last line); returns
        how many changed."""
        written = 0
        fields = [Payload.REPOSITORY, Payload.URL, Payload.PATH, Payload.START_LINE, Payload.END_LINE]
        async for page in self._collection.scrolled(bodies.points_of_version(version_id), fields):
            changes = {}
            for point in page:
                had = point["payload"]["metadata"]
                new = {"repository": name, "url": url_of(had["path"], had["start_line"], had["end_line"])}
                if not had.items() >= new.items():
                    changes[point["id"]] = new
            for ids in pages(list(changes), _CHANGED_PER_REQUEST):
                await (await self._changes()).set_metadata({each: changes[each] for each in ids}, check)
            written += len(changes)
        return written

    async def count(
        self,
        version_id: str | None = None,
        *,
        epoch: int | None = None,
        without_vector: bool = False,
        expected: int | None = None,
    ) -> int:
        """Points of the version or collection, of that epoch. `without_vector`: only those without a dense vector. If
        they are not `expected`, a majority of the replicas is asked."""
        wanted = [(Payload.VERSION_ID, version_id), (Payload.EPOCH, epoch)]
        must = [bodies.equals(key, value) for key, value in wanted if value is not None]
        selected = ({"must": must} if must else {}) | (bodies.WITHOUT_VECTOR if without_vector else {})
        return await self._collection.count(selected or None, expected=expected)

    async def size(self) -> int:
        """Points of the collection by its own account: nothing is counted, and the request is not repeated."""
        return int((await self._collection.describe(once=True))["points_count"] or 0)

    async def existing(self, ids: Sequence[PointId]) -> set[PointId]:
        """The points of `ids`, which a listing lacked, that some replica has after all; nothing without replicas."""
        if not await self._collection.has_replicas():
            return set()
        missing, found = list(ids), set[PointId]()
        for attempt in range(_REPLICA_ATTEMPTS):
            await asyncio.sleep(_FIRST_DELAY_SECONDS * 2**attempt)
            for page in pages(missing):
                body = {"ids": list(page), "with_payload": False}
                points = await self._collection.request("look for points", "POST", "/points", body)
                found |= {point["id"] for point in points}
            if not (missing := [each for each in missing if each not in found]):
                break
        return found

    async def point_ids(self, version_id: str) -> AsyncIterator[Sequence[PointId]]:
        async for page in self._collection.scrolled(bodies.points_of_version(version_id), False):
            yield [point["id"] for point in page]

    async def points_without_vector(
        self, version_id: str, page_size: Callable[[], int] = lambda: _POINTS_PER_PAGE
    ) -> AsyncGenerator[Sequence[StoredPoint], None]:
        """Points without a dense vector, with their text and what their ids follow from. `page_size`: called for each
        page."""
        selected = bodies.points_of_version(version_id) | bodies.WITHOUT_VECTOR
        fields = [Payload.TEXT, Payload.CONTENT_HASH, Payload.PATH, Payload.BLOB_SHA, Payload.CHUNK_INDEX]
        async for page in self._collection.scrolled(selected, fields, page_size=page_size):
            yield [StoredPoint(point["id"], point["payload"] or {}) for point in page]

    async def points_with_ids(self, version_id: str, ids: Sequence[PointId]) -> AsyncIterator[Sequence[StoredPoint]]:
        """The points of the version with these ids, with their payload, in pages."""
        for page in pages(ids, await self._collection.values_at_once()):
            async for points in self._stored(bodies.points_of_version(version_id, {"has_id": list(page)})):
                yield points

    async def chunks(
        self, version_id: str, paths: Sequence[str], *, with_dense: bool = False
    ) -> AsyncIterator[Sequence[StoredPoint]]:
        """All points of these paths with their payload, in pages. `with_dense`: those with dense vectors, and these."""
        more = [{"has_vector": DENSE}] if with_dense else []
        for page in pages(paths, await self._collection.values_at_once()):
            selected = bodies.points_of_version(version_id, bodies.one_of(Payload.PATH, page), *more)
            async for points in self._stored(selected, with_dense=with_dense):
                yield points

    async def _stored(self, selected: Filter, *, with_dense: bool = False) -> AsyncIterator[Sequence[StoredPoint]]:
        size = _MULTIVECTORS_PER_PAGE if with_dense else _POINTS_PER_PAGE
        async for page in self._collection.scrolled(selected, True, page_size=lambda: size, with_dense=with_dense):
            yield [
                StoredPoint(point["id"], point["payload"] or {}, _dense(point) if with_dense else None)
                for point in page
            ]

    async def later_epoch(self, version_id: str, epoch: int) -> int | None:
        """The highest epoch beyond `epoch` (and below LATEST_EPOCH) of the version's points: there is one if the
        database was restored to an older state than the index."""
        later = bodies.points_of_version(version_id, bodies.later_than(epoch))
        found: int | None = None
        async for page in self._collection.scrolled(later, [Payload.EPOCH]):
            epochs = [each for point in page if isinstance(each := point["payload"]["metadata"]["epoch"], int)]
            found = max([*epochs, *([] if found is None else [found])], default=None)
        return found

    async def versions(self) -> Mapping[str, int]:
        """Version id -> number of points."""
        return await self._collection.facet(Payload.VERSION_ID, None, _MAX_VERSIONS)

    async def names_of(self, version_id: str) -> Sequence[str]:
        """The repository names that the points of the version record; usually one."""
        selected = bodies.points_of_version(version_id)
        return list(await self._collection.facet(Payload.REPOSITORY, selected, _MAX_NAMES))

    async def search(self, query: IndexQuery) -> list[SearchHit]:
        """Hybrid search, best first; of hits of one file that share lines the best one."""
        params, limits = await self._collection.search_params(), await self._collection.limits()
        return await Search(self._collection.request, query, params, limits).hits()

    async def files_with_terms(self, query: IndexQuery) -> tuple[list[tuple[str, str]], bool]:
        """Files (version id, path) with a chunk that has one of the sparse vector's terms, best first, and whether
        these are all. Of `path_glob` only what tokens of paths tell is applied."""
        return await files_with_terms(self._collection.request, query, await self._collection.limits())

    async def chunks_of(self, query: IndexQuery, fields: Sequence[str]) -> tuple[list[Mapping[str, Any]], bool]:
        """The metadata of the chunks that fit the filters of the query, with version, path and these fields, and
        whether these are all. Of `path_glob` only what tokens of paths tell is applied."""
        limits = await self._collection.limits()
        named = [Payload.VERSION_ID, Payload.PATH, *fields]
        return await chunks_of(self._collection.request, query, limits, named)

    async def facets(self, query: IndexQuery, are_shown: AreShown) -> FacetCounts:
        """How many of the points with words of the query have each value of a field. `are_shown`: which of the versions
        that were met may be counted."""
        return await facet_counts(self._collection.request, query, await self._collection.limits(), are_shown)

    async def has_any(self, query: IndexQuery) -> bool:
        """Whether a point fits the filters of the query, whatever its words are."""
        return await has_any(self._collection.request, query, await self._collection.limits())

    async def ping(self) -> None:
        """Whether Qdrant answers, without retries; the embedded engine is not started for that."""
        if self._settings.is_embedded:
            await EmbeddedEngine(self._settings.state_dir).ping()
        else:
            # Not Qdrant's own health routes: these answer without an API key, too.
            await self._collection.request("check the connection", "GET", "/exists", once=True)
            await self._connection.check_version()

    async def version(self) -> str | None:
        """The version of the server, or of the embedded engine; None if the server does not say it."""
        if self._settings.is_embedded:
            return metadata.version("qdrant-edge-py")
        return await self._connection.version()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self._connection.close()


def _dense(point: Mapping[str, Any]) -> Matrix:
    import numpy as np  # only if something is embedded: takes 0.1 s

    return np.array(point["vector"][DENSE], dtype=np.float32, ndmin=2)
