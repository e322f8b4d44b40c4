"""From a blob to chunks that are ready to embed: decode, chunk, hash, sparse vectors. This is CPU work: it runs in a
worker process for a long run, in a thread for a short one."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from types import TracebackType

from reposync.content.documents import make_document
from reposync.content.model import Chunk, Skip, Skipped, content_hash
from reposync.content.symbols import symbols_of
from reposync.cores import usable_cores
from reposync.embedding.sparse import document_vector
from reposync.sources.port import path_text
from reposync.store.columns import path_key
from reposync.symbol import Symbol
from reposync.vectors.port import PointWrite

# A worker process costs about 0.6 s and 90 MB to start; below this many files a thread has finished by then.
PROCESS_FROM_FILES = 400
# Two keep pace with one event loop that stores what they prepare.
MOST_WORKERS = 2
# Attempts for a file alone in a worker before it is reported. The first death may be chance: the kernel kills any large
# process if another needs memory.
_TRIES_ALONE = 2
# Runs in which a file killed its worker before later runs only report it. A run that reads everything tries it again.
MOST_DEATHS = 5

DEATH = "ended the worker that processed it"

Deaths = Mapping[tuple[str, str], int]
"""`death_of` a file -> number of runs of the repository in which it killed its worker."""


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """How files become chunks; if any of these changes, every file is chunked again."""

    chunk_size: int
    chunk_overlap: int
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """A path with the content of its blob (None: over the limit). `keep_generated`: see `PathRules.keeps_generated`.
    `unreadable`: why the source has no content for it."""

    path: bytes
    mode: int
    sha: str
    size_bytes: int
    content: bytes | None
    keep_generated: bool = False
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file with the points of its chunks, or why it has none. Their dense vectors are added when it is embedded, and
    their links when it is stored. `size_bytes`: None if its path alone decided."""

    path: str
    mode: int
    sha: str
    size_bytes: int | None
    language: str | None = None
    chunks: tuple[PointWrite, ...] = ()
    skipped: Skipped | None = None

    @property
    def is_failed(self) -> bool:
        """It could not be read, processed or embedded; the next run tries it again."""
        return self.skipped is not None and self.skipped.reason is Skip.FAILED

    def failed(self, detail: str) -> PreparedFile:
        return replace(self, language=None, chunks=(), skipped=Skipped(Skip.FAILED, detail))


def point_of(
    chunk_index: int, chunk: Chunk, path: str, language: str | None, symbols: Sequence[Symbol] | None = None
) -> PointWrite:
    """`symbols`: of this chunk, if they are known; None: it is parsed."""
    if symbols is None:
        symbols = symbols_of(chunk.text, language, chunk.start_line)
    return PointWrite(
        chunk_index,
        chunk.text,
        chunk.start_line,
        chunk.end_line,
        content_hash(chunk.text),
        url=None,
        dense=None,
        sparse=document_vector(chunk.text, path=path, names=[each.name for each in symbols]),
        symbols=symbols,
        start_index=chunk.start_index,
    )


def prepare(files: Sequence[RawFile], settings: ContentSettings) -> list[PreparedFile]:
    """One result a file, in order. A failure of one file becomes its skip reason and does not affect the others."""
    return [_prepare(file, settings) for file in files]


def _prepare(file: RawFile, settings: ContentSettings) -> PreparedFile:
    path = path_text(file.path)
    prepared = PreparedFile(path, file.mode, file.sha, file.size_bytes)
    if file.unreadable is not None:
        return prepared.failed(file.unreadable)
    try:
        document = make_document(
            file.path,
            file.content,
            file.size_bytes,
            chunk_size=settings.chunk_size,
            chunk_overlap=settings.chunk_overlap,
            max_file_bytes=settings.max_file_bytes,
            keep_generated=file.keep_generated,
        )
        if isinstance(document, Skipped):
            return replace(prepared, skipped=document)
        chunks = tuple(point_of(number, chunk, path, document.language) for number, chunk in enumerate(document.chunks))
    except Exception as error:  # noqa: BLE001 - one hostile file must not end a run
        # Only the type: the message of an error may quote the file.
        return prepared.failed(f"could not be processed: {type(error).__name__}")
    return replace(prepared, language=document.language, chunks=chunks)


class ContentWorkers:
    """Runs `prepare` beside the event loop. A worker that a file kills is replaced, and the file is reported.

    Files that did so before (`deaths`) never run in a thread of this process. `is_repeated`: an earlier attempt failed;
    a file of it may have ended the whole process, so a worker process reads them.
    """

    def __init__(
        self, files: int, settings: ContentSettings, deaths: Deaths | None = None, *, is_repeated: bool = False
    ) -> None:
        self._settings = settings
        self._deaths = deaths or {}
        self._in_process = files >= PROCESS_FROM_FILES or bool(self._deaths) or is_repeated
        # A batch has a worker for itself: only its files can have killed it. The worker used last is used next, so that
        # a second one starts only if there is work for two.
        self._idle: asyncio.LifoQueue[Executor] = asyncio.LifoQueue()
        self._executors = {self._start() for _ in range(_workers(files) if self._in_process else 1)}
        for each in self._executors:
            self._idle.put_nowait(each)

    def _start(self) -> Executor:
        if not self._in_process:
            return ThreadPoolExecutor(1, thread_name_prefix="content")
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker)

    async def prepare(self, files: Sequence[RawFile]) -> list[PreparedFile]:
        if not any(self._deaths_of(file) for file in files) and (prepared := await self._attempt(files)) is not None:
            return prepared
        # One of these files kills the worker (out of memory, a crash in a C library): find it, keep the others.
        return [await self._prepare_alone(file) for file in files]

    async def _prepare_alone(self, file: RawFile) -> PreparedFile:
        if self._deaths_of(file) < MOST_DEATHS:
            for _ in range(_TRIES_ALONE):
                if (prepared := await self._attempt([file])) is not None:
                    return prepared[0]
        died = PreparedFile(path_text(file.path), file.mode, file.sha, file.size_bytes)
        return died.failed(death_of(file.path, file.sha)[1])

    async def _attempt(self, files: Sequence[RawFile]) -> list[PreparedFile] | None:
        """None if the worker died."""
        executor = await self._idle.get()
        try:
            return await asyncio.get_running_loop().run_in_executor(executor, prepare, files, self._settings)
        except BrokenProcessPool:
            executor.shutdown(wait=False, cancel_futures=True)
            self._executors.remove(executor)
            if not self._executors:
                executor = self._start()
                self._executors.add(executor)
            # Otherwise one less: memory may be short, and a file that is tried alone must be alone.
            return None
        finally:
            if executor in self._executors:
                self._idle.put_nowait(executor)

    def _deaths_of(self, file: RawFile) -> int:
        return self._deaths.get(death_of(file.path, file.sha), 0)

    async def __aenter__(self) -> ContentWorkers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A worker may not end when its executor shuts down (seen with CPython 3.11, after a cancelled run), and the
        # program would wait for it when it exits. It holds nothing that could be lost.
        for executor in self._executors:
            processes = list((getattr(executor, "_processes", None) or {}).values())
            executor.shutdown(wait=False, cancel_futures=True)
            for each in processes:
                each.kill()


def _workers(files: int) -> int:
    return min(MOST_WORKERS, usable_cores(), 1 + files // (4 * PROCESS_FROM_FILES))


def death_of(path: bytes, sha: str) -> tuple[str, str]:
    """Path and detail of the file in the problems of a run. A changed file is tried again, as it has a different
    blob."""
    return path_key(path_text(path)), f"{DEATH}, at blob {sha[:10]} (out of memory?)"


def _start_worker() -> None:
    # What the imports made is not garbage: looking for some took 3% of a worker's time.
    gc.freeze()
    gc.set_threshold(100_000)
    # Ctrl-C reaches every process of the terminal; the parent decides what happens to the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker holds both ends of its queue and would wait for ever after a kill -9 of its parent.
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
