"""The process that reads what strangers wrote. It works on one job after the other: a pickled `Job` on standard input,
an `Answer` on the pipe that was its standard output, and before each file a byte on the pipe that its argument names:
if it dies, its parent knows the file. It ends with its parent, because its input ends."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

from reposync.sync.prepare import Answer, Job, prepare

LENGTH = struct.Struct("<Q")
"""Before each message: its bytes."""

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
    incoming = os.fdopen(0, "rb", closefd=False)
    outgoing = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    importlib.import_module("reposync.content.chunking")
    # What the imports made is not garbage: looking for some took 3% of a worker's time.
    gc.freeze()
    gc.set_threshold(100_000)
    while (job := _received(incoming)) is not None:
        answer = _answer(job)
        message = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        try:
            outgoing.write(LENGTH.pack(len(message)))
            outgoing.write(message)
            outgoing.flush()
        except BrokenPipeError:
            return


def _answer(job: Job) -> Answer:
    large = max(0, job.settings.max_file_bytes - 1_000_000)
    limit = MEMORY_BYTES + MORE_PER_FILE_BYTE * large
    seconds = FILE_SECONDS + MORE_SECONDS_PER_FILE_BYTE * large
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    until = time.monotonic() + TURN_SECONDS

    def begin() -> None:
        os.write(int(sys.argv[1]), b".")
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process, also inside a library

    try:
        return prepare(job, begin=begin, is_late=lambda: time.monotonic() >= until)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _received(incoming: BinaryIO) -> Any:
    """None at the end."""
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    message = incoming.read(length)
    return pickle.loads(message) if len(message) == length else None  # noqa: S301 - of our own parent


if __name__ == "__main__":
    main()
