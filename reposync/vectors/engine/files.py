"""Names of files in the engine's folder, shared by the engine and by those who look for it. Imports stay few: this is
on the path of every command's start."""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from pathlib import Path

LOCK = "engine.lock"
RECORD = "engine.json"  # where the engine listens; rewritten at every start
LOG = "engine.log"
SOCKET = "engine.sock"

# Raised when this package needs something of its engine that an older one does not do.
REVISION = 1

EXIT_LOCKED = 3
"""Exit status of an engine that found another one on its folder."""

EXIT_UNREADABLE = 4
"""Exit status of an engine that cannot read what is in its folder; its last line of the log says what to do."""

# sockaddr_un holds 104 bytes on macOS and 108 on Linux.
LONGEST_SOCKET_PATH_BYTES = 100

_LIMITS = ("AS", "DATA", "FSIZE")


def machine() -> str:
    """Of the running kernel: whoever has the same one reaches the same Unix sockets and file locks. Containers of one
    machine do, whatever their host names; where a kernel does not say so, the host name stands for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def limits() -> dict[str, int | None]:
    """What `ulimit` leaves this process and those that it starts of memory and of a file, in bytes; None: no limit."""
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in _LIMITS}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def is_narrower(theirs: Mapping[str, int | None], mine: Mapping[str, int | None]) -> bool:
    """Whether a process under `theirs` may fail at what one under `mine` does."""
    infinite = float("inf")
    return any((limit or infinite) < (mine.get(name) or infinite) for name, limit in theirs.items())
