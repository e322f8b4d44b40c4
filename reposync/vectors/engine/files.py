"""What the engine and its clients share: names of files in its folder, exit codes, limits. Every command imports it."""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from pathlib import Path

LOCK = "engine.lock"
RECORD = "engine.json"  # where the engine listens; rewritten at every start
LOG = "engine.log"
SOCKET = "engine.sock"

# Increased when this package needs a feature that an older engine does not have.
REVISION = 1

EXIT_LOCKED = 3
"""Exit status of an engine whose folder has an engine already."""

EXIT_UNREADABLE = 4
"""Exit status of an engine that cannot read its folder; the last line of its log says what to do."""

# sockaddr_un holds 104 bytes on macOS and 108 on Linux.
LONGEST_SOCKET_PATH_BYTES = 100

_LIMITS = ("AS", "DATA", "FSIZE")


def machine() -> str:
    """Identifies the running kernel: processes under the same one reach the same Unix sockets and file locks, as
    containers of one machine do. If the kernel does not tell, the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def limits() -> dict[str, int | None]:
    """The `ulimit` of this process and its children on memory and file size, in bytes; None: no limit."""
    found = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in _LIMITS}
    return {name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()}


def is_narrower(theirs: Mapping[str, int | None], mine: Mapping[str, int | None]) -> bool:
    """Whether a process under `theirs` may fail where one under `mine` does not."""
    infinite = float("inf")
    return any((limit or infinite) < (mine.get(name) or infinite) for name, limit in theirs.items())
