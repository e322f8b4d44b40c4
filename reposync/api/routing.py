"""What routes are built from: admission before the body is read, limits of bodies, and repository names in paths.

Names have slashes, see `reposync.operations.paths`. Routes match the path as the client wrote it, in which `%2F` is no
slash: whether a path ends in an action must not depend on which repositories exist. A file comes after the first `/-/`,
as in GitLab: `/files/platform/api/-/src/app.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar
from urllib.parse import quote, unquote

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Message, Scope

from reposync.api.auth import Access, Admission
from reposync.api.errors import ERROR_ANSWERS, BodyTooLarge, BodyTooSlow, BodyUnreadable, MediaTypeUnsupported
from reposync.app.application import Application
from reposync.operations.core import Rule
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.paths import ACTIONS, PREFIX
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from reposync.telemetry.redaction import Secrets

FILE = "{name:path}/-/{path:path}"
"""The end of a route's path: a file of a repository. With a slash after it: a folder."""

_JSON = re.compile(r"application/([\w.-]+\+)?json\s*(;.*)?", re.IGNORECASE)

RepositoryName = Annotated[
    str,
    Path(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="Name of the repository; its slashes may be written as `%2F`, and the last one of a name that ends "
        f"in {', '.join(f'`/{action}`' for action in ACTIONS)} must be.",
        examples=["platform/payments-api"],
    ),
]


@dataclass(frozen=True, slots=True)
class ApiParts:
    """`refresh` sets those gauges of `metrics` that only the database knows; it may fail, and is cancelled if it takes
    longer than a scrape may. `application` raises Starting, and StoreUnavailable while the daemon waits for its
    database.
    """

    health: Health
    metrics: Metrics
    refresh: Callable[[], Awaitable[None]]
    version: str
    application: Callable[[], Application]
    access: Access
    secrets: Secrets = field(default_factory=Secrets.of_environment)

    @property
    def readers(self) -> list[Any]:
        """Dependencies of routes for all who may read something."""
        return [self.access.requires(Rule.READ)]


# Bodies ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`seconds`: for the whole body to arrive."""

    max_bytes: int = 1_000_000
    seconds: float = 15.0


async def read_body(
    request: Request, limits: BodyLimits, *, on_piece: Callable[[int], None] = lambda size_bytes: None
) -> bytearray:
    """The whole body. `on_piece` is called with the number of bytes about to be kept, and may raise.

    Raises BodyTooLarge, BodyTooSlow, BodyUnreadable.
    """
    too_large = BodyTooLarge(f"The body is larger than the {limits.max_bytes:,} bytes that are accepted.")
    # The server refuses anything but a number of at most 20 digits.
    if int(request.headers.get("content-length", "0")) > limits.max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for piece in request.stream():
                if len(body) + len(piece) > limits.max_bytes:
                    raise too_large
                on_piece(len(piece))
                body += piece
    except TimeoutError:
        raise BodyTooSlow(f"The body was not complete within {limits.seconds:g} s.") from None
    except ClientDisconnect:
        raise BodyUnreadable("The connection ended within the body.") from None
    return body


async def with_body(request: Request, limits: BodyLimits) -> Request:
    """The same request with its body already read. Raises as `read_body` does."""
    body = bytes(await read_body(request, limits))
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return rest.pop() if rest else await request.receive()

    return Request(request.scope, replay)


async def _check_json(request: Request) -> None:
    """`application/json` with or without parameters, and `application/*+json`: what FastAPI parses as JSON."""
    # `curl -X POST -d ''` declares a form without a body.
    if not _JSON.fullmatch(request.headers.get("content-type", "")) and await request.body():
        raise MediaTypeUnsupported(
            "The Content-Type of the body is not JSON.", remedy="Send the header `Content-Type: application/json`."
        )


# Routes ---------------------------------------------------------------------------------------------------------------


class Route(APIRoute):
    """Admits the request by its head, then reads its body within `body_limits`, then calls the handler.

    A path may contain `{name:path}`, at its end, before an action or before a file.
    """

    body_limits: ClassVar[BodyLimits | None] = BodyLimits()
    """None: the handler reads the body."""

    def __init__(self, path: str, *arguments: Any, **options: Any) -> None:
        super().__init__(path, *arguments, **options)
        if ":path}" in path:
            # The shortest name: a file begins after the first `/-/`. No value is empty or ends in a slash, which is
            # decided first: otherwise each `/-/` of a path that ends in one would be tried.
            end = "^(?=.*/$)" if path.endswith("/") else "^(?!.*/$)"
            pattern = self.path_regex.pattern.replace(".*)", ".+?)").replace("^", end, 1)
            if path == f"{PREFIX}/repositories/{{name:path}}":
                pattern = pattern.replace("(?P<name>", rf"(?!.+/(?:{'|'.join(ACTIONS)})$)(?P<name>")
            self.path_regex = re.compile(pattern)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        calls: list[object] = [each.call for each in self.dependant.dependencies]
        admissions = [call for call in calls if isinstance(call, Admission)]
        limits, takes_json = self.body_limits, self.body_field is not None

        async def admitted(request: Request) -> Response:
            for admission in admissions:
                await admission.admit(request)
            # No route uses the body of a GET, and none needs to wait for it.
            if limits is not None and request.method not in ("GET", "HEAD"):
                request = await with_body(request, limits)
            if takes_json:
                await _check_json(request)
            return await handle(request)

        return admitted

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        written = scope.get("raw_path") or quote(scope["path"]).encode()
        match, matched = super().matches({**scope, "path": written.decode("latin-1")})
        if match is not Match.NONE:
            matched["path_params"] = {key: unquote(value) for key, value in matched["path_params"].items()}
        return match, matched


class UnreadRoute(Route):
    """For handlers that authenticate the client themselves, and read the body after that."""

    body_limits = None


def _unique_id(route: APIRoute) -> str:
    return route.name


class Router(APIRouter):
    """An APIRouter of such routes. The application is made with these: `include_router` builds each of them a second
    time, at the first requests, in 100 ms (FastAPI 0.165)."""

    def __init__(self, *, route_class: type[Route] = Route, **options: Any) -> None:
        super().__init__(
            route_class=route_class, responses=ERROR_ANSWERS, generate_unique_id_function=_unique_id, **options
        )
