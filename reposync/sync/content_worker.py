"""The process that reads what strangers wrote. It gets one `Job` after the other over a connection, whose file
descriptor is its argument, beside the folder of the rules for secrets, and sends the files and then None. It ends with
its parent, because the connection does."""

from __future__ import annotations

import contextlib
import gc
import importlib
import resource
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from reposync.content.secrets import RulesUnavailable, Scanned, SecretScanner
from reposync.content.secrets_in_lines import scan_lines
from reposync.sync.prepare import Job, Preparation, PreparedFile, RawFile, Rescanned, ScanJob, StoredText, TextJob

Result = PreparedFile | Rescanned | dict[int, Scanned]

# A job that takes longer is answered in parts: the worker then serves other runs first.
TURN_SECONDS = 1.0
# What the process may write to; 60 MB of its resident memory, the grammars and libraries, is none of it. Imports and
# all grammars take 45 MB, the rules for secrets 45 MB, and 50 MB more while they are compiled, 1 MB of real code 50 to
# 150 MB more. A parser that wants more aborts the process: for 7 kB of `x=>` C's wants 2 GB, with no report before.
MEMORY_BYTES = 345_000_000
MORE_PER_FILE_BYTE = 200


def main() -> None:
    parent: Connection[Result | RulesUnavailable | None, Job | ScanJob | TextJob] = Connection(int(sys.argv[1]))
    importlib.import_module("reposync.content.chunking")
    # What the imports made is not garbage: looking for some took 3% of a worker's time.
    gc.freeze()
    gc.set_threshold(100_000)
    preparation = Preparation(SecretScanner(sys.argv[2] or None, _untimed))
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            try:
                for file in _results(preparation, parent.recv()):
                    parent.send(file)
                parent.send(None)
            except RulesUnavailable as error:
                parent.send(error)


def _results(preparation: Preparation, job: Job | ScanJob | TextJob) -> Iterator[Result]:
    """Yield the results of the first files of the job, at least one. Each is sent at once: if the process dies, its
    parent knows of which one, and has those before it."""
    most = job.settings.max_file_bytes if isinstance(job, Job) else job.max_file_bytes
    large = max(0, most - 1_000_000)
    limit = MEMORY_BYTES + MORE_PER_FILE_BYTE * large
    seconds = job.seconds * (1 + large / 1_000_000)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    until = time.monotonic() + TURN_SECONDS
    for file in job.files:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process, also inside a library
        if isinstance(file, StoredText):
            yield preparation.rescan(file, job.secrets)
        elif isinstance(file, tuple):
            yield scan_lines(preparation.scanner, file, job.secrets)
        elif isinstance(job, Job) and isinstance(file, RawFile):
            yield preparation.prepare(file, job.settings, job.secrets, job.window, with_symbols=job.with_symbols)
        if time.monotonic() >= until:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _untimed() -> Iterator[None]:
    """What is done once is no work of the file that needed it first."""
    left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)


if __name__ == "__main__":
    main()
