"""Bulk writes: points of files, and dense vectors of stored points."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from reposync.embedding.port import EmbeddingSpec, Matrix
from reposync.errors import VectorIndexError, first_error
from reposync.vectors import request_bodies as bodies
from reposync.vectors.port import DENSE, FileWrite, Payload, PointId, WriteScope
from reposync.vectors.raw_requests import CollectionRequests, pages, within
from reposync.vectors.request_bodies import MAX_POINTS, Filter, VectorLimits, WriteRequest, write_requests

# Two keep the server busy while the next is encoded; the embedded engine flushes them together.
_WRITES_AT_ONCE = 2


class PointWrites:
    """`where`: names the server in messages. `spec`: what the collection was made for, if that is known."""

    def __init__(self, collection: CollectionRequests, where: str) -> None:
        self._collection = collection
        self._where = where

    async def replace_files(self, scope: WriteScope, files: Sequence[FileWrite], spec: EmbeddingSpec | None) -> None:
        """See `QdrantIndex.replace_files`: in ordered batch requests below the server's size limit."""
        requests = write_requests(
            scope,
            files,
            multivector=spec is not None and spec.multivector,
            has_dense=spec is not None and spec.dimension > 0,
            max_points=await self._points_at_once(),
            limits=VectorLimits.of(await self._collection.limits()),
        )
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
        async def is_done() -> bool:
            for ids in pages(request.ids, await self._collection.values_at_once()):
                mine = bodies.equals(Payload.EPOCH, scope.epoch), {"has_id": list(ids)}
                if await self._collection.count(bodies.points_of_version(scope.version_id, *mine)) < len(ids):
                    return False
            return not any([await self._collection.count(stale) for stale in request.stale])

        operations = request.operations(scope)
        # A batch that meets a rate limit half-way would begin anew each time.
        one_by_one = "write_rate_limit" in await self._collection.limits()
        answered = 0
        for body in map(bodies.batch, ([each] for each in operations) if one_by_one else [operations]):
            stored = await self._collection.store(body, is_done, scope.check)
            if stored is None:
                return
            answered += stored
        if answered != len(operations):
            raise VectorIndexError(f"{self._where} answered {answered} of {len(operations)} writes.")

    async def add_vectors(
        self, scope: WriteScope, vectors: Mapping[PointId, Matrix], spec: EmbeddingSpec | None
    ) -> None:
        """See `QdrantIndex.add_vectors`."""
        multivector, max_points = spec is not None and spec.multivector, await self._points_at_once()
        limits = VectorLimits.of(await self._collection.limits())
        updates = bodies.vector_updates(scope, vectors, multivector=multivector, max_points=max_points, limits=limits)
        while (update := await asyncio.to_thread(next, updates, None)) is not None:
            ids, operation = update
            complete = bodies.points_of_version(scope.version_id, {"has_id": ids}, {"has_vector": DENSE})

            async def is_done(selected: Filter = complete, wanted: int = len(ids)) -> bool:
                return await self._collection.count(selected) == wanted

            await self._collection.store(bodies.batch([operation]), is_done, scope.check)

    async def _points_at_once(self) -> int:
        """In a request that writes: one that costs more than the rate limit of a minute is never accepted; one of a
        quarter waits 15 s."""
        limits = await self._collection.limits()
        rate = limits.get("write_rate_limit")
        return within(MAX_POINTS, limits.get("upsert_max_batchsize"), None if rate is None else rate // 4)
