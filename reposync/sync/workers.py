"""Where the CPU work of a run happens: a worker process for a long run, a thread for a short one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType

from reposync.sync.prepare import ContentSettings, PreparedFile, RawFile, failed_file, prepare

# A worker process costs about 0.6 s and 90 MB to start; below this many files a thread has finished by then.
PROCESS_FROM_FILES = 400


class ContentWorkers:
    """Runs `prepare` beside the event loop. A worker that a hostile file kills is replaced and the file is reported."""

    def __init__(self, files: int, settings: ContentSettings) -> None:
        self._settings = settings
        self._in_process = files >= PROCESS_FROM_FILES
        self._executor = self._start()

    def _start(self) -> Executor:
        if not self._in_process:
            return ThreadPoolExecutor(1, thread_name_prefix="content")
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker)

    async def prepare(self, files: Sequence[RawFile]) -> list[PreparedFile]:
        executor = self._executor
        try:
            return await self._submit(executor, files)
        except BrokenProcessPool:
            self._replace(executor)
        # One of these files ended the worker (out of memory, a crash in a C library): find it, keep the others.
        return [prepared for file in files for prepared in await self._prepare_alone(file)]

    async def _prepare_alone(self, file: RawFile) -> list[PreparedFile]:
        executor = self._executor
        try:
            return await self._submit(executor, [file])
        except BrokenProcessPool:
            self._replace(executor)
            return [failed_file(file, "ended the worker that processed it (out of memory?)")]

    async def _submit(self, executor: Executor, files: Sequence[RawFile]) -> list[PreparedFile]:
        return await asyncio.get_running_loop().run_in_executor(executor, prepare, files, self._settings)

    def _replace(self, broken: Executor) -> None:
        if self._executor is broken:
            broken.shutdown(wait=False, cancel_futures=True)
            self._executor = self._start()

    async def __aenter__(self) -> ContentWorkers:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


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
