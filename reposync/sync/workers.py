"""Where the CPU work of a run happens: a worker process for a long run, a thread for a short one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType

from reposync.sources.paths import path_text
from reposync.store.columns import path_key
from reposync.sync.prepare import ContentSettings, PreparedFile, RawFile, failed_file, prepare

# A worker process costs about 0.6 s and 90 MB to start; below this many files a thread has finished by then.
PROCESS_FROM_FILES = 400
# A file was alone in a worker that died so often before it is reported. Once may be chance: the system kills whatever
# is large when another process wants its memory.
_TRIES_ALONE = 2
# In so many runs it ended its worker before further runs only report it. A run that reads everything tries it again.
MOST_DEATHS = 5

DEATH = "ended the worker that processed it"

Deaths = Mapping[tuple[str, str], int]
"""`death_of` a file -> in how many runs of the repository."""


class ContentWorkers:
    """Runs `prepare` beside the event loop. A worker that a hostile file kills is replaced and the file is reported.

    Of a file that did so before, `deaths` tells: it never gets into a thread of this process.
    """

    def __init__(self, files: int, settings: ContentSettings, deaths: Deaths | None = None) -> None:
        self._settings = settings
        self._deaths = deaths or {}
        self._in_process = files >= PROCESS_FROM_FILES or bool(self._deaths)
        self._executor = self._start()
        # One batch at a time: what was not in the worker when it died has nothing to do with its death.
        self._turn = asyncio.Lock()

    def _start(self) -> Executor:
        if not self._in_process:
            return ThreadPoolExecutor(1, thread_name_prefix="content")
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker)

    async def prepare(self, files: Sequence[RawFile]) -> list[PreparedFile]:
        if not any(self._deaths_of(file) for file in files) and (prepared := await self._attempt(files)) is not None:
            return prepared
        # One of these files ends the worker (out of memory, a crash in a C library): find it, keep the others.
        return [prepared for file in files for prepared in await self._prepare_alone(file)]

    async def _prepare_alone(self, file: RawFile) -> list[PreparedFile]:
        if self._deaths_of(file) < MOST_DEATHS:
            for _ in range(_TRIES_ALONE):
                if (prepared := await self._attempt([file])) is not None:
                    return prepared
        return [failed_file(file, death_of(file.path, file.sha)[1])]

    async def _attempt(self, files: Sequence[RawFile]) -> list[PreparedFile] | None:
        """None where the worker died of it."""
        async with self._turn:
            executor = self._executor
            try:
                return await asyncio.get_running_loop().run_in_executor(executor, prepare, files, self._settings)
            except BrokenProcessPool:
                executor.shutdown(wait=False, cancel_futures=True)
                self._executor = self._start()
                return None

    def _deaths_of(self, file: RawFile) -> int:
        return self._deaths.get(death_of(file.path, file.sha), 0) if self._deaths else 0

    async def __aenter__(self) -> ContentWorkers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def death_of(path: bytes, sha: str) -> tuple[str, str]:
    """The path as the run's problems have it, and what they say of the file. Another content is another file."""
    return path_key(path_text(path)), f"{DEATH}, at blob {sha[:10]} (out of memory?)"


def _start_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker holds both ends of its queue and would wait for ever after a kill -9 of its parent.
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
