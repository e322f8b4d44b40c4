"""Dense vectors by content hash: nothing that the index or this run already holds is embedded again."""

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
    """A prepared file with one matrix a chunk (None: sparse search alone)."""

    file: PreparedFile
    dense: tuple[Matrix | None, ...]


class DenseVectors:
    """One a run. Batches may be embedded at the same time, and are stored in order.

    A content hash is in one of three places: being embedded by a batch in flight (`_pending`), stored by this run
    (`_stored`: the index has it), or perhaps in the index from before (asked if `index_holds_points`), or in one of
    the `others`, which hold vectors of the same model.
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
        self._ask_for_all = index_holds_points
        self._pending: dict[str, asyncio.Future[Matrix]] = {}
        # 60 bits of each hash: a chance hit only costs a question to the index, and 80,000 of them take 5 MB.
        self._stored: set[int] = set()
        self.embedded = 0
        self.reused = 0

    async def embed(self, batch: Sequence[PreparedFile]) -> list[EmbeddedFile]:
        """The batch with its vectors. A file whose text the model refuses comes back as failed, alone.

        Raises EmbeddingError, EmbeddingUnavailable, and what the index raises.
        """
        if self._spec.dimension == 0:
            return [EmbeddedFile(file, (None,) * len(file.chunks)) for file in batch]
        # Up to the first await this runs in the batch's turn: two batches never claim the same hash.
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
        """The index now answers for these."""
        for file in batch:
            for chunk in file.file.chunks:
                if self._pending.pop(chunk.content_hash, None) is not None:
                    self._stored.add(_brief(chunk.content_hash))

    def _claim(self, batch: Sequence[PreparedFile]) -> dict[str, PreparedChunk]:
        mine: dict[str, PreparedChunk] = {}
        for file in batch:
            for chunk in file.chunks:
                if chunk.content_hash not in self._pending:
                    self._pending[chunk.content_hash] = asyncio.get_running_loop().create_future()
                    mine[chunk.content_hash] = chunk
        return mine

    async def _known(self, hashes: Sequence[str]) -> dict[str, Matrix]:
        asked = hashes if self._ask_for_all else [each for each in hashes if _brief(each) in self._stored]
        known = dict(await self._index.known(asked)) if asked else {}
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
                await self._make_sure_of_the_model(error)
                refused = futures[chunks[0].content_hash]
                refused.set_exception(error)
                refused.exception()  # marks it as seen: a file with two refused chunks asks for the first alone
                return
            # Halving finds the text that the model refuses in few calls, and keeps all the others.
            half = len(chunks) // 2
            await self._embed(chunks[:half], futures)
            await self._embed(chunks[half:], futures)
            return
        for chunk, matrix in zip(chunks, matrices, strict=True):
            futures[chunk.content_hash].set_result(matrix)
        self.embedded += len(chunks)

    async def _make_sure_of_the_model(self, error: EmbeddingInputRefused) -> None:
        """Before a text is blamed, each time: a model that refuses a harmless word refuses everything (a wrong name, a
        wrong parameter, a server that broke in the middle of the run), and then the run has to fail."""
        try:
            await self._embedder.embed([HARMLESS])
        except EmbeddingInputRefused:
            raise EmbeddingError(error.message, remedy="It refuses every text: check `embedding`.") from error


def _brief(content_hash: str) -> int:
    return int(content_hash[:15], 16)


async def _with_vectors(file: PreparedFile, futures: dict[str, asyncio.Future[Matrix]]) -> EmbeddedFile:
    try:
        return EmbeddedFile(file, tuple([await futures[chunk.content_hash] for chunk in file.chunks]))
    except EmbeddingInputRefused as error:
        return EmbeddedFile(failed(file, str(error)), ())
