"""Names of repositories in paths. They have slashes (`platform/api`), and so have the routes below them.

A slash of a name may stand as it is or as `%2F`. Where a path ends in one of `ACTIONS`, that is what is asked of the
repository before it; one that is itself called `platform/wait` is `/repositories/platform%2Fwait`. What the client
wrote is therefore looked at, and not what it decodes to: without a rule, what a path means would hang on which
repositories there are.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Path
from starlette.routing import Match
from starlette.types import Scope

from reposync.api.routing import Route
from reposync.store.repository import MAX_NAME_CHARS

ACTIONS = ("sync", "wait", "index", "index/rollback", "index/pause", "index/resume")

RepositoryName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="Name of the repository, its slashes as they are or as `%2F`; the last one of a name that ends in "
        "`/sync`, `/wait` or `/index` has to be `%2F`.",
        examples=["platform/payments-api"],
    ),
]


class NamedRoute(Route):
    """A route whose path is `/repositories/{name:path}` or `/repositories/{name:path}/ACTION`, or has a name at its
    end. For routers that have such routes: `Router(route_class=NamedRoute)`. No name is empty or ends in a slash."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        _, is_named, action = self.path.partition("{name:path}")
        if is_named and scope["type"] == "http" and action != _written_action(scope):
            return Match.NONE, {}
        if self.path.endswith(":path}") and scope["path"].endswith("/"):
            return Match.NONE, {}
        return super().matches(scope)


def path_of(name: str) -> str:
    """The name as it stands in a path. With its slashes: many a proxy refuses `%2F`."""
    head, _, last = name.rpartition("/")
    return f"{quote(head)}%2F{last}" if any(name.endswith(f"/{action}") for action in ACTIONS) else quote(name)


def _written_action(scope: Scope) -> str:
    """`/sync`, `/index/rollback`, ... or nothing."""
    written = scope.get("raw_path") or scope["path"].encode()
    _, _, below = written.partition(b"/api/v1/repositories/")
    written_below = below.decode("latin-1")
    found = (f"/{action}" for action in ACTIONS if written_below.endswith(f"/{action}"))
    return next((action for action in found if len(written_below) > len(action)), "")
