"""Read, prepare, embed, store: stages with bounded queues between them, so that memory depends on the batch and not on
the repository. Order is kept. What to do is decided in `plan`."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from reposync.content.secret_policy import SecretPolicy
from reposync.embedding.port import Embedder, EmbeddingSpec, Matrix, WindowRows
from reposync.errors import EmbeddingError, EmbeddingInputRefused, SourceCorrupt, first_error
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Source, TreeEntry, path_text
from reposync.store.columns import sanitize_text
from reposync.store.manifest import ManifestRow
from reposync.sync.content_pool import ContentPool, RunContent
from reposync.sync.prepare import ContentSettings, PreparedFile, RawFile
from reposync.sync.progress import RunProgress
from reposync.sync.stored_points import own_text
from reposync.sync.target import TargetTree
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import PointWrite

BATCH_BYTES = 1_000_000
# Bounds a batch of many small files.
BATCH_FILES = 200
# So much of the model's work is in a batch, if its speed allows a full one: a cancelled or killed run loses little.
BATCH_SECONDS = 3.0
_FIRST_BATCH_CHUNKS, _LEAST_BATCH_CHUNKS = 20, 4
# Batches that may wait between two stages: enough to keep every stage busy.
QUEUE_BATCHES = 1

# Characters of the path that progress shows.
_SHOWN_PATH = 200
_HARMLESS_TEXT = "text"

Batch = TypeVar("Batch")
Prepared = TypeVar("Prepared")
Embedded = TypeVar("Embedded")
Vectors: TypeAlias = "Matrix | str"
"""Or why the model refuses the text. Not as an exception, whose traceback would keep the vectors of its batch."""
Judge = Callable[[UnreadableBlobs], None]
"""Called in a thread after the source has sent everything, before any file is recorded as unreadable. Raises
SourceCorrupt if there are so many that the source itself failed."""


async def run_pipeline(
    batches: AsyncGenerator[Batch, None],
    prepare: Callable[[Batch], Awaitable[Prepared]],
    embed: Callable[[Prepared], Awaitable[Embedded]],
    store: Callable[[Prepared, Embedded], Awaitable[None]],
    progress: RunProgress,
) -> None:
    """Pass `batches` through every stage; return when all is stored. An error of any stage ends all."""
    prepared: asyncio.Queue[asyncio.Task[Prepared] | None] = asyncio.Queue(QUEUE_BATCHES)
    embedded: asyncio.Queue[tuple[Prepared, asyncio.Task[Embedded]] | None] = asyncio.Queue(QUEUE_BATCHES)

    async def read_stage(tasks: asyncio.TaskGroup) -> None:
        async with contextlib.aclosing(batches):
            while True:
                with progress.stage("reading"):
                    batch = await anext(batches, None)
                if batch is None:
                    break
                await prepared.put(tasks.create_task(prepare_stage(batch)))
        await prepared.put(None)

    async def prepare_stage(batch: Batch) -> Prepared:
        with progress.stage("reading"):
            return await prepare(batch)

    async def embed_stage(tasks: asyncio.TaskGroup) -> None:
        while (task := await prepared.get()) is not None:
            batch = await task
            await embedded.put((batch, tasks.create_task(embed_batch(batch))))
        await embedded.put(None)

    async def embed_batch(batch: Prepared) -> Embedded:
        return await embed(batch)

    async def store_stage() -> None:
        while (following := await embedded.get()) is not None:
            batch, task = following
            vectors = await task
            with progress.stage("storing"):
                await store(batch, vectors)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_stage(tasks))
            tasks.create_task(embed_stage(tasks))
            tasks.create_task(store_stage())
    except ExceptionGroup as errors:
        raise first_error(errors) from errors


def chunks_at_once(progress: RunProgress) -> int:
    """As many chunks as the model embeds in BATCH_SECONDS."""
    rate = progress.chunks_per_second
    return max(_LEAST_BATCH_CHUNKS, int(rate * BATCH_SECONDS)) if rate else _FIRST_BATCH_CHUNKS


async def read_files(
    pool: ContentPool,
    source: Source,
    entries: Sequence[TreeEntry],
    target: TargetTree,
    settings: ContentSettings,
    secrets: SecretPolicy,
    progress: RunProgress,
    judge: Judge = lambda unreadable: None,
) -> AsyncGenerator[list[PreparedFile], None]:
    """The content of `entries`, read and chunked, but neither embedded nor stored."""
    batches = read_batches(source, entries, target, settings, progress, judge)
    content = RunContent(pool, settings, secrets)
    if entries:
        pool.warm()
    async with contextlib.aclosing(batches):
        async for batch in batches:
            yield await content.prepare(batch)


async def read_batches(
    source: Source,
    entries: Sequence[TreeEntry],
    target: TargetTree,
    settings: ContentSettings,
    progress: RunProgress,
    judge: Judge,
    batch_bytes: Callable[[], int] = lambda: BATCH_BYTES,
) -> AsyncGenerator[list[RawFile], None]:
    """Blobs in the order of the source, with the paths that have them, in batches bounded in files and in bytes:
    `batch_bytes` is called for each."""
    by_sha = await asyncio.to_thread(_by_sha, entries)
    batch: list[RawFile] = []
    size_bytes, most_bytes = 0, batch_bytes()
    unreadable: Mapping[str, str] = {}
    async with contextlib.aclosing(source.read(entries, max_bytes=settings.max_file_bytes)) as blobs:
        try:
            async for blob in blobs:
                progress.bytes_read += blob.size_bytes if blob.content is not None else 0
                for entry in by_sha.pop(blob.sha):
                    kept = target.keeps_generated(entry.path)
                    batch.append(RawFile(entry.path, entry.mode, blob.sha, blob.size_bytes, blob.content, kept))
                    size_bytes += len(blob.content or b"")
                    if size_bytes >= most_bytes or len(batch) >= BATCH_FILES:
                        yield batch
                        batch, size_bytes, most_bytes = [], 0, batch_bytes()
        except UnreadableBlobs as error:
            await asyncio.to_thread(judge, error)
            unreadable = error.reasons
    # The source has sent all other blobs: these files become problems of the run, which continues.
    for sha, reason in unreadable.items():
        for entry in by_sha.pop(sha, ()):
            batch.append(RawFile(entry.path, entry.mode, sha, 0, None, unreadable=f"blob {sha[:10]} {reason}"))
            if len(batch) >= BATCH_FILES:
                yield batch
                batch = []
    if batch:
        yield batch
    if by_sha:
        missing = path_text(next(iter(by_sha.values()))[0].path)
        raise SourceCorrupt(f"The source sent no content for {len(by_sha)} requested blobs, e.g. {missing}.")


def _by_sha(entries: Sequence[TreeEntry]) -> dict[str, list[TreeEntry]]:
    found: dict[str, list[TreeEntry]] = {}
    for entry in entries:
        found.setdefault(entry.sha, []).append(entry)
    return found


@dataclass(slots=True)
class DenseVectors:
    """Dense vectors by content hash: a text that the index, an index in `others` (of the same model) or a batch in
    flight (`_pending`, also texts that the model refused) already holds is not embedded again. Batches may be embedded
    concurrently, and are stored in order.

    Of a new text, windows are not embedded again that this run has embedded (`windows`), or that the file had before:
    `recorded` is the manifest of the version `version_id`. A new file may be one of those that are `removed`: a path by
    its name."""

    embedder: Embedder
    spec: EmbeddingSpec
    index: QdrantIndex
    progress: RunProgress
    others: Sequence[QdrantIndex] = ()
    version_id: str = ""
    recorded: Mapping[str, ManifestRow] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    windows: WindowRows = field(default_factory=WindowRows)
    _pending: dict[str, asyncio.Future[Vectors]] = field(default_factory=dict)

    async def embed(self, batch: Sequence[PreparedFile]) -> Sequence[PreparedFile]:
        """The batch with its vectors. A file whose text the model refuses is returned as failed; the others are not
        affected. Raises as `of_texts`."""
        chunks = list(_chunks(batch))
        is_static = self.spec.dimension and all(chunk.dense is not None for chunk in chunks)
        if is_static:
            self.progress.figures.chunks_embedded += len(chunks)
        if is_static or self.spec.dimension == 0:
            self.progress.embedded(len(chunks))
            return batch
        self.progress.file = sanitize_text(batch[0].path)[:_SHOWN_PATH] if batch else None
        vectors = await self.of_texts([(chunk.content_hash, chunk.text) for chunk in chunks], batch)
        return [_with_vectors(file, vectors) for file in batch]

    async def of_texts(
        self, chunks: Sequence[tuple[str, str]], files: Sequence[PreparedFile] = ()
    ) -> Mapping[str, Vectors]:
        """Vectors by content hash of these (content hash, text). `files`: those that the chunks are of, to find what
        was embedded of them before.

        Raises EmbeddingError, EmbeddingUnavailable, and what the index raises.
        """
        texts = dict(chunks)
        # No await before this: two batches never claim the same hash.
        mine = [content_hash for content_hash in texts if content_hash not in self._pending]
        for content_hash in mine:
            self._pending[content_hash] = asyncio.get_running_loop().create_future()
        futures = {content_hash: self._pending[content_hash] for content_hash in texts}
        known = await self._known(mine)
        for content_hash, matrix in known.items():
            futures[content_hash].set_result(matrix)
        new = [(content_hash, texts[content_hash]) for content_hash in mine if content_hash not in known]
        if new and files and self.spec.multivector:
            await self._learn_windows(files, {content_hash for content_hash, _ in new})
        self.progress.embedded(len(chunks) - len(new))
        with self.progress.stage("embedding"):
            await self._embed(new, futures)
        vectors = {content_hash: await future for content_hash, future in futures.items()}
        made = sum(1 for content_hash, _ in new if not isinstance(vectors[content_hash], str))
        stored = sum(1 for content_hash, _ in chunks if not isinstance(vectors[content_hash], str))
        self.progress.figures.chunks_reused += stored - made
        return vectors

    def stored(self, hashes: Iterable[str]) -> None:
        """The index now has the vectors of these texts, except of those that the model refused."""
        for content_hash in hashes:
            future = self._pending.get(content_hash)
            if future is not None and future.done() and not isinstance(future.result(), str):
                del self._pending[content_hash]

    async def _known(self, hashes: Sequence[str]) -> dict[str, Matrix]:
        known: dict[str, Matrix] = {}
        for index in (self.index, *self.others):
            if missing := [each for each in hashes if each not in known]:
                known |= await index.known(missing)
        return known

    async def _learn_windows(self, batch: Sequence[PreparedFile], new: Collection[str]) -> None:
        """Read the points that the files with `new` texts had, one request for some dozens of chunks."""
        changed = [file.path for file in batch if any(chunk.content_hash in new for chunk in file.chunks)]
        before = {
            path if path in self.recorded else self.removed.get(posixpath.basename(path), path) for path in changed
        }
        former = sorted(path for path in before if (row := self.recorded.get(path)) is not None and row.chunks)
        if not former:
            return
        async for points in self.index.chunks(self.version_id, former, with_dense=True):
            stored = [(text, each.dense) for each in points if (text := own_text(each, self.version_id)) is not None]
            split = await self.embedder.split([text for text, _ in stored])
            for (_, matrix), parts in zip(stored, split, strict=True):
                # Not equal if a server could read a window only in halves.
                if matrix is not None and matrix.shape == (len(parts), self.spec.dimension):
                    for number, window in enumerate(parts):
                        self.windows.add(window, matrix[number : number + 1])

    async def _embed(self, chunks: Sequence[tuple[str, str]], futures: dict[str, asyncio.Future[Vectors]]) -> None:
        if not chunks:
            return
        reported = 0.0

        def report(share: float) -> None:
            nonlocal reported
            reported += share * len(chunks)
            self.progress.embedded(share * len(chunks))

        try:
            rows = self.windows if self.spec.multivector else None
            matrices: Sequence[Vectors] = await self.embedder.embed([text for _, text in chunks], rows, report)
            self.progress.figures.chunks_embedded += len(chunks)
        except EmbeddingInputRefused as error:
            if len(chunks) > 1:
                # Halving finds the refused text in few calls and keeps all the others.
                self.progress.embedded(-reported)
                half = len(chunks) // 2
                await self._embed(chunks[:half], futures)
                await self._embed(chunks[half:], futures)
                return
            await self._check_model(error)
            matrices = [str(error)]
        self.progress.embedded(len(chunks) - reported)
        for (content_hash, _), matrix in zip(chunks, matrices, strict=True):
            futures[content_hash].set_result(matrix)

    async def _check_model(self, error: EmbeddingInputRefused) -> None:
        """Raises EmbeddingError if the model refuses even a harmless word: then it is not the text (but a wrong model
        name, a wrong parameter, a server that broke during the run), and the run must fail."""
        try:
            await self.embedder.embed([_HARMLESS_TEXT])
        except EmbeddingInputRefused:
            raise EmbeddingError(error.message, remedy="It refuses every text: check `embedding`.") from error


def _chunks(files: Sequence[PreparedFile]) -> Iterator[PointWrite]:
    return (chunk for file in files for chunk in file.chunks)


def _with_vectors(file: PreparedFile, vectors: Mapping[str, Vectors]) -> PreparedFile:
    chunks: list[PointWrite] = []
    for chunk in file.chunks:
        dense = vectors[chunk.content_hash]
        if isinstance(dense, str):
            return file.failed(dense)
        chunks.append(replace(chunk, dense=dense))
    return replace(file, chunks=tuple(chunks))
