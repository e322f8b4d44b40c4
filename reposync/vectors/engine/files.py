"""Names of files in the engine's folder, shared by the engine and by those who look for it. Imports stay few: this is
on the path of every command's start."""

from __future__ import annotations

LOCK = "engine.lock"
RECORD = "engine.json"  # where the engine listens; rewritten at every start
LOG = "engine.log"
SOCKET = "engine.sock"

# Raised when this package needs something of its engine that an older one does not do.
REVISION = 1

EXIT_LOCKED = 3
"""Exit status of an engine that found another one on its folder."""

# sockaddr_un holds 104 bytes on macOS and 108 on Linux.
LONGEST_SOCKET_PATH_BYTES = 100
