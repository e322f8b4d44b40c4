"""Middleware around every request: its id, its proxies, the limits of its head, and security headers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import uuid
from email.utils import formatdate

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from reposync.api.auth import SAFE_METHODS
from reposync.api.errors import (
    BodyUnreadable,
    CrossSiteRefused,
    ErrorResponse,
    HeadersTooLarge,
    HostNotAllowed,
    PathTooLong,
    QueryTooLong,
    RequestInvalid,
    ShuttingDown,
    TooManyConnections,
    Unexpected,
)
from reposync.api.hosts import AllowedHosts, is_cross_site, original_host
from reposync.config.sections import HttpConfig
from reposync.errors import RepoSyncError

log = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"
MAX_QUERY_BYTES = MAX_PATH_BYTES = 8_192
MAX_HEADERS, MAX_HEADER_BYTES = 100, 16_384
LINGER_SECONDS, LINGER_BYTES, MAX_LINGERING = 10.0, 64 << 20, 50
PROBES_ONLY = "probes_only"
"""Key of the request's state if its connection is one of those that are reserved for probes."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers then send `Origin: null` with forms of our own pages.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_HEAD = "reposync.head"
_NUL = re.compile(rb"%00|\x00")
# An id from a proxy or client is used if it is harmless in logs and headers.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# These respond at once, however slow everything else is.
_WITH_RESERVE = ("/healthz", "/readyz")
# Monitoring requests these by IP address. With tokens, their responses reveal nothing that depends on the client.
_PROBES = (*_WITH_RESERVE, "/metrics")
_FOR_PROGRAMS = ("/api/", "/mcp", "/metrics", "/openapi.json")


class Gate:
    """Around the whole application, including its errors.

    - Gives the request an id, in the response and in every log line; refuses other hosts, other sites, large heads.
    - Answers HEAD as GET without the body (RFC 9110, 9.3.2). Not by a second method per route: OpenAPI would list
      every operation twice.
    - If the response comes before the whole body, discards the rest within limits, and closes the connection: closing a
      socket with unread input resets it, and the client may lose the response (RFC 9112, 9.6).
    - Answers unexpected errors, and logs them under the id that the response names. Not by an exception handler:
      Starlette raises the error again after one, and the server would log it twice. At shutdown it answers requests
      without a response.
    """

    def __init__(self, app: ASGIApp, config: HttpConfig, *, has_tokens: bool) -> None:
        self._app = app
        self._root = config.root_path
        self._has_tokens = has_tokens
        self._hosts = AllowedHosts(config.allowed_hosts, has_tokens=has_tokens)
        self._lingering = 0
        self._turnstile = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get(REQUEST_ID, "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex
        is_head = scope["method"] == "HEAD"
        is_reserved = PROBES_ONLY in scope.get("state", ())
        is_ambiguous = "transfer-encoding" in headers and "content-length" in headers
        is_unread = "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""

        async def received() -> Message:
            nonlocal is_unread
            message = await receive()
            is_unread = is_unread and message.get("more_body", False)
            return message

        has_started = False

        async def sent(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                added = MutableHeaders(scope=message)
                added.update({**SECURITY_HEADERS, REQUEST_ID: request_id})
                added.setdefault("Cache-Control", "no-store")
                added.setdefault("Date", formatdate(usegmt=True))
                if message["status"] == 304:
                    # As the response with a body has it: caches take the headers of a 304 over.
                    added.add_vary_header("Accept-Encoding")
                # Below a path of a host there are other services, for which https is not ours to require.
                if scope["scheme"] == "https" and not self._root:
                    added["Strict-Transport-Security"] = "max-age=31536000"
                if is_reserved or is_unread or is_ambiguous:
                    added["Connection"] = "close"
            elif message["type"] == "http.response.body":
                if is_head:
                    message = {**message, "body": b""}
                if is_unread and not message.get("more_body", False):
                    await send({**message, "more_body": True})
                    await self._discard(receive)
                    message = {"type": "http.response.body"}
            await send(message)

        with bound_contextvars(request=request_id):
            is_elsewhere = is_cross_site(headers)
            try:
                self._check(scope, headers, is_reserved=is_reserved, is_elsewhere=is_elsewhere)
                if is_ambiguous:
                    # RFC 9112, 6.3: a proxy in front may have taken the other one for the end of the body.
                    raise BodyUnreadable("The request has both Content-Length and Transfer-Encoding.")
            except RepoSyncError as error:
                await ErrorResponse(error)(scope, received, sent)
                return
            if is_elsewhere:
                # Not compressed: that page could add guesses to a page with private code, and somebody who sees the
                # traffic would learn from its size which guess was right (BREACH).
                kept = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
                scope = {**scope, "headers": kept}
            try:
                if scope["path"].removeprefix(self._root) not in _WITH_RESERVE:
                    await self._in_turn()
                await self._app({**scope, "method": "GET", _HEAD: True} if is_head else scope, received, sent)
                return
            except asyncio.CancelledError:
                # Only the server cancels requests, when it shuts down; it closes the connection.
                is_unread = False
                response = ErrorResponse(ShuttingDown())
            except Exception:
                incident = secrets.token_hex(6)
                log.exception(
                    "A request ended in an unexpected error",
                    extra={"incident": incident, "method": scope["method"], "path": scope["path"]},
                )
                response = ErrorResponse(Unexpected(incident))
            # A response that has started can only be cut off, which the server does if it is not complete.
            if not has_started:
                await response(scope, received, sent)

    async def _in_turn(self) -> None:
        """One request begins in each turn of the event loop: 500 at once, which render a page each, would hold it for
        seconds, and with it probes, leases and syncs."""
        async with self._turnstile:
            await asyncio.sleep(0)

    async def _discard(self, receive: Receive) -> None:
        """What a client still sends that has its response. At most so many clients: the others may be strangers."""
        if self._lingering >= MAX_LINGERING:
            return
        self._lingering += 1
        left_bytes = LINGER_BYTES
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    message = await receive()
                    while message.get("more_body", False) and left_bytes > 0:
                        left_bytes -= len(message["body"])
                        message = await receive()
        finally:
            self._lingering -= 1

    def _check(self, scope: Scope, headers: Headers, *, is_reserved: bool, is_elsewhere: bool) -> None:
        root_relative = scope["path"].removeprefix(self._root)
        if is_reserved and root_relative not in _WITH_RESERVE:
            raise TooManyConnections("This pod has no free connections.", remedy="Try again in a moment.")
        # The files of the pages are public, and the error page needs them.
        is_public = root_relative.startswith("/static/") or (self._has_tokens and root_relative in _PROBES)
        # A proxy that passes on what its client sent as X-Forwarded-Host must not let every name in.
        for host in (headers.get("host", ""), original_host(scope)):
            if not is_public and not self._hosts.allows(host):
                raise HostNotAllowed(
                    f"This server is not called {host[:100]!r}.",
                    remedy="Without tokens it accepts names of loopback only; `http.allowed_hosts` of the registry "
                    "file allows others.",
                )
        if is_elsewhere and not self._may_come_from_elsewhere(scope["method"], headers, root_relative):
            raise CrossSiteRefused("A page of another site made the browser send this request.")
        _check_size(scope)

    def _may_come_from_elsewhere(self, method: str, headers: Headers, root_relative: str) -> bool:
        if method not in SAFE_METHODS:
            return self._has_tokens and headers.get("authorization", "")[:7].lower() == "bearer "
        # With tokens a page of another site is a stranger: `SameSite` keeps the cookie back. Without, it would have the
        # user's rights: it cannot read a response, but how long a search takes reveals what the code contains.
        if self._has_tokens or root_relative.startswith("/static/") or root_relative in _WITH_RESERVE:
            return True
        # A link to a page. `iframe` navigates as well, and could be timed.
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return is_link and not root_relative.startswith(_FOR_PROGRAMS)


def _check_size(scope: Scope) -> None:
    # The server's own limit applies only to heads that arrive in several pieces.
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if size > MAX_HEADER_BYTES or len(headers) > MAX_HEADERS:
        raise HeadersTooLarge(
            f"The request has {len(headers):,} headers of {size:,} bytes; the limit is {MAX_HEADERS} "
            f"headers of {MAX_HEADER_BYTES:,} bytes."
        )
    path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    if len(path) > MAX_PATH_BYTES:
        raise PathTooLong(f"The path has {len(path):,} bytes; the limit is {MAX_PATH_BYTES:,}.")
    query: bytes = scope["query_string"]
    if len(query) > MAX_QUERY_BYTES:
        raise QueryTooLong(f"The query has {len(query):,} bytes; the limit is {MAX_QUERY_BYTES:,}.")
    if _NUL.search(query) or (scope["path"].startswith("/api/") and "\0" in scope["path"]):
        raise RequestInvalid("The address contains a NUL character.")


def is_head(request: Request) -> bool:
    """For streams that do not end by themselves."""
    return _HEAD in request.scope
