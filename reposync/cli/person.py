"""Who types a command, for the history."""

from __future__ import annotations

import getpass
import socket


def person() -> str:
    """`user@host`. A container's user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
