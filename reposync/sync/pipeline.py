"""Read, prepare, embed, store: stages with bounded queues between them, so that memory depends on the batch and not on
the repository. Order is kept. What to do is decided in `plan`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from reposync.errors import SourceCorrupt, first_error
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Source, TreeEntry, path_text
from reposync.sync.dense import DenseVectors, EmbeddedFile
from reposync.sync.prepare import ContentWorkers, PreparedFile, RawFile
from reposync.sync.progress import RunProgress

BATCH_BYTES = 500_000
# Bounds a batch of many small files.
BATCH_FILES = 200
# Batches that may wait between two stages: enough to keep every stage busy.
QUEUE_BATCHES = 1

Store = Callable[[Sequence[EmbeddedFile]], Awaitable[None]]
Judge = Callable[[UnreadableBlobs], None]
"""Called after the source has sent everything, before any file is recorded as unreadable. Raises SourceCorrupt if there
are so many that the source itself failed."""


async def run_pipeline(
    source: Source,
    entries: Sequence[TreeEntry],
    *,
    keep_generated: Callable[[bytes], bool],
    max_file_bytes: int,
    batch_bytes: int,
    workers: ContentWorkers,
    vectors: DenseVectors,
    store: Store,
    judge: Judge,
    progress: RunProgress,
) -> None:
    """Pass the content of `entries` through every stage; return when all is stored. An error of any stage ends all."""
    prepared: asyncio.Queue[asyncio.Task[list[PreparedFile]] | None] = asyncio.Queue(QUEUE_BATCHES)
    embedded: asyncio.Queue[asyncio.Task[list[EmbeddedFile]] | None] = asyncio.Queue(QUEUE_BATCHES)

    async def read_stage(tasks: asyncio.TaskGroup) -> None:
        batches = read_batches(
            source,
            entries,
            keep_generated,
            max_file_bytes=max_file_bytes,
            batch_bytes=batch_bytes,
            judge=judge,
            progress=progress,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                await prepared.put(tasks.create_task(workers.prepare(batch)))
        await prepared.put(None)

    async def embed_stage(tasks: asyncio.TaskGroup) -> None:
        while (task := await prepared.get()) is not None:
            await embedded.put(tasks.create_task(vectors.embed(await task)))
        await embedded.put(None)

    async def store_stage() -> None:
        while (task := await embedded.get()) is not None:
            batch = await task
            await store(batch)
            vectors.stored(batch)

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_stage(tasks))
            tasks.create_task(embed_stage(tasks))
            tasks.create_task(store_stage())
    except ExceptionGroup as errors:
        raise first_error(errors) from errors


async def read_batches(
    source: Source,
    entries: Sequence[TreeEntry],
    keep_generated: Callable[[bytes], bool],
    *,
    max_file_bytes: int,
    batch_bytes: int = BATCH_BYTES,
    judge: Judge = lambda unreadable: None,
    progress: RunProgress,
) -> AsyncGenerator[list[RawFile], None]:
    """Blobs in the order of the source, with the paths that have them, in batches bounded in bytes and files."""
    by_sha: dict[str, tuple[TreeEntry, ...]] = {}
    for entry in entries:
        by_sha[entry.sha] = (*by_sha.get(entry.sha, ()), entry)
    batch: list[RawFile] = []
    size_bytes = 0
    unreadable: UnreadableBlobs | None = None
    async with contextlib.aclosing(source.read(entries, max_bytes=max_file_bytes)) as blobs:
        try:
            async for blob in blobs:
                progress.bytes_read += blob.size_bytes if blob.content is not None else 0
                for entry in by_sha.pop(blob.sha):
                    kept = keep_generated(entry.path)
                    batch.append(RawFile(entry.path, entry.mode, blob.sha, blob.size_bytes, blob.content, kept))
                    size_bytes += len(blob.content or b"")
                    if size_bytes >= batch_bytes or len(batch) >= BATCH_FILES:
                        yield batch
                        batch, size_bytes = [], 0
        except UnreadableBlobs as error:
            unreadable = error
    if unreadable is not None:
        judge(unreadable)
        # The source has sent all other blobs: these files become problems of the run, which continues.
        for sha, reason in unreadable.reasons.items():
            for entry in by_sha.pop(sha, ()):
                batch.append(RawFile(entry.path, entry.mode, sha, 0, None, unreadable=f"blob {sha[:10]} {reason}"))
    if batch:
        yield batch
    if by_sha:
        missing = path_text(next(iter(by_sha.values()))[0].path)
        raise SourceCorrupt(f"The source sent no content for {len(by_sha)} requested blobs, e.g. {missing}.")
