"""Dense vectors by content hash: a text that the index or this run already holds is not embedded again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from reposync.embedding.port import Embedder, EmbeddingSpec, Matrix
from reposync.errors import EmbeddingError, EmbeddingInputRefused
from reposync.sync.prepare import PreparedChunk, PreparedFile, failed
from reposync.vectors.port import Index

HARMLESS = "text"


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """A prepared file with one matrix a chunk (None: only sparse search)."""

    file: PreparedFile
    dense: tuple[Matrix | None, ...]


class DenseVectors:
    """One a run. Batches may be embedded concurrently, and are stored in order.

    A vector is found by its content hash among those that a batch in flight embeds (`_pending`), in the index (queried
    for hashes that this run stored, and for all if `index_holds_points`), or in `others`, indexes of the same model.
    """

    def __init__(
        self,
        embedder: Embedder,
        spec: EmbeddingSpec,
        index: Index,
        *,
        index_holds_points: bool,
        others: Sequence[Index] = (),
    ) -> None:
        self._embedder = embedder
        self._spec = spec
        self._index = index
        self._others = others
        self._query_all = index_holds_points
        self._pending: dict[str, asyncio.Future[Matrix]] = {}
        # 60 bits of each hash: a collision only costs a query, and 80,000 of them take 5 MB.
        self._stored: set[int] = set()
        self.embedded = 0
        self.reused = 0

    async def embed(self, batch: Sequence[PreparedFile]) -> list[EmbeddedFile]:
        """The batch with its vectors. A file whose text the model refuses is returned as failed; the others are not
        affected.

        Raises EmbeddingError, EmbeddingUnavailable, and what the index raises.
        """
        if self._spec.dimension == 0:
            return [EmbeddedFile(file, (None,) * len(file.chunks)) for file in batch]
        # No await before this: two batches never claim the same hash.
        mine = self._claim(batch)
        futures = {chunk.content_hash: self._pending[chunk.content_hash] for file in batch for chunk in file.chunks}
        known = await self._known(list(mine))
        for content_hash, matrix in known.items():
            futures[content_hash].set_result(matrix)
        new = [chunk for content_hash, chunk in mine.items() if content_hash not in known]
        await self._embed(new, futures)
        embedded = [await _with_vectors(file, futures) for file in batch]
        refused = sum(1 for chunk in new if futures[chunk.content_hash].exception() is not None)
        self.reused += max(0, sum(len(file.dense) for file in embedded) - (len(new) - refused))
        return embedded

    def stored(self, batch: Sequence[EmbeddedFile]) -> None:
        """The index now has the vectors of these files."""
        for file in batch:
            for chunk in file.file.chunks:
                if self._pending.pop(chunk.content_hash, None) is not None:
                    self._stored.add(_short(chunk.content_hash))

    def _claim(self, batch: Sequence[PreparedFile]) -> dict[str, PreparedChunk]:
        mine: dict[str, PreparedChunk] = {}
        for file in batch:
            for chunk in file.chunks:
                if chunk.content_hash not in self._pending:
                    self._pending[chunk.content_hash] = asyncio.get_running_loop().create_future()
                    mine[chunk.content_hash] = chunk
        return mine

    async def _known(self, hashes: Sequence[str]) -> dict[str, Matrix]:
        wanted = hashes if self._query_all else [each for each in hashes if _short(each) in self._stored]
        known = dict(await self._index.known(wanted)) if wanted else {}
        for other in self._others:
            if missing := [each for each in hashes if each not in known]:
                known |= await other.known(missing)
        return known

    async def _embed(self, chunks: Sequence[PreparedChunk], futures: dict[str, asyncio.Future[Matrix]]) -> None:
        if not chunks:
            return
        try:
            matrices = await self._embedder.embed([chunk.text for chunk in chunks])
        except EmbeddingInputRefused as error:
            if len(chunks) == 1:
                await self._check_model(error)
                refused = futures[chunks[0].content_hash]
                refused.set_exception(error)
                refused.exception()  # marks it as retrieved: a file with two refused chunks awaits only the first
                return
            # Halving finds the refused text in few calls and keeps all the others.
            half = len(chunks) // 2
            await self._embed(chunks[:half], futures)
            await self._embed(chunks[half:], futures)
            return
        for chunk, matrix in zip(chunks, matrices, strict=True):
            futures[chunk.content_hash].set_result(matrix)
        self.embedded += len(chunks)

    async def _check_model(self, error: EmbeddingInputRefused) -> None:
        """Raises EmbeddingError if the model refuses even a harmless word: then it is not the text (but a wrong model
        name, a wrong parameter, a server that broke during the run), and the run must fail."""
        try:
            await self._embedder.embed([HARMLESS])
        except EmbeddingInputRefused:
            raise EmbeddingError(error.message, remedy="It refuses every text: check `embedding`.") from error


def _short(content_hash: str) -> int:
    return int(content_hash[:15], 16)


async def _with_vectors(file: PreparedFile, futures: dict[str, asyncio.Future[Matrix]]) -> EmbeddedFile:
    try:
        return EmbeddedFile(file, tuple([await futures[chunk.content_hash] for chunk in file.chunks]))
    except EmbeddingInputRefused as error:
        return EmbeddedFile(failed(file, str(error)), ())
