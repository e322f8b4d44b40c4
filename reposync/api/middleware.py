"""Middleware around every request: ids, headers of responses, unexpected errors, and the limits of a request's head."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import uuid
from email.utils import formatdate

from fastapi import FastAPI, Request
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
_HEALTH = ("/healthz", "/readyz")
# Monitoring requests these by IP address. With tokens, their responses reveal nothing that depends on the client.
_PROBES = (*_HEALTH, "/metrics")
_FOR_PROGRAMS = ("/api/", "/mcp", "/metrics", "/openapi.json")


def add_middleware(app: FastAPI, config: HttpConfig, *, has_tokens: bool) -> None:
    """Around the whole application, including its errors."""
    # The last one is the outermost.
    app.add_middleware(HeadAsGet)
    app.add_middleware(Turnstile, root=config.root_path)
    app.add_middleware(Guard, config=config, has_tokens=has_tokens)
    app.add_middleware(UnexpectedErrors)
    app.add_middleware(ResponseHeaders, root=config.root_path)
    app.add_middleware(RequestId)


class RequestId:
    """Gives the request an id, in the response and in every log line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given_id = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with bound_contextvars(request=request_id):
            await self._app(scope, receive, send_with_id)


class ResponseHeaders:
    """Adds the headers that every response has. `root`: the root path."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("Date", formatdate(usegmt=True))
                if message["status"] == 304:
                    # As the response with a body has it: caches take the headers of a 304 over.
                    headers.add_vary_header("Accept-Encoding")
                # Below a path of a host there are other services, for which https is not ours to require.
                if scope["scheme"] == "https" and not self._root:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        await self._app(scope, receive, send_with_headers)


class UnexpectedErrors:
    """Answers unexpected errors, and logs them under the incident that the response names; at shutdown, requests that
    have no response yet. Not an exception handler: Starlette raises the error again after one, and the server would log
    it twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
            return
        except asyncio.CancelledError:
            # Only the server cancels requests, when it shuts down; it closes the connection.
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
            await response(scope, receive, send)


class Guard:
    """Refuses other hosts, other sites, and heads that are too large or ambiguous."""

    def __init__(self, app: ASGIApp, config: HttpConfig, *, has_tokens: bool) -> None:
        self._app = app
        self._root = config.root_path
        self._has_tokens = has_tokens
        self._hosts = AllowedHosts(config.allowed_hosts, has_tokens=has_tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        is_elsewhere = is_cross_site(headers)
        try:
            self._check(scope, headers, is_elsewhere=is_elsewhere)
        except RepoSyncError as error:
            await ErrorResponse(error)(scope, receive, send)
            return
        if is_elsewhere:
            # Not compressed: that page could add guesses to a page with private code, and somebody who sees the traffic
            # would learn from its size which guess was right (BREACH).
            kept = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers, *, is_elsewhere: bool) -> None:
        root_relative = scope["path"].removeprefix(self._root)
        if PROBES_ONLY in scope.get("state", ()) and root_relative not in _HEALTH:
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
        if "transfer-encoding" in headers and "content-length" in headers:
            # RFC 9112, 6.3: a proxy in front may have taken the other one for the end of the body.
            raise BodyUnreadable("The request has both Content-Length and Transfer-Encoding.")
        _check_size(scope)

    def _may_come_from_elsewhere(self, method: str, headers: Headers, root_relative: str) -> bool:
        if method not in SAFE_METHODS:
            return self._has_tokens and headers.get("authorization", "")[:7].lower() == "bearer "
        # With tokens a page of another site is a stranger: `SameSite` keeps the cookie back. Without, it would have the
        # user's rights: it cannot read a response, but how long a search takes reveals what the code contains.
        if self._has_tokens or root_relative.startswith("/static/") or root_relative in _HEALTH:
            return True
        # A link to a page. `iframe` navigates as well, and could be timed.
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return is_link and not root_relative.startswith(_FOR_PROGRAMS)


class Turnstile:
    """One request begins in each turn of the event loop: 500 at once, which render a page each, would hold it for
    seconds, and with it probes, leases and syncs. Probes of health do not wait."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removeprefix(self._root) not in _HEALTH:
            async with self._turn:
                await asyncio.sleep(0)
        await self._app(scope, receive, send)


class HeadAsGet:
    """Passes HEAD on as GET; the server sends no body (RFC 9110, 9.3.2). Not by a second method per route: OpenAPI
    would list every operation twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "method": "GET", _HEAD: True} if scope["method"] == "HEAD" else scope, receive, send)


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
