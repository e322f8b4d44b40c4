"""What every request passes: an id, headers of responses, unexpected errors, the log, and the limits of its head."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
import uuid
from email.utils import formatdate
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from reposync.api.auth import SAFE_METHODS, actor_of
from reposync.api.errors import (
    ERROR_CODE,
    BodyUnreadable,
    CrossSiteRefused,
    HeadersTooLarge,
    HostNotAllowed,
    PathTooLong,
    QueryTooLong,
    RequestInvalid,
    ShuttingDown,
    TooManyConnections,
    Unexpected,
    error_response,
)
from reposync.api.hosts import AllowedHosts, is_cross_site, original_host
from reposync.config.sections import HttpConfig
from reposync.errors import RepoSyncError
from reposync.telemetry.metrics import Metrics, outcome_of

log = logging.getLogger(__name__)
access_log = logging.getLogger("reposync.access")

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
OTHER = "other"
"""The route of paths that do not exist, and the method of requests with an unknown one: clients choose both freely."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STATIC = "/static"
# Requested all the time, and by nobody who looks for it in a log.
_QUIET = frozenset({*_PROBES, _STATIC})
# With codes, which are as good as a password for a moment.
_SECRET_QUERIES = frozenset({"/sign-in/callback", "/authorize", "/authorize/consent"})
_FOR_PROGRAMS = ("/api/", "/mcp", "/metrics", "/openapi.json")


class Requests:
    """The middleware around every request: its id, headers and log line, unexpected errors, and the limits of its head.

    At shutdown it answers requests that have no response yet. Unexpected errors are logged under the incident that the
    response names; not by an exception handler: Starlette raises the error again after one, and the server would log it
    twice. One request begins in each turn of the event loop: 500 at once, which render a page each, would hold it for
    seconds, and with it probes, leases and syncs. Probes of health do not wait.
    """

    def __init__(self, app: ASGIApp, config: HttpConfig, metrics: Metrics, *, has_tokens: bool) -> None:
        self._app = app
        self._root = config.root_path
        self._log = AccessLog(metrics, log_queries=config.log_queries)
        self._guard = Guard(config, has_tokens=has_tokens)
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, has_started = time.monotonic(), False
        given_id = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex
        # HEAD is GET; the server, which has the other scope, sends no body (RFC 9110, 9.3.2). Not by a second method of
        # each route: OpenAPI would list every operation twice.
        is_head = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET" if is_head else scope["method"], _HEAD: is_head}

        async def send_complete(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._add_headers(scope, message, request_id)
                seconds = time.monotonic() - began
                # In the next turn of the event loop: no client waits for the line.
                asyncio.get_running_loop().call_soon(self._log.record, scope["method"], inner, message, seconds)
            await send(message)

        async def answer(error: RepoSyncError) -> None:
            # A response that has started can only be cut off, which the server does if it is not complete.
            if not has_started:
                response = await error_response(inner, error)
                await response(inner, receive, send_complete)

        with bound_contextvars(request=request_id):
            try:
                self._guard.check(inner)
                if inner["path"].removeprefix(self._root) not in _HEALTH:
                    async with self._turn:
                        await asyncio.sleep(0)
                await self._app(inner, receive, send_complete)
            except RepoSyncError as refusal:  # of the guard: the application has handlers
                await answer(refusal)
            except asyncio.CancelledError:
                # Only the server cancels requests, when it shuts down; it closes the connection.
                await answer(ShuttingDown())
            except Exception:
                incident = secrets.token_hex(6)
                log.exception(
                    "A request ended in an unexpected error",
                    extra={"incident": incident, "method": scope["method"], "path": scope["path"]},
                )
                await answer(Unexpected(incident))

    def _add_headers(self, scope: Scope, start: Message, request_id: str) -> None:
        headers = MutableHeaders(scope=start)
        headers[REQUEST_ID] = request_id
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)  # a route may be stricter
        headers.setdefault("Cache-Control", "no-store")
        headers.setdefault("Date", formatdate(usegmt=True))
        if start["status"] == 304:
            # As the response with a body has it: caches take the headers of a 304 over.
            headers.add_vary_header("Accept-Encoding")
        # Below a path of a host there are other services, for which https is not ours to require.
        if scope["scheme"] == "https" and not self._root:
            headers["Strict-Transport-Security"] = "max-age=31536000"


class AccessLog:
    """Logs and counts each response as it begins, so a stream counts until its first event."""

    def __init__(self, metrics: Metrics, *, log_queries: bool) -> None:
        self._metrics, self._log_queries = metrics, log_queries

    def record(self, given_method: str, scope: Scope, start: Message, seconds: float) -> None:
        """`scope`: with the route and the principal, which the application has found."""
        # The template of the path. A mount is no route.
        is_static = "route" not in scope and scope.get("root_path", "").endswith(_STATIC)
        route = _STATIC if is_static else getattr(scope.get("route"), "path", OTHER)
        status, method = start["status"], given_method if given_method in METHODS else OTHER
        self._metrics.count("http_requests", route, method, str(status))
        self._metrics.observe("http_request_duration_seconds", seconds, route, method, outcome_of(status))
        if code := scope.get("state", {}).get(ERROR_CODE):
            self._metrics.count("http_errors", code)
        level = logging.DEBUG if route in _QUIET else logging.INFO
        if not access_log.isEnabledFor(level):
            return
        fields: dict[str, Any] = {
            "request": Headers(raw=start["headers"]).get("x-request-id"),
            "actor": actor_of(Request(scope)).name,
            "method": method,
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
        }
        if self._log_queries:
            query = "" if route in _SECRET_QUERIES else scope["query_string"].decode("latin-1")
            fields |= {"path": scope["path"], "query": query}
        access_log.log(level, "request", extra=fields)


class Guard:
    """Refuses other hosts, other sites, and heads that are too large or ambiguous."""

    def __init__(self, config: HttpConfig, *, has_tokens: bool) -> None:
        self._root = config.root_path
        self._has_tokens = has_tokens
        self._hosts = AllowedHosts(config.allowed_hosts, has_tokens=has_tokens)

    def check(self, scope: Scope) -> None:
        """Raises RepoSyncError."""
        headers = Headers(scope=scope)
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
        if is_cross_site(headers):
            if not self._may_come_from_elsewhere(scope["method"], headers, root_relative):
                raise CrossSiteRefused("A page of another site made the browser send this request.")
            # Not compressed: that page could add guesses to a page with private code, and somebody who sees the traffic
            # would learn from its size which guess was right (BREACH).
            scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
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
    return bool(request.scope.get(_HEAD))
