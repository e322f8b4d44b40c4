"""What every request passes before any route sees it, and every answer on its way out."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.connections import PROBES_ALONE
from reposync.api.csrf import SAFE_METHODS, is_from_elsewhere
from reposync.api.envelope import error_answer
from reposync.api.headers import protect
from reposync.api.hosts import AllowedHosts, Proxies
from reposync.config.sections import HttpConfig
from reposync.errors import RepoSyncError

# Whoever watches the process asks by its address. With tokens nothing is answered there that depends on who asks.
_PROBES = ("/healthz", "/readyz", "/metrics")
# These alone answer at once, whatever else is slow.
_WITH_RESERVE = ("/healthz", "/readyz")


class TooManyConnections(RepoSyncError):
    """All connections are busy, or all that one address may have."""

    code = "TOO_MANY_CONNECTIONS"
    status = 503
    retryable = True


class Gate:
    """Around the whole application, errors included: nothing leaves without its headers."""

    def __init__(self, app: ASGIApp, config: HttpConfig, *, has_tokens: bool) -> None:
        self._app = app
        self._root = config.root_path
        self._has_tokens = has_tokens
        self._proxies = Proxies(config)
        self._hosts = AllowedHosts(config.allowed_hosts, has_tokens=has_tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._proxies.correct(scope)
        https = scope["scheme"] == "https"
        is_reserved = PROBES_ALONE in scope.get("state", ())

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                protect(message, https=https, alone=not self._root)
                if is_reserved:
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        if refusal := self._refusal(scope, is_reserved):
            await refusal(scope, receive, protected)
        else:
            await self._app(scope, receive, protected)

    def _refusal(self, scope: Scope, is_reserved: bool) -> Response | None:
        if is_reserved and self._path(scope) not in _WITH_RESERVE:
            error = TooManyConnections("This pod has as many connections as it takes.", remedy="Ask again in a moment.")
            return error_answer(error.status, error.code, str(error), headers={"Retry-After": "5"})
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._hosts.allows(host) and not self._is_for_everybody(self._path(scope)):
            return error_answer(
                421,
                "HOST_NOT_ALLOWED",
                f"This server is not called {host[:100]!r}. Without tokens it answers to names of loopback alone; "
                "`http.allowed_hosts` of the registry file allows others.",
                headers={"Connection": "close"},
            )
        by_token = self._has_tokens and headers.get("authorization", "")[:7].lower() == "bearer "
        if scope["method"] not in SAFE_METHODS and not by_token and is_from_elsewhere(headers):
            return error_answer(
                403,
                "CROSS_SITE_REFUSED",
                "A page of another site made the browser send this, which is not allowed.",
                headers={"Connection": "close"},
            )
        return None

    def _is_for_everybody(self, path: str) -> bool:
        # The looks of the pages are no secret, and the page that says so is to have them.
        return path.startswith("/static/") or (self._has_tokens and path in _PROBES)

    def _path(self, scope: Scope) -> str:
        path: str = scope["path"]
        return path.removeprefix(self._root)
