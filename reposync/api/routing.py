"""Routes that admit a request before they read its body, and repository names in paths.

Names have slashes (`platform/api`), and so have the routes below them. A slash of a name may be written as `/` or as
`%2F`. A path that ends in one of `ACTIONS` is that action of the repository before it; a repository that is itself
called `platform/wait` is `/repositories/platform%2Fwait`. The decision is made on the path as the client wrote it:
otherwise its meaning would depend on which repositories exist.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from reposync.api.auth import Admission
from reposync.api.request_body import BodyLimits, with_body
from reposync.store.repository import MAX_NAME_CHARS

PREFIX = "/api/v1"
ACTIONS = ("sync", "wait", "index", "index/rollback", "index/pause", "index/resume")

RepositoryName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="Name of the repository; its slashes may be written as `%2F`, and the last one of a name that ends "
        "in `/sync`, `/wait` or `/index` must be.",
        examples=["platform/payments-api"],
    ),
]


class Route(APIRoute):
    """Admits the request by its head, then reads its body within `body_limits`, then calls the handler.

    A path may contain `{name:path}`, at its end or before an action. No name is empty or ends in a slash.
    """

    body_limits: ClassVar[BodyLimits | None] = BodyLimits()
    """None: the handler reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        calls: list[object] = [each.call for each in self.dependant.dependencies]
        admissions = [call for call in calls if isinstance(call, Admission)]
        limits = self.body_limits

        async def admitted(request: Request) -> Response:
            for admission in admissions:
                await admission.admit(request)
            # No route uses the body of a GET, and none needs to wait for it.
            if limits is not None and request.method not in ("GET", "HEAD"):
                request = await with_body(request, limits)
            for admission in admissions:
                await admission.check_form(request)
            return await handle(request)

        return admitted

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        _, is_named, action = self.path.partition("{name:path}")
        if is_named and scope["type"] == "http" and action != _written_action(scope):
            return Match.NONE, {}
        if self.path.endswith(":path}") and scope["path"].endswith("/"):
            return Match.NONE, {}
        return super().matches(scope)


class UnreadRoute(Route):
    """For handlers that authenticate the client themselves, and read the body after that."""

    body_limits = None


class Router(APIRouter):
    """An APIRouter of such routes."""

    def __init__(self, *, route_class: type[Route] = Route, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)


def path_of(name: str) -> str:
    """The name as part of a path. With its slashes, because many proxies refuse `%2F`."""
    head, _, last = name.rpartition("/")
    return f"{quote(head)}%2F{last}" if any(name.endswith(f"/{action}") for action in ACTIONS) else quote(name)


def _written_action(scope: Scope) -> str:
    """`/sync`, `/index/rollback`, ... or an empty string."""
    written = scope.get("raw_path") or scope["path"].encode()
    below = written.partition(f"{PREFIX}/repositories/".encode())[2].decode("latin-1")
    found = (f"/{action}" for action in ACTIONS if below.endswith(f"/{action}"))
    return next((action for action in found if len(below) > len(action)), "")
