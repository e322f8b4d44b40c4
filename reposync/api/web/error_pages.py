"""Error pages: what happened, and what to do now. Programs get JSON."""

from __future__ import annotations

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reposync.api.auth import SAFE_METHODS, Access
from reposync.api.errors import ERROR_PAGE_KEY, RETRY_AFTER_SECONDS, ErrorResponse
from reposync.api.web.rendering import Renderer

# Programs request these, whatever they accept.
_NO_PAGES = ("/api", "/static", "/healthz", "/readyz", "/metrics", "/openapi.json")

# Heading and advice, by code, otherwise by status.
_ADVICE: dict[str | int, tuple[str, str]] = {
    "FORBIDDEN": ("You may read, but not change this", "Log out, and log in with a token that may operate."),
    "CROSS_SITE_REFUSED": ("This came from another site", "If it was you, open reposync and do it there."),
    "HOST_NOT_ALLOWED": ("This server has a different name", "Use one of its own names."),
    "STARTING": ("reposync is starting", "This page reloads by itself."),
    "STORE_UNAVAILABLE": (
        "The database does not respond",
        "This page reloads by itself. If this does not help, see the log and /readyz.",
    ),
    404: ("Not found", "It may have been removed. Check the address, or start with the repositories."),
    405: ("This address is for a button", "Open the page that has it."),
    409: ("This is not possible now", "Somebody else was faster, or the run has continued."),
    413: ("This was too large", "Nothing was done."),
    414: ("This address is too long", "Use fewer filters."),
    422: ("This is not valid", "Check the address, or start with the repositories."),
    500: ("Something went wrong", "Try again. The operator finds it in the log by its incident id."),
    503: ("reposync is not available", "This page reloads by itself."),
}
_OTHERWISE = ("This did not work", "Try again, or start with the repositories.")


class ErrorPages:
    """Middleware, around everything that may raise an error."""

    def __init__(self, app: ASGIApp, renderer: Renderer, access: Access) -> None:
        self._app = app
        self._renderer = renderer
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[ERROR_PAGE_KEY] = self._page
        await self._app(scope, receive, send)

    async def _page(self, scope: Scope, error: ErrorResponse) -> Response | None:
        request, status = Request(scope), error.status_code
        path = scope["path"].removeprefix(self._renderer.root)
        is_for_programs = any(path == top or path.startswith(f"{top}/") for top in _NO_PAGES)
        # Only browsers accept HTML.
        if is_for_programs or "text/html" not in request.headers.get("accept", ""):
            return None
        heading, advice = _ADVICE.get(error.code) or _ADVICE.get(status, _OTHERWISE)
        tries_again = status == 503 and request.method in SAFE_METHODS
        retry_seconds = int(error.extra_headers.get("Retry-After", RETRY_AFTER_SECONDS)) if tries_again else None
        # Cookies of another host name prove nothing.
        is_stranger = error.code == "HOST_NOT_ALLOWED"
        answer = self._renderer.page(
            request,
            "error.html",
            None if is_stranger else await self._access.principal_or_none(request),
            status=status,
            heading=heading,
            # Its own message is written for programs.
            message="Nothing was done." if error.code == "CROSS_SITE_REFUSED" else error.page_message,
            advice=None if status == 503 and not tries_again else advice,
            code=error.code,
            retry_seconds=retry_seconds,
        )
        answer.headers.update(error.extra_headers)
        return answer
