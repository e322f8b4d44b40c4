"""The process that reads what strangers wrote. It gets one `Job` after the other over a connection, whose file
descriptor is its argument, and sends the files and then None. It ends with its parent, because the connection does."""

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

from reposync.sync.prepare import Job, Preparation, PreparedFile

# Of CPU time, for one file; 1 MB of code takes 0.5 to 2.5 s. Parsers have a budget of their own (`content.symbols`),
# but for some nonsense they neither end nor report: Python's needs minutes for 1 MB of opening brackets.
FILE_SECONDS = 6.0
# A job that takes longer is answered in parts: the worker then serves other runs first.
TURN_SECONDS = 1.0
# What the process may write to; 60 MB of its resident memory, the grammars and libraries, is none of it. Imports and
# all grammars take 45 MB, 1 MB of real code 50 to 150 MB more. A parser that wants more aborts the process: for 7 kB
# of `x=>` C's wants 2 GB, without a report in between.
MEMORY_BYTES = 300_000_000
MORE_PER_FILE_BYTE = 200
MORE_SECONDS_PER_FILE_BYTE = FILE_SECONDS / 1_000_000


def main() -> None:
    parent: Connection[PreparedFile | None, Job] = Connection(int(sys.argv[1]))
    importlib.import_module("reposync.content.chunking")
    # What the imports made is not garbage: looking for some took 3% of a worker's time.
    gc.freeze()
    gc.set_threshold(100_000)
    preparation = Preparation()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        while True:
            for file in _prepared(preparation, parent.recv()):
                parent.send(file)
            parent.send(None)


def _prepared(preparation: Preparation, job: Job) -> Iterator[PreparedFile]:
    """The first files of the job, at least one. Each is sent at once: if the process dies, its parent knows of which
    one, and has those before it."""
    large = max(0, job.settings.max_file_bytes - 1_000_000)
    limit = MEMORY_BYTES + MORE_PER_FILE_BYTE * large
    seconds = FILE_SECONDS + MORE_SECONDS_PER_FILE_BYTE * large
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    until = time.monotonic() + TURN_SECONDS
    for file in job.files:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process, also inside a library
        yield preparation.prepare(file, job.settings, job.window, with_symbols=job.with_symbols)
        if time.monotonic() >= until:
            break
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
