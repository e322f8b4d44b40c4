"""Where operations are over HTTP: the addresses that clients write, and that the server reads.

Names have slashes (`platform/api`), each written as `/` or `%2F`. A path that ends in one of `ACTIONS` is that of
the repository before it; a repository called `platform/wait` is `platform%2Fwait`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from reposync.operations.core import Operation

PREFIX = "/api/v1"
ACTIONS = ("sync", "wait", "outline", "index", "verify", "repair", "adopt", "evaluations")

COMMAND_HEADER, USER_HEADER = "X-Reposync-Command", "X-Reposync-User"
"""The headers of a request that a command of this machine makes: the key that `serve` left in the state folder, and who
types."""


def path_of(name: str) -> str:
    """The name as part of a path. With its slashes, because many proxies refuse `%2F`."""
    head, _, last = name.rpartition("/")
    return f"{quote(head)}%2F{last}" if any(name.endswith(f"/{action}") for action in ACTIONS) else quote(name)


def address_of(operation: Operation[Any, Any], **named: str) -> str:
    """The path of the operation, with its prefix; `named`: the values of its placeholders."""
    # A file's name may end like an action.
    written = {key: quote(value) if "/-/" in operation.path else path_of(value) for key, value in named.items()}
    return PREFIX + operation.path.format(**written)
