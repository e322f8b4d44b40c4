"""The worker processes of this process, for all of its runs. Nothing that was read from a repository is decoded, cut,
parsed or counted outside of them: a file can bring a parser, and with it its process, down."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from reposync.content.secret_policy import SecretPolicy
from reposync.content.secrets import RulesUnavailable, Scanned
from reposync.cores import usable_cores
from reposync.errors import SecretRulesUnavailable
from reposync.paths import path_text
from reposync.sync.prepare import FILE_SECONDS, ContentSettings, Job, PreparedFile, RawFile, Rescanned, ScanJob, TextJob

# Two keep pace with one event loop that stores what they prepare.
MOST_WORKERS = 2
# A worker is replaced after so many files, which take about ten seconds; starting the next one takes 0.6 s.
FILES_PER_WORKER = 5_000
# Of a worker that is idle; one that holds more, after a large file, ends.
MOST_IDLE_BYTES = 200_000_000
# A worker needs no secret of this process.
_ENVIRONMENT = "PATH HOME LANG LC_ALL TMPDIR PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH"
# Attempts for a file alone in a worker before it is reported. The first death may be chance: the kernel kills any large
# process if another needs memory.
_TRIES_ALONE = 2
# Where a worker prints to: what a command prints on its own standard output is a document.
_STDERR = 2


class WorkerDied(Exception):
    """Killed, or ended by what a file makes of its parser (`is_parser`): it was past the time for one file, wanted more
    memory than a worker may have, or crashed. `results`: those that it had sent of its job."""

    def __init__(self, status: int, results: Sequence[Any]) -> None:
        super().__init__(f"a content worker ended with status {status}")
        self.is_parser = status in (-signal.SIGPROF, -signal.SIGABRT, -signal.SIGSEGV)
        self.why = "it took too long" if status == -signal.SIGPROF else "out of memory?"
        self.results = results


class _Worker:
    def __init__(self, rules_folder: str) -> None:
        self._files = 0
        self._connection, connection = Pipe()
        with connection:
            self._process = subprocess.Popen(  # noqa: S603 - the arguments are our own
                [sys.executable, "-m", "reposync.sync.content_worker", str(connection.fileno()), rules_folder],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env=_environment(),
                pass_fds=[connection.fileno()],
                process_group=0,  # Ctrl-C reaches every process of the terminal; this one decides about its workers
            )

    def work(self, job: Job | ScanJob | TextJob) -> list[Any]:
        """Blocks. Raises WorkerDied, also if `kill` is called meanwhile, and SecretRulesUnavailable."""
        results: list[Any] = []
        try:
            self._connection.send(job)
            while (result := self._connection.recv()) is not None:
                if isinstance(result, RulesUnavailable):
                    raise SecretRulesUnavailable(
                        f"The rules for secrets cannot be loaded: {result}. Nothing was indexed without them.",
                        remedy="Check the folder of the compiled rules, install reposync again, or set "
                        "`secrets.action` and `secrets.generic` to `off`.",
                    )
                results.append(result)
        except (EOFError, OSError):
            self.kill()
            raise WorkerDied(self._process.wait(), results) from None
        self._files += len(results)
        return results

    @property
    def is_used_up(self) -> bool:
        return self._files >= FILES_PER_WORKER or self._resident_bytes() > MOST_IDLE_BYTES

    def _resident_bytes(self) -> int:
        try:
            return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError, ValueError):  # no Linux
            return 0

    def kill(self) -> None:
        """It holds nothing that could be lost."""
        self._process.kill()

    def end(self) -> None:
        self.kill()
        self._process.wait()
        self._connection.close()


class ContentPool:
    """Built once, used by all runs. A thread for each worker takes the jobs in their order; one that takes long is
    answered in parts, so that runs take turns. Workers start when they are needed and stay for the next job.
    `rules_folder`: of the compiled rules for secrets, unless the scanner's own variable names a different one."""

    def __init__(self, most: int | None = None, rules_folder: Path | None = None) -> None:
        self._rules_folder = os.environ.get("KF_RULE_CACHE_DIR") or str(rules_folder or "")
        most = min(MOST_WORKERS, usable_cores()) if most is None else most
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="content")
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: dict[int, _Worker] = {}

    @property
    def busy(self) -> int:
        """How many workers work."""
        return len(self._busy)

    def warm(self) -> None:
        """Start a worker if none is idle: it starts while the source is read."""
        self._threads.submit(self._start)

    def _start(self) -> None:
        with self._lock:
            if not self._idle:
                self._idle.append(_Worker(self._rules_folder))

    async def work(self, job: Job) -> list[PreparedFile]:
        """The first files of `job`. If this is cancelled, the worker is killed. Raises WorkerDied, and
        SecretRulesUnavailable."""
        return await self._results(job)

    async def scan(self, job: ScanJob) -> list[Rescanned]:
        """As `work`."""
        return await self._results(job)

    async def scan_texts(self, job: TextJob) -> list[dict[int, Scanned]]:
        """For each group, the texts in which anything was found, by number. As `work`."""
        return await self._results(job)

    async def _results(self, job: Job | ScanJob | TextJob) -> list[Any]:
        call = self._threads.submit(self._work, job)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancel():
                with self._lock:
                    if (worker := self._busy.get(id(job))) is not None:
                        worker.kill()
            raise

    def _work(self, job: Job | ScanJob | TextJob) -> list[Any]:
        with self._lock:
            worker = self._idle.pop() if self._idle else _Worker(self._rules_folder)
            self._busy[id(job)] = worker
        is_kept = False
        try:
            answer = worker.work(job)
            is_kept = not worker.is_used_up
            return answer
        finally:
            with self._lock:
                del self._busy[id(job)]
                if is_kept:
                    self._idle.append(worker)
            if not is_kept:
                worker.end()

    def close(self) -> None:
        """Ends all workers, also those that work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for worker in self._busy.values():
                worker.kill()
            for worker in self._idle:
                worker.end()
            self._idle.clear()


@dataclass
class RunContent:
    """Prepares the files of one run. `window`: see `Job`. `over_budget`: paths of files that have no symbols, because
    to find them takes too long."""

    pool: ContentPool
    settings: ContentSettings
    secrets: SecretPolicy
    window: int | None = None
    over_budget: list[str] = field(default_factory=list)

    async def prepare(self, files: Sequence[RawFile]) -> list[PreparedFile]:
        """One result a file, in order. A file that kills its worker, each time that it is tried alone, has failed."""
        prepared: list[PreparedFile] = []
        while rest := files[len(prepared) :]:
            try:
                prepared += await self.pool.work(self._job(rest))
            except WorkerDied as death:
                prepared += death.results
                if len(prepared) < len(files):
                    prepared.append(await self._alone(files[len(prepared)], is_parser=death.is_parser))
        self.over_budget += [file.path for file in prepared if file.is_over_budget]
        return prepared

    async def _alone(self, file: RawFile, *, is_parser: bool) -> PreparedFile:
        why = ""
        for _ in range(_TRIES_ALONE):
            try:
                return (await self.pool.work(self._job([file], with_symbols=not is_parser)))[0]
            except WorkerDied as death:
                is_parser, why = death.is_parser, death.why
        died = PreparedFile(path_text(file.path), file.mode, file.sha, file.size_bytes)
        return died.failed(f"ended the worker that processed it ({why})")

    def _job(self, files: Sequence[RawFile], *, with_symbols: bool = True) -> Job:
        return Job(files, self.settings, self.secrets, self.window, with_symbols, FILE_SECONDS)


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT.split()}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # it takes 50 MB a core, and a worker has no use for it
    package_root = str(Path(__file__).resolve().parents[2])
    if package_root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Run from a checkout: the worker must find the same package.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), package_root]))
    return environment
