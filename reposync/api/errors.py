"""Errors over HTTP: those that only the API raises, their one shape, their handlers, and their OpenAPI description."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount
from starlette.types import Receive, Scope, Send

from reposync.errors import RepoSyncError, Starting, StoreUnavailable

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
MAX_PROBLEMS = 50
ERROR_PAGE_KEY = "reposync.error_page"
"""Key of the request's scope under which there may be an `ErrorPage`."""
_MAX_PATH_CHARS = 200
_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")

Responses = dict[int | str, dict[str, Any]]


class AccessDenied(RepoSyncError):
    """No token, or an unknown one."""

    code = "UNAUTHENTICATED"
    status = 401


class LoginNeeded(AccessDenied):
    """A page that needs a login. `address` is the login page, which leads back to it."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


class RoleMissing(RepoSyncError):
    """The token is known, but its role does not allow this."""

    code = "FORBIDDEN"
    status = 403


class TooManyAttempts(RepoSyncError):
    """Too many wrong tokens from this address."""

    code = "TOO_MANY_ATTEMPTS"
    status = 429

    def __init__(self, wait_seconds: float) -> None:
        self.wait_seconds = math.ceil(wait_seconds)
        super().__init__("Too many wrong tokens from this address.", remedy=f"Try again in {self.wait_seconds} s.")


class CsrfRefused(RepoSyncError):
    """The request has a session cookie but no CSRF token of that session."""

    code = "CSRF_REFUSED"
    status = 403


class CrossSiteRefused(RepoSyncError):
    """A page of another site made the browser send this request."""

    code = "CROSS_SITE_REFUSED"
    status = 403


class HostNotAllowed(RepoSyncError):
    """The Host header names another server, which may be DNS rebinding."""

    code = "HOST_NOT_ALLOWED"
    status = 421


class BodyTooLarge(RepoSyncError):
    """The request body is larger than this route accepts."""

    code = "BODY_TOO_LARGE"
    status = 413


class BodyTooSlow(RepoSyncError):
    """The request body was not complete in time."""

    code = "BODY_TOO_SLOW"
    status = 408


class BodyUnreadable(RepoSyncError):
    """The body does not match its Content-Type."""

    code = "BAD_REQUEST"
    status = 400


class BodiesBusy(RepoSyncError):
    """The bodies that are being received take all the memory reserved for them."""

    code = "BUSY"
    status = 503


class MediaTypeUnsupported(RepoSyncError):
    """The Content-Type of the body is not JSON: send `Content-Type: application/json`."""

    code = "MEDIA_TYPE_UNSUPPORTED"
    status = 415


class QueryTooLong(RepoSyncError):
    """The query string is too long."""

    code = "QUERY_TOO_LONG"
    status = 414


class PathTooLong(RepoSyncError):
    """The path is too long."""

    code = "PATH_TOO_LONG"
    status = 414


class HeadersTooLarge(RepoSyncError):
    """The request has too many headers, or they are too large."""

    code = "HEADERS_TOO_LARGE"
    status = 431


class RequestInvalid(RepoSyncError):
    """The request is not valid; `details.problems` lists what is wrong, if known."""

    code = "REQUEST_INVALID"
    status = 422


class SearchBusy(RepoSyncError):
    """More searches are waiting than can be answered in time."""

    code = "SEARCH_BUSY"
    status = 503
    retryable = True


class SearchTimeout(RepoSyncError):
    """The embedding model and the index took too long together."""

    code = "SEARCH_TIMEOUT"
    status = 504
    retryable = True


class TooManyConnections(RepoSyncError):
    """All connections of this pod, or of this address, are in use."""

    code = "TOO_MANY_CONNECTIONS"
    status = 503
    retryable = True


class ShuttingDown(RepoSyncError):
    """This daemon is shutting down; send the request again."""

    code = "SHUTTING_DOWN"
    status = 503


class Unexpected(RepoSyncError):
    """An unexpected error; the log has it under the incident id."""


EVERYWHERE = (
    AccessDenied,
    RoleMissing,
    TooManyAttempts,
    HostNotAllowed,
    RequestInvalid,
    QueryTooLong,
    BodyTooLarge,
    StoreUnavailable,
    TooManyConnections,
    Starting,
    ShuttingDown,
    Unexpected,
)
"""Errors of every route of the API."""
CHANGING = (CsrfRefused, CrossSiteRefused)
"""Errors of routes that change something."""
WITH_BODY = (BodyUnreadable, BodyTooSlow, MediaTypeUnsupported)
"""Errors of routes that read a JSON body."""


class ErrorBody(BaseModel):
    """`code` is stable, `message` is for people, `details` is for programs."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    error: ErrorBody


def errors(*kinds: type[RepoSyncError]) -> Responses:
    """`responses` of a route: these errors, and those of every route."""
    return only_errors(*kinds, *EVERYWHERE)


def only_errors(*kinds: type[RepoSyncError]) -> Responses:
    """`responses` of a route: exactly these errors, described by their docstrings."""
    described: Responses = {}
    for kind in kinds:
        words = (kind.__doc__ or kind.code).strip().partition("\n\n")[0].replace("\n    ", " ")
        each = described.setdefault(kind.status, {"model": ErrorAnswer, "description": "", "content": {}})
        each["description"] += f"{' ' if each['description'] else ''}`{kind.code}`: {words}"
        examples = each["content"].setdefault("application/json", {"examples": {}})["examples"]
        examples[kind.code] = {"value": {"error": {"code": kind.code, "message": words, "details": {}}}}
    return described


def envelope(code: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    # The standard library's JSON: a message may quote what a client sent, including lone surrogates.
    return json.dumps({"error": {"code": code, "message": message, "details": dict(details or {})}}).encode()


class ErrorResponse(Response):
    """An error as JSON, or as a page if the client wants one.

    Decided when the response starts: errors are raised in many places, and only the request knows its reader.
    """

    media_type = "application/json"

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        page_message: str | None = None,
    ) -> None:
        """`page_message`: shown on a page in place of `message`."""
        self.extra_headers = headers or {}
        super().__init__(envelope(code, message, details), status, {"Cache-Control": "no-store", **self.extra_headers})
        self.code = code
        self.page_message = message if page_message is None else page_message

    @classmethod
    def of(
        cls, error: RepoSyncError, *, details: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> ErrorResponse:
        wait = {"Retry-After": str(RETRY_AFTER_SECONDS)} if error.status == 503 else {}
        return cls(error.status, error.code, error.for_clients, details, {**wait, **(headers or {})}, error.for_pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        show: ErrorPage | None = scope.get(ERROR_PAGE_KEY)
        page = await show(scope, self) if show is not None else None
        await (page(scope, receive, send) if page is not None else super().__call__(scope, receive, send))


ErrorPage = Callable[[Scope, ErrorResponse], Awaitable[Response | None]]
"""Renders the page for an error; None if the client wants JSON."""


def add_error_handlers(app: FastAPI, redact: Callable[[str], str]) -> None:
    """Handlers for errors of routing, of validation and of `reposync.errors`."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # Starlette lists the methods of the first route of this path only.
            headers["Allow"] = ", ".join(_methods_at(request.scope))
        return ErrorResponse(error.status_code, _code(error.status_code), _message(request, error), headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        # Without `input`: it may be a password, and the client has it anyway.
        problems = [
            {"where": [str(part) for part in each["loc"]], "message": each["msg"], "type": each["type"]}
            for each in error.errors()
        ]
        # A body may contain a hundred thousand mistakes.
        details = {"problems": problems[:MAX_PROBLEMS]}
        return ErrorResponse(422, RequestInvalid.code, _problem_sentence(problems), details)

    @app.exception_handler(AccessDenied)
    async def denied(request: Request, error: AccessDenied) -> Response:
        return ErrorResponse.of(error, headers={"WWW-Authenticate": 'Bearer realm="reposync"'})

    @app.exception_handler(LoginNeeded)
    async def login_needed(request: Request, error: LoginNeeded) -> Response:
        return Response(status_code=303, headers={"Location": error.address})

    @app.exception_handler(TooManyAttempts)
    async def too_many(request: Request, error: TooManyAttempts) -> Response:
        seconds = error.wait_seconds
        return ErrorResponse.of(error, details={"wait_seconds": seconds}, headers={"Retry-After": str(seconds)})

    @app.exception_handler(RepoSyncError)
    async def known_error(request: Request, error: RepoSyncError) -> Response:
        if error.status >= 500:
            log.warning("A request failed: %s", error, extra={"code": error.code, "path": request.scope["path"]})
        # Other servers quote what was sent to them.
        error.redact(redact)
        return ErrorResponse.of(error)


def _message(request: Request, error: HTTPException) -> str:
    if error.detail != _phrase(error.status_code):
        return str(error.detail)
    path = request.scope["path"]
    shown, bare = path[:_MAX_PATH_CHARS], path.rstrip("/")
    if error.status_code == 404:
        has_bare = bare not in ("", path) and _methods_at({**request.scope, "path": bare, "raw_path": bare.encode()})
        hint = f" Leave out the trailing slash: {bare[:_MAX_PATH_CHARS]}" if has_bare else ""
        return f"There is nothing at {shown}.{hint}"
    if error.status_code == 405:
        return f"{request.method[:20]} is not possible at {shown}, which takes {', '.join(_methods_at(request.scope))}."
    return f"{error.detail}."


def _methods_at(scope: Scope) -> list[str]:
    """The methods that the path of the request accepts."""
    # A mount has changed the root path for its own routes.
    own = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    found = [
        method
        for method in _METHODS
        if any(
            route.matches({**own, "method": method})[0] is Match.FULL
            for route in scope["app"].routes
            if method == "GET" or not isinstance(route, Mount)  # mounts are static files
        )
    ]
    return ["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found


def _problem_sentence(problems: Sequence[Mapping[str, Any]]) -> str:
    if not problems:
        return "The request is not valid."
    first = f"{'.'.join(problems[0]['where'])}: {problems[0]['message']}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"The request is not valid: {first}{more}."


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _code(status: int) -> str:
    try:
        return HTTPStatus(status).name
    except ValueError:
        return "HTTP_ERROR"
