"""What a request may be: its size, its patience, and characters that no database takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.envelope import error_answer
from reposync.errors import RepoSyncError

_NUL = re.compile(rb"%00|\x00")


@dataclass(frozen=True, slots=True)
class HeadBounds:
    query_bytes: int = 8_192
    path_bytes: int = 8_192
    header_bytes: int = 16_384
    headers: int = 100


@dataclass(frozen=True, slots=True)
class BodyBounds:
    """`seconds`: for the whole body to come in."""

    max_bytes: int = 1_000_000
    seconds: float = 15.0


class BodyTooLarge(RepoSyncError):
    """The body of the request is larger than anything that is asked for here."""

    code = "BODY_TOO_LARGE"
    status = 413


class BodyTooSlow(RepoSyncError):
    """The body of the request did not come in whole in time."""

    code = "BODY_TOO_SLOW"
    status = 408


class BodyUnreadable(RepoSyncError):
    """The body is not what its Content-Type says."""

    code = "BAD_REQUEST"
    status = 400


class QueryTooLong(RepoSyncError):
    """The part of the address behind the question mark is too long."""

    code = "QUERY_TOO_LONG"
    status = 414


class PathTooLong(RepoSyncError):
    """The part of the address before the question mark is too long."""

    code = "PATH_TOO_LONG"
    status = 414


class HeadersTooLarge(RepoSyncError):
    """The request has too many headers, or too much in them."""

    code = "HEADERS_TOO_LARGE"
    status = 431


class RequestInvalid(RepoSyncError):
    """Something in the request does not fit; `details.problems` says what, where it is known."""

    code = "REQUEST_INVALID"
    status = 422


class Bounded:
    """Middleware: refuses heads that are out of bounds. The body is for the route to read, or to leave: an answer that
    comes before the whole body is the last one on its connection."""

    def __init__(self, app: ASGIApp, bounds: HeadBounds | None = None) -> None:
        self._app = app
        self._bounds = bounds or HeadBounds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        unread = announces_body(Headers(scope=scope))

        async def received() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if unread and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        try:
            self._check(scope)
        except RepoSyncError as error:
            await error_answer(error.status, error.code, str(error))(scope, received, closing)
            return
        await self._app(scope, received, closing)

    def _check(self, scope: Scope) -> None:
        # The server's own bound is for heads that come in several pieces.
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers)
        if size > self._bounds.header_bytes or len(headers) > self._bounds.headers:
            raise HeadersTooLarge(
                f"The request has {len(headers):,} headers of {size:,} bytes; {self._bounds.headers} of "
                f"{self._bounds.header_bytes:,} bytes are taken."
            )
        path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
        if len(path) > self._bounds.path_bytes:
            raise PathTooLong(f"The path has {len(path):,} bytes; {self._bounds.path_bytes:,} are taken.")
        query: bytes = scope["query_string"]
        if len(query) > self._bounds.query_bytes:
            raise QueryTooLong(f"The query has {len(query):,} bytes; {self._bounds.query_bytes:,} are taken.")
        if _NUL.search(query) or (scope["path"].startswith("/api/") and "\0" in scope["path"]):
            raise RequestInvalid("The address holds a NUL character, which nothing here has in its name.")


def announces_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


async def read_body(
    request: Request, bounds: BodyBounds, *, on_piece: Callable[[int], None] = lambda size_bytes: None
) -> bytearray:
    """The whole body. `on_piece` hears how many bytes are about to be kept, and may raise.

    Raises BodyTooLarge, BodyTooSlow, and starlette's ClientDisconnect.
    """
    too_large = BodyTooLarge(f"The body is larger than the {bounds.max_bytes:,} bytes that are taken.")
    declared = request.headers.get("content-length", "")
    # Compared by its digits first: converting a number of a thousand digits is work.
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > bounds.max_bytes):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.seconds):
            async for piece in request.stream():
                if len(body) + len(piece) > bounds.max_bytes:
                    raise too_large
                on_piece(len(piece))
                body += piece
    except TimeoutError:
        raise BodyTooSlow(f"The body did not come in whole within {bounds.seconds:g} s.") from None
    return body


async def with_body(request: Request, bounds: BodyBounds) -> Request:
    """The same request, with its body read within `bounds`. Raises as `read_body` does, but BodyUnreadable for a client
    that left."""
    try:
        body = bytes(await read_body(request, bounds))
    except ClientDisconnect:
        raise BodyUnreadable("The connection ended within the body.") from None
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return rest.pop() if rest else await request.receive()

    return Request(request.scope, replayed)
