"""The worker processes of this process, for all of its runs. Nothing that was read from a repository is decoded, cut,
parsed or counted outside of them: a file can bring a parser, and with it its process, down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from reposync.cores import usable_cores
from reposync.paths import path_text
from reposync.store.columns import path_key
from reposync.sync.content_worker import LENGTH
from reposync.sync.prepare import Answer, Contents, ContentSettings, Job, PreparedFile, RawFile, StoredFile

# Two keep pace with one event loop that stores what they prepare.
MOST_WORKERS = 2
# A worker is replaced after so many files, which take about ten seconds; starting the next one takes 0.6 s.
FILES_PER_WORKER = 5_000
# Of a worker that is idle; one that holds more, after a large file, ends.
MOST_IDLE_BYTES = 200_000_000
# One idle worker stays, so that the next file does not wait for its start; others end after this time.
IDLE_SECONDS = 60.0
# What a pipe holds: more than a job has files.
_PIPE_BYTES = 65_536
# A worker needs no secret of this process.
_ENVIRONMENT = "PATH HOME LANG LC_ALL TMPDIR PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH"


# Attempts for a file alone in a worker before it is reported. The first death may be chance: the kernel kills any large
# process if another needs memory.
_TRIES_ALONE = 2
# Runs in which a file killed its worker before later runs only report it. A run that reads everything tries it again.
MOST_DEATHS = 5

DEATH = "ended the worker that processed it"

Deaths = Mapping[tuple[str, str], int]
"""`death_of` a file -> number of runs of the repository in which it killed its worker."""


class WorkerDied(Exception):
    """Killed, or ended by what a file makes of its parser (`is_parser`): it was past the time for one file, wanted more
    memory than a worker may have, or crashed. `file`: the number of the file in its job that it worked on."""

    def __init__(self, status: int | None, file: int = 0) -> None:
        super().__init__(f"a content worker ended with status {status}")
        self.file = file
        self.is_parser = status in (-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV)


@dataclass(eq=False)
class _Worker:
    """Started by its first job."""

    files: int = 0
    _process: subprocess.Popen[bytes] | None = None
    # A byte for each file that it has begun, read at the end of a job: which file was it, if it dies?
    _begun: FileIO | None = None
    _killed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, job: Job) -> Answer:
        """Blocks. Raises WorkerDied."""
        process = self._started()
        to_worker, from_worker, begun = process.stdin, process.stdout, self._begun
        if to_worker is None or from_worker is None or begun is None:
            raise WorkerDied(None)
        message = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
        try:
            to_worker.write(LENGTH.pack(len(message)))
            to_worker.write(message)
            to_worker.flush()
            head = from_worker.read(LENGTH.size)
            answer = from_worker.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
        except OSError:  # it ended while it was written to
            head = answer = b""
        if len(head) < LENGTH.size or len(answer) < LENGTH.unpack(head)[0]:
            process.kill()
            raise WorkerDied(process.wait(), max(0, len(begun.readall()) - 1))
        begun.read(_PIPE_BYTES)
        found: Answer = pickle.loads(answer)  # noqa: S301 - of our own child
        self.files += len(found.files)
        return found

    def start(self) -> None:
        with contextlib.suppress(WorkerDied, OSError):  # the first job says so
            self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise WorkerDied(None)
            if self._process is None:
                begun, begins = os.pipe()
                self._begun = FileIO(begun)
                try:
                    self._process = subprocess.Popen(  # noqa: S603 - this program
                        [sys.executable, "-m", "reposync.sync.content_worker", str(begins)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        pass_fds=[begins],
                        env=_environment(),
                        # Ctrl-C reaches every process of the terminal; this one decides about its workers.
                        process_group=0,
                    )
                finally:
                    os.close(begins)
            return self._process

    @property
    def is_used_up(self) -> bool:
        return self.files >= FILES_PER_WORKER or self._resident_bytes() > MOST_IDLE_BYTES

    def _resident_bytes(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1] if self._process else "0"
            return int(pages) * resource.getpagesize()
        except (OSError, IndexError, ValueError):  # no Linux
            return 0

    def kill(self) -> None:
        """It holds nothing that could be lost. Whoever waits for its answer gets WorkerDied."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def reap(self) -> None:
        """After `kill`, when nobody waits for an answer any more."""
        if self._process is not None:
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._begun):
                with contextlib.suppress(OSError):  # what was not sent cannot be sent any more
                    if pipe is not None:
                        pipe.close()


class ContentPool:
    """Built once, used by all runs. Workers start when they are needed and stay for the next job. A run gets a second
    worker only if no other run waits, and a job that takes long is answered in parts, so that runs take turns."""

    def __init__(self, most: int | None = None) -> None:
        self._free = min(MOST_WORKERS, usable_cores()) if most is None else most
        self._threads = ThreadPoolExecutor(self._free, thread_name_prefix="content")
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._waiting: list[tuple[Hashable, asyncio.Future[None]]] = []
        self._working: Counter[Hashable] = Counter()
        self._closing: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> int:
        """How many workers work."""
        return len(self._busy)

    def warm(self) -> None:
        """Start a worker if none is idle: it starts while the source is read."""
        if not self._idle and self._free:
            worker = _Worker()
            self._idle.append(worker)
            self._threads.submit(worker.start)

    async def work(self, run: Hashable, job: Job) -> Answer:
        """The first files of `job`, in a worker that it has for itself; `run` says whose turn it is. If this is
        cancelled, the worker is killed. Raises WorkerDied."""
        await self._turn(run)
        worker = self._idle.pop() if self._idle else _Worker()
        self._busy.add(worker)
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, worker.work, job)
        try:
            answer = await asyncio.shield(working)
        except BaseException:
            working.add_done_callback(_retrieved)
            self._end(worker)
            raise
        else:
            self._keep(worker)
            return answer
        finally:
            self._busy.discard(worker)
            self._free += 1
            self._working[run] -= 1
            self._next()

    def _keep(self, worker: _Worker) -> None:
        if worker.is_used_up:
            self._end(worker)
            return
        self._idle.append(worker)
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        for worker in self._idle[:-1]:
            self._end(worker)
        del self._idle[:-1]

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        self._threads.submit(worker.reap)

    async def _turn(self, run: Hashable) -> None:
        if not self._free or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((run, turn))
            self._next()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was this run's turn in this moment
                    self._free += 1
                    self._working[run] -= 1
                self._waiting = [each for each in self._waiting if each[1] is not turn]
                self._next()
                raise
            return
        self._free -= 1
        self._working[run] += 1

    def _next(self) -> None:
        """The turn goes to the run with the fewest workers; of several, to the one that waited longest."""
        self._waiting = [each for each in self._waiting if not each[1].done()]
        while self._free and self._waiting:
            chosen = min(self._waiting, key=lambda each: self._working[each[0]])
            self._waiting.remove(chosen)
            self._free -= 1
            self._working[chosen[0]] += 1
            chosen[1].set_result(None)
        self._working += Counter()  # without the runs that have none

    def close(self) -> None:
        """Ends all workers, also those that work."""
        if self._closing is not None:
            self._closing.cancel()
        for worker in (*self._idle, *self._busy):
            worker.kill()
            worker.reap()
        self._idle.clear()
        self._threads.shutdown(wait=False)


@dataclass
class RunContent:
    """Prepares the files of one run. A file that kills its worker, each time that it is tried alone, is reported.

    `deaths`: of earlier runs. `over_budget`: paths of files that have no symbols, because to find them takes too long;
    `parsed`: how many contents were parsed."""

    pool: ContentPool
    settings: ContentSettings
    deaths: Deaths = field(default_factory=dict)
    over_budget: list[str] = field(default_factory=list)
    parsed: int = 0
    _before: asyncio.Future[Contents] | None = None
    _last_sha: str = ""

    async def prepare(self, files: Sequence[RawFile | StoredFile]) -> list[PreparedFile]:
        """One result a file, in order."""
        # Batches are prepared side by side. If one continues the equal files of the one before, it waits for that.
        before = self._before if files and files[0].sha == self._last_sha else None
        self._before = after = asyncio.get_running_loop().create_future()
        self._last_sha = files[-1].sha if files else ""
        contents: Contents = {}
        try:
            if before is not None:
                contents = await asyncio.shield(before)
            prepared, contents = await self._prepare(files, contents)
        finally:
            if not after.done():
                after.set_result(contents)
        self.over_budget += [file.path for file in prepared if file.is_over_budget]
        return prepared

    async def _prepare(
        self, files: Sequence[RawFile | StoredFile], contents: Contents
    ) -> tuple[list[PreparedFile], Contents]:
        prepared: list[PreparedFile] = []
        # Number of a file that killed a worker -> whether its parser did. It is tried alone, as one that did so before.
        lethal = {number: False for number, file in enumerate(files) if self._deaths_of(file)}
        while (first := len(prepared)) < len(files):
            if first in lethal:
                answer = await self._alone(files[first], contents, is_parser=lethal[first])
            else:
                end = min((number for number in lethal if number > first), default=len(files))
                try:
                    answer = await self._answer(files[first:end], contents)
                except WorkerDied as death:
                    lethal[first + death.file] = death.is_parser
                    continue
            prepared += answer.files
            contents = answer.contents
        return prepared, contents

    async def _alone(self, file: RawFile | StoredFile, contents: Contents, *, is_parser: bool) -> Answer:
        if self._deaths_of(file) < MOST_DEATHS:
            for _ in range(_TRIES_ALONE):
                try:
                    return await self._answer([file], contents, with_symbols=not is_parser)
                except WorkerDied as death:
                    is_parser = death.is_parser
        path = file.path if isinstance(file, StoredFile) else path_text(file.path)
        died = PreparedFile(path, file.mode, file.sha, file.size_bytes)
        return Answer([died.failed(death_of(path, file.sha)[1])], contents, 0)

    async def _answer(
        self, files: Sequence[RawFile | StoredFile], contents: Contents, *, with_symbols: bool = True
    ) -> Answer:
        answer = await self.pool.work(id(self), Job(files, self.settings, contents, with_symbols))
        self.parsed += answer.parsed
        return answer

    def _deaths_of(self, file: RawFile | StoredFile) -> int:
        if not self.deaths:
            return 0
        path = file.path if isinstance(file, StoredFile) else path_text(file.path)
        return self.deaths.get(death_of(path, file.sha), 0)


def death_of(path: str, sha: str) -> tuple[str, str]:
    """Path and detail of the file in the problems of a run. A changed file is tried again, as it has a different
    blob."""
    return path_key(path), f"{DEATH}, at blob {sha[:10]} (out of memory?)"


def _retrieved(working: asyncio.Future[Answer]) -> None:
    if not working.cancelled():
        working.exception()


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT.split()}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # it takes 50 MB a core, and a worker has no use for it
    package_root = str(Path(__file__).resolve().parents[2])
    if package_root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Run from a checkout: the worker must find the same package.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), package_root]))
    return environment
