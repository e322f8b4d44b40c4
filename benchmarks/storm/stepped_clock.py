"""reposync with a wall clock that is wrong: `python -m benchmarks.storm.stepped_clock FILE serve ...`.

FILE holds one float of 8 bytes: by how many seconds the clock is ahead, at each moment. Where the dynamic linker cannot
be asked to replace the clock (libfaketime), this replaces what Python reads it by: `time.time`, `time.time_ns`, and
`datetime.now` in the type itself, so that everybody who imported it has the new one. The monotonic clock is left alone.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import runpy
import struct
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

_AHEAD = struct.Struct("d")


def write_ahead(file: Path, seconds: float) -> None:
    """Of a process that has the file already, the clock makes a step now."""
    with file.open("r+b" if file.exists() else "wb") as stream:
        stream.write(_AHEAD.pack(seconds))


def replace_clock(file: Path) -> None:
    with file.open("rb") as stream:
        shared = mmap.mmap(stream.fileno(), _AHEAD.size, access=mmap.ACCESS_READ)
    right_time, right_time_ns, right_now = time.time, time.time_ns, datetime.now

    def ahead() -> float:
        return float(_AHEAD.unpack_from(shared)[0])

    def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
        return right_now(tz) + timedelta(seconds=ahead())

    time.time = lambda: right_time() + ahead()
    time.time_ns = lambda: right_time_ns() + int(ahead() * 1e9)
    methods: dict[str, Any] = gc.get_referents(datetime.__dict__)[0]
    methods["now"] = classmethod(now)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


if __name__ == "__main__":
    replace_clock(Path(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module("reposync", run_name="__main__", alter_sys=True)
