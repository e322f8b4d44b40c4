"""Adds dense vectors to points that were stored with their words alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reposync.content.model import Skip
from reposync.embedding.port import Matrix
from reposync.errors import IndexChanged
from reposync.store.run import Run, RunProblem
from reposync.sync.pipeline import DenseVectors, Vectors, chunks_at_once, run_pipeline
from reposync.sync.progress import RunProgress
from reposync.sync.stored_points import own_text
from reposync.sync.target import SyncParts
from reposync.sync.writer import pages
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import PointId, PointMissing, StoredPoint, WriteScope
from reposync.vectors.request_bodies import MAX_POINTS

# Other programs may delete points of the version meanwhile.
_ATTEMPTS = 3
_FOREIGN = "a different program changed its points"


class _Chunk(NamedTuple):
    """A point without a dense vector."""

    id: PointId
    path: str
    content_hash: str
    text: str


@dataclass(slots=True)
class Meaning:
    """Safe to abandon at any await, and to repeat: what has its vector is not read again. While it works, the version
    is found by its words alone.

    A file whose text the model refuses fails, as in every run: its points are deleted."""

    parts: SyncParts
    run: Run
    scope: WriteScope
    progress: RunProgress
    index: QdrantIndex
    vectors: DenseVectors
    _failed: dict[str, str] = field(default_factory=dict)
    """Path -> reason."""
    _left: int = 0

    async def complete(self) -> None:
        """Raises IndexChanged, LeaseLost, and what embedder, index and store raise."""
        for _ in range(_ATTEMPTS):
            self._left = await self.index.count(self.scope.version_id, without_vector=True)
            if not self._left:
                return
            await self._record()
            self.progress.restart_chunks(self._left)
            self.progress.enter("indexing")
            batches = self.index.points_without_vector(self.scope.version_id, self._page_size)
            try:
                await run_pipeline(batches, self._chunks_of, self._embed, self._store, self.progress)
            except PointMissing:
                continue
            await self._drop_failed()
        if left := await self.index.count(self.scope.version_id, without_vector=True):
            raise IndexChanged(
                f"{left:,} points are still without a dense vector.",
                remedy="Something else writes to this collection; the next run continues.",
            )

    def _page_size(self) -> int:
        return min(MAX_POINTS, chunks_at_once(self.progress))

    async def _chunks_of(self, page: Sequence[StoredPoint]) -> Sequence[_Chunk]:
        return await asyncio.to_thread(self._own_chunks, page)

    def _own_chunks(self, page: Sequence[StoredPoint]) -> list[_Chunk]:
        chunks = []
        for point in page:
            text = own_text(point, self.scope.version_id)
            metadata = point.payload.get("metadata") or {}
            if text is not None:
                chunks.append(_Chunk(point.id, metadata["path"], metadata["content_hash"], text))
            elif isinstance(path := metadata.get("path"), str):
                self._failed[path] = _FOREIGN
        return chunks

    async def _embed(self, chunks: Sequence[_Chunk]) -> Mapping[str, Vectors]:
        return await self.vectors.of_texts([(chunk.content_hash, chunk.text) for chunk in chunks])

    async def _store(self, chunks: Sequence[_Chunk], vectors: Mapping[str, Vectors]) -> None:
        matrices: dict[PointId, Matrix] = {}
        for chunk in chunks:
            if isinstance(found := vectors[chunk.content_hash], str):
                self._failed[chunk.path] = found
            else:
                matrices[chunk.id] = found
        await self.index.add_vectors(self.scope, matrices)
        self.vectors.stored(vectors)
        self._left -= len(matrices)
        await self._record()
        self.progress.advance(0, len(chunks))

    async def _record(self) -> None:
        self.scope.check()
        await self.parts.versions.record_meaning(self.run, self.scope.version_id, max(0, self._left))

    async def _drop_failed(self) -> None:
        for page in pages(list(self._failed)):
            await self.index.remove_files(self.scope, page)
            rows = [await self.parts.manifests.file(self.scope.version_id, path) for path in page]
            failed = [row._replace(chunks=0, skip_reason=Skip.FAILED.value, language=None) for row in rows if row]
            self.scope.check()
            await self.parts.manifests.record(self.run, self.scope.version_id, failed)
            problems = [RunProblem(row.path, Skip.FAILED.value, self._failed[row.path]) for row in failed]
            await self.parts.runs.add_problems(self.run, problems)
        self._failed = {}
