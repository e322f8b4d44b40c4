"""What a request may be: its size, its patience, and characters that no database takes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.envelope import error_answer
from reposync.errors import RepoSyncError

# No route looks at the body of such a request, and none has to wait for it.
_BODILESS = ("GET", "HEAD")
_NUL = re.compile(rb"%00|\x00")


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """`body_seconds`: for the whole body to come in. `streamed`: ends of paths whose routes read the body themselves,
    within bounds of their own: GitLab's events have up to 25 MB, and those of strangers are not read at all."""

    body_bytes: int = 1_000_000
    body_seconds: float = 15.0
    query_bytes: int = 8_192
    path_bytes: int = 8_192
    header_bytes: int = 16_384
    headers: int = 100
    streamed: tuple[str, ...] = ("/api/v1/webhooks/gitlab",)


class BodyTooLarge(RepoSyncError):
    """The body of the request is larger than anything that is asked for here."""

    code = "BODY_TOO_LARGE"
    status = 413


class BodyTooSlow(RepoSyncError):
    """The body of the request did not come in whole in time."""

    code = "BODY_TOO_SLOW"
    status = 408


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


class ClientLeft(Exception):
    """Before its request was whole: nobody is there to be told."""


class Bounded:
    """Middleware: reads the body within the bounds before anybody works on it, and hands it on in one piece."""

    def __init__(self, app: ASGIApp, bounds: RequestBounds | None = None) -> None:
        self._app = app
        self._bounds = bounds or RequestBounds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_address(scope)
            unread = scope["method"] in _BODILESS or scope["path"].endswith(self._bounds.streamed)
            body = None if unread else await self._body(scope, receive)
        except ClientLeft:
            return
        except RepoSyncError as error:
            # What comes behind on this connection is the rest of a body that nobody reads.
            headers = {"Connection": "close"} if error.status in (408, 413) else None
            await error_answer(error.status, error.code, str(error), headers=headers)(scope, receive, send)
            return
        if body is None:
            await self._app(scope, receive, send)
            return
        rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return rest.pop() if rest else await receive()

        await self._app(scope, replayed, send)

    def _check_address(self, scope: Scope) -> None:
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

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        declared = Headers(scope=scope).get("content-length", "")
        # Asked by its digits: converting a number of a thousand digits is work.
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self._bounds.body_bytes):
            raise self._too_large()
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._bounds.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    pieces += message.get("body", b"")
                    if len(pieces) > self._bounds.body_bytes:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return bytes(pieces)
        except TimeoutError:
            raise BodyTooSlow(f"The body did not come in whole within {self._bounds.body_seconds:g} s.") from None

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than the {self._bounds.body_bytes:,} bytes that are taken.")
