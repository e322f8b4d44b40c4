"""Error pages: what happened, and what to do now. Programs get JSON."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reposync.api.auth import Access, Principal
from reposync.api.errors import ERROR_PAGE_KEY, ErrorResponse
from reposync.api.sessions import SAFE_METHODS
from reposync.api.web.rendering import Renderer

# Programs request these, whatever they accept.
_NO_PAGES = ("/api", "/static", "/healthz", "/readyz", "/metrics", "/openapi.json")


@dataclass(frozen=True, slots=True)
class Advice:
    """`message`: replaces that of the error, if it is written for programs."""

    heading: str
    advice: str
    message: str | None = None


_BY_CODE = {
    "FORBIDDEN": Advice("You may read, but not change this", "Log out, and log in with a token that may operate."),
    "CSRF_REFUSED": Advice(
        "This page was too old",
        "Go back, load the page again, and press the button once more.",
        "Nothing was done. The button belongs to a different session, or to one that has ended.",
    ),
    "CROSS_SITE_REFUSED": Advice(
        "This came from another site", "If it was you, open reposync and do it there.", "Nothing was done."
    ),
    "HOST_NOT_ALLOWED": Advice("This server has a different name", "Use one of its own names."),
    "SHUTTING_DOWN": Advice("reposync is restarting", "This page reloads by itself."),
    "STARTING": Advice("reposync is starting", "This page reloads by itself."),
    "STORE_UNAVAILABLE": Advice(
        "The database does not respond",
        "This page reloads by itself. If this does not help, see the log and /readyz.",
    ),
    "REPOSITORY_NOT_FOUND": Advice("There is no such repository", "It may have been removed, or renamed."),
    "RUN_NOT_FOUND": Advice("There is no such run", "It may be older than the history that is kept."),
    "RUN_AMBIGUOUS": Advice("Several runs match", "Give more of the id, or choose one of the runs."),
    "RUN_STATE_CONFLICT": Advice("It is too late for that", "Somebody else was faster, or the run has continued."),
    "LOCK_NOT_FOUND": Advice("The lock is already released", "There is nothing to do."),
}
_BY_STATUS = {
    403: Advice("This is not allowed", "Nothing was done."),
    404: Advice("Not found", "Check the address, or start with the repositories."),
    405: Advice("This address is for a button", "Open the page that has it."),
    408: Advice("This took too long", "Try again."),
    413: Advice("This was too large", "Nothing was done."),
    414: Advice("This address is too long", "Use fewer filters."),
    422: Advice("This is not valid", "Check the address, or start with the repositories."),
    429: Advice("Too many wrong tokens", "Wait a minute."),
    500: Advice("Something went wrong", "Try again. The operator finds it in the log by its incident id."),
    503: Advice("reposync is not available", "This page reloads by itself."),
}
_OTHERWISE = Advice("This did not work", "Try again, or start with the repositories.")


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
        request = Request(scope)
        if not reads_pages(request, self._renderer.root):
            return None
        advice = _BY_CODE.get(error.code) or _BY_STATUS.get(error.status_code, _OTHERWISE)
        tries_again = error.status_code == 503 and request.method in SAFE_METHODS
        answer = self._renderer.page(
            request,
            "error.html",
            await self._principal(request, error),
            status=error.status_code,
            heading=advice.heading,
            message=advice.message or error.page_message,
            advice=None if error.status_code == 503 and not tries_again else advice.advice,
            code=error.code,
            retry_seconds=int(error.extra_headers.get("Retry-After", "5")) if tries_again else None,
        )
        answer.headers.update(error.extra_headers)
        return answer

    async def _principal(self, request: Request, error: ErrorResponse) -> Principal | None:
        # Cookies of another host name prove nothing.
        return None if error.code == "HOST_NOT_ALLOWED" else await self._access.principal_or_none(request)


def reads_pages(request: Request, root: str) -> bool:
    """Whether a browser shows the response: only browsers accept HTML."""
    path = request.scope["path"].removeprefix(root)
    if any(path == top or path.startswith(f"{top}/") for top in _NO_PAGES):
        return False
    return "text/html" in request.headers.get("accept", "")
