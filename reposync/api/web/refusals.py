"""What goes wrong with a page is told on a page: what happened, and what to do now. Programs get the envelope."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reposync.api.access import Access, Visitor
from reposync.api.csrf import SAFE_METHODS
from reposync.api.envelope import PAGE_KEY, ErrorResponse
from reposync.api.web.renderer import Renderer

# These are read by programs, whatever they accept.
_NO_PAGES = ("/api", "/static", "/healthz", "/readyz", "/metrics", "/openapi.json")


@dataclass(frozen=True, slots=True)
class Advice:
    """`message`: in place of the error's own, where that is for programs."""

    heading: str
    advice: str
    message: str | None = None


_BY_CODE = {
    "FORBIDDEN": Advice("You may look, but not do this", "Log out, and log in with a token that may operate."),
    "CSRF_REFUSED": Advice(
        "This page was too old",
        "Go back, load the page again, and press the button once more.",
        "Nothing was done. The button belongs to a session that is over, or to another one.",
    ),
    "CROSS_SITE_REFUSED": Advice(
        "That came from another site", "If it was you, open reposync itself and do it there.", "Nothing was done."
    ),
    "HOST_NOT_ALLOWED": Advice("This server does not go by that name", "Ask for it by a name that it has."),
    "SHUTTING_DOWN": Advice("reposync is starting again", "This page tries again by itself."),
    "STARTING": Advice("reposync is starting", "This page tries again by itself."),
    "STORE_UNAVAILABLE": Advice(
        "The database does not answer",
        "This page tries again by itself. If it stays so, look at the log and at /readyz.",
    ),
    "REPOSITORY_NOT_FOUND": Advice("There is no such repository", "It may have been removed, or renamed."),
    "RUN_NOT_FOUND": Advice("There is no such run", "It may be older than the history that is kept."),
    "RUN_AMBIGUOUS": Advice("Several runs begin like that", "Give more of the id, or choose one of the runs."),
    "RUN_STATE_CONFLICT": Advice("It is too late for that", "Somebody was quicker, or the run went on meanwhile."),
    "LOCK_NOT_FOUND": Advice("The lock is gone already", "There is nothing left to do."),
}
_BY_STATUS = {
    403: Advice("That is not allowed", "Nothing was done."),
    404: Advice("Not found", "Check the address, or start from the repositories."),
    405: Advice("This address is for a button", "Open the page that has it."),
    408: Advice("That took too long", "Try again."),
    413: Advice("That was too much at once", "Nothing was done."),
    414: Advice("This address is too long", "Ask for less at once."),
    422: Advice("That does not fit", "Check the address, or start from the repositories."),
    429: Advice("Too many wrong tokens", "Wait a minute."),
    500: Advice("Something went wrong here", "Try again. Whoever runs reposync finds it in the log by its number."),
    503: Advice("reposync cannot answer now", "This page tries again by itself."),
}
_OTHERWISE = Advice("That did not work", "Try again, or start from the repositories.")


class ErrorPages:
    """Middleware, around everything that may refuse a request."""

    def __init__(self, app: ASGIApp, renderer: Renderer, access: Access) -> None:
        self._app = app
        self._renderer = renderer
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[PAGE_KEY] = self._page
        await self._app(scope, receive, send)

    async def _page(self, scope: Scope, error: ErrorResponse) -> Response | None:
        request = Request(scope)
        if not reads_pages(request, self._renderer.root):
            return None
        told = _BY_CODE.get(error.code) or _BY_STATUS.get(error.status_code, _OTHERWISE)
        tries_again = error.status_code == 503 and request.method in SAFE_METHODS
        answer = self._renderer.page(
            request,
            "error.html",
            await self._visitor(request, error),
            status=error.status_code,
            heading=told.heading,
            message=told.message or error.page_message,
            advice=None if error.status_code == 503 and not tries_again else told.advice,
            code=error.code,
            retry_seconds=int(error.extra_headers.get("Retry-After", "5")) if tries_again else None,
        )
        answer.headers.update(error.extra_headers)
        return answer

    async def _visitor(self, request: Request, error: ErrorResponse) -> Visitor | None:
        # Under a name that is not ours nobody is anybody.
        return None if error.code == "HOST_NOT_ALLOWED" else await self._access.known(request)


def reads_pages(request: Request, root: str) -> bool:
    """Whether a person with a browser reads the answer: nothing else says that it takes HTML."""
    path = request.scope["path"].removeprefix(root)
    if any(path == top or path.startswith(f"{top}/") for top in _NO_PAGES):
        return False
    return "text/html" in request.headers.get("accept", "")
