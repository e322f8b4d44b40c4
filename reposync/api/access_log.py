"""What operators see of requests: a line in the log, and metrics by route."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.auth import admitted
from reposync.api.errors import ERROR_CODE
from reposync.telemetry.metrics import Metrics, outcome_of

log = logging.getLogger("reposync.access")

OTHER = "other"
"""The route of paths that do not exist, and the method of requests with an unknown one: clients choose both freely."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STATIC = "/static"
# Requested all the time, and by nobody who looks for it in a log.
_QUIET = frozenset({"/healthz", "/readyz", "/metrics", _STATIC})
_INNER = "reposync.inner_scope"


class AccessLog:
    """Around the middleware that refuses and answers requests. Logs and counts each response as it begins, so a stream
    counts until its first event. `InnerScope`, inside of that middleware, shows it the scope of the router."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, log_queries: bool) -> None:
        self._app, self._metrics, self._log_queries = app, metrics, log_queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        inner = scope[_INNER] = [scope]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record(inner[-1], scope, message, time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, sent)

    def _record(self, inner: Scope, scope: Scope, start: Message, seconds: float) -> None:
        route, status = _route_of(inner), start["status"]
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._metrics.count("http_requests", route, method, str(status))
        self._metrics.observe("http_request_duration_seconds", seconds, route, method, outcome_of(status))
        if code := scope.get("state", {}).get(ERROR_CODE):
            self._metrics.count("http_errors", code)
        level = logging.DEBUG if route in _QUIET else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields: dict[str, Any] = {
            "request": Headers(raw=start["headers"]).get("x-request-id"),
            "actor": admitted(Request(inner)).name,
            "method": method,
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
        }
        if self._log_queries:
            fields |= {"path": scope["path"], "query": scope["query_string"].decode("latin-1")}
        log.log(level, "request", extra=fields)


def _route_of(scope: Scope) -> str:
    """The template of the path that the router found."""
    if "route" not in scope and scope.get("root_path", "").endswith(_STATIC):
        return _STATIC  # a mount is no route
    return getattr(scope.get("route"), "path", OTHER)


class InnerScope:
    """The innermost middleware. The ones around it pass copies of the scope on; the router writes the route, and the
    authentication the principal, into the copy that it gets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.get(_INNER, []).append(scope)
        await self._app(scope, receive, send)
