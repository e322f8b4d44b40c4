"""Errors over HTTP: those that only the API raises, their one shape, their handlers, and their OpenAPI description."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Any, Literal
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount
from starlette.types import Scope

from reposync.api.advice import message as advised
from reposync.errors import NotSearchableYet, RepoSyncError
from reposync.next_steps import NextStep
from reposync.operations.paths import COMMAND_HEADER
from reposync.operations.syncs import CommitState

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
ERROR_CODE = "error_code"
"""Key of the request's state if an error answers it, for the metrics."""
MAX_PROBLEMS = 50
_MAX_PATH_CHARS = 200
_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")


class ApiError(RepoSyncError):
    """Base of errors that only the API raises. `headers` are part of the response."""

    headers: Mapping[str, str] = {}


class AccessDenied(ApiError, code="UNAUTHENTICATED", status=401):
    """No token, or an unknown one."""

    headers: Mapping[str, str] = {"WWW-Authenticate": 'Bearer realm="reposync"'}


class LoginNeeded(AccessDenied):
    """A page that needs a login. `address` is the login page, which leads back to it."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


class CrossSiteRefused(ApiError, code="CROSS_SITE_REFUSED", status=403):
    """A page of another site made the browser send this request."""


class HostNotAllowed(ApiError, code="HOST_NOT_ALLOWED", status=421):
    """The Host header names another server, which may be DNS rebinding."""


class BodyTooLarge(ApiError, code="BODY_TOO_LARGE", status=413):
    """The request body is larger than this route accepts."""


class BodyTooSlow(ApiError, code="BODY_TOO_SLOW", status=408):
    """The request body was not complete in time."""

    headers: Mapping[str, str] = {"Connection": "close"}


class BodyUnreadable(ApiError, code="BAD_REQUEST", status=400):
    """The body does not match its Content-Type, or its end is not certain."""

    headers: Mapping[str, str] = {"Connection": "close"}


class BodiesBusy(ApiError, code="BUSY", status=503):
    """The bodies that are being received take all the memory reserved for them."""


class MediaTypeUnsupported(ApiError, code="MEDIA_TYPE_UNSUPPORTED", status=415):
    """The Content-Type of the body is not JSON: send `Content-Type: application/json`."""


class QueryTooLong(ApiError, code="QUERY_TOO_LONG", status=414):
    """The query string is too long."""


class PathTooLong(ApiError, code="PATH_TOO_LONG", status=414):
    """The path is too long."""


class HeadersTooLarge(ApiError, code="HEADERS_TOO_LARGE", status=431):
    """The request has too many headers, or they are too large."""


class RequestInvalid(ApiError, code="REQUEST_INVALID", status=422):
    """The request is not valid; `details.problems` lists what is wrong, if known."""


class TooManyConnections(ApiError, code="TOO_MANY_CONNECTIONS", status=503, retryable=True):
    """All connections of this pod are in use."""

    headers: Mapping[str, str] = {"Connection": "close"}


class ShuttingDown(ApiError, code="SHUTTING_DOWN", status=503):
    """This daemon is shutting down; send the request again."""

    def __init__(self) -> None:
        super().__init__("This daemon is shutting down. Try again.")


class HttpError(ApiError):
    """An error of routing."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, HTTPStatus(status).name, headers


class Unexpected(ApiError):
    """An unexpected error; the log has it under the incident id."""

    def __init__(self, incident: str) -> None:
        super().__init__(f"An unexpected error. The log has it under incident {incident}.")
        self.details = {"incident": incident}


class InvalidPart(BaseModel):
    """`where`: the keys that lead to it, or the file, line and column."""

    model_config = ConfigDict(extra="allow")

    message: str


class InvalidDetails(BaseModel):
    """The details of REQUEST_INVALID, and of CONFIG_INVALID for a whole file."""

    problems: list[InvalidPart]


@dataclass(frozen=True, slots=True)
class NotSearchableDetails(CommitState):
    """The details of NOT_SEARCHABLE_YET: the present state. `run`: the one that is active, or the latest."""

    run: dict[str, Any] | None


class IncidentDetails(BaseModel):
    """The details of INTERNAL_ERROR: the log has it under this id."""

    incident: str


class AbsenceDetails(BaseModel):
    """The details of FILE_NOT_INDEXED and NOTHING_INDEXED. `rule`: of `excluded`. `repositories`: of `not_indexed`."""

    reason: Literal["not_indexed", "excluded", "no_match"]
    rule: str = ""
    repositories: list[str] = []


class NoDetails(BaseModel):
    """The details of all other codes."""

    model_config = ConfigDict(extra="allow")


class ErrorBody(BaseModel):
    """`code` is stable, `message` is for people, `details` is for programs. `help`: path of the paragraph of the
    documentation on this server. `next`: what can be done about it, as values; `message` has it in words."""

    code: str
    message: str
    help: str
    details: InvalidDetails | NotSearchableDetails | IncidentDetails | AbsenceDetails | NoDetails
    next: list[dict[str, Any]] = []


class ErrorAnswer(BaseModel):
    error: ErrorBody


ERROR_ANSWERS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "Refused; `/help/errors` has a paragraph for each `code`",
        # Not as a `model`: FastAPI would compile a second type adapter for each route.
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}},
    },
    "5XX": {"model": ErrorAnswer, "description": "Failed here or at a server behind; some can be tried again later"},
}
"""`responses` of all routes."""


def help_path(code: str) -> str:
    """The paragraph of an error code (docs/errors.md), without the root path."""
    return f"/help/errors#{quote(code.lower())}"


def envelope(
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    root: str = "",
    next_steps: Sequence[NextStep] = (),
) -> bytes:
    """As `ErrorAnswer`. `root`: the root path."""
    error = {
        "code": code,
        "message": message,
        "help": root + help_path(code),
        "details": dict(details or {}),
        "next": [step.document() for step in next_steps],
    }
    # The standard library's JSON: a message may quote what a client sent, including lone surrogates.
    return json.dumps({"error": error}).encode()


ErrorPage = Callable[[Scope, RepoSyncError], Awaitable[Response | None]]
"""Renders the page for an error; None if the client wants JSON. `error_page` of the application's state, if it has
pages."""


async def error_response(scope: Scope, error: RepoSyncError) -> Response:
    """An error as JSON, or as a page if the client wants one."""
    scope.setdefault("state", {})[ERROR_CODE] = error.code
    show: ErrorPage | None = getattr(scope["app"].state, "error_page", None)
    response = await show(scope, error) if show is not None else None
    if response is None:
        # Commands say the next steps in their own words.
        message = str(error) if COMMAND_HEADER in Headers(scope=scope) else advised(error)
        body = envelope(error.code, message, error.details, _root_path(scope), error.next_steps)
        response = Response(body, error.status, media_type="application/json")
    if error.status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if error.status == 429:
        response.headers["Retry-After"] = str(ceil(error.retry_after_seconds or RETRY_AFTER_SECONDS))
    if isinstance(error, ApiError):
        response.headers.update(error.headers)
    return response


def add_error_handlers(app: FastAPI, redact: Callable[[str], str]) -> None:
    """Handlers for errors of routing, of validation and of `reposync.errors`."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # Starlette lists the methods of the first route of this path only.
            headers["Allow"] = ", ".join(_methods_at(request.scope))
        return await error_response(request.scope, HttpError(error.status_code, _message(request, error), headers))

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        # Without `input`: it may be a password, and the client has it anyway.
        problems = [
            {"where": [str(part) for part in each["loc"]], "message": each["msg"], "type": each["type"]}
            for each in error.errors()
        ]
        first = f"{'.'.join(problems[0]['where'])}: {problems[0]['message']}"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        invalid = RequestInvalid(f"The request is not valid: {first}{more}.")
        # A body may contain a hundred thousand mistakes.
        invalid.details = {"problems": problems[:MAX_PROBLEMS]}
        return await error_response(request.scope, invalid)

    @app.exception_handler(RepoSyncError)
    async def known_error(request: Request, error: RepoSyncError) -> Response:
        if isinstance(error, LoginNeeded):
            return Response(status_code=303, headers={"Location": error.address})
        if error.status >= 500 and not isinstance(error, NotSearchableYet):
            log.warning("A request failed: %s", error, extra={"code": error.code, "path": request.scope["path"]})
        # Other servers quote what was sent to them.
        error.redact(redact)
        return await error_response(request.scope, error)


def _message(request: Request, error: HTTPException) -> str:
    shown = request.scope["path"][:_MAX_PATH_CHARS]
    if error.detail != HTTPStatus(error.status_code).phrase:
        return str(error.detail)
    if error.status_code == 404:
        return f"There is nothing at {shown}." + (" No path ends with a slash." if shown.endswith("/") else "")
    if error.status_code == 405:
        return f"{request.method[:20]} is not possible at {shown}, which takes {', '.join(_methods_at(request.scope))}."
    return f"{error.detail}."


def _methods_at(scope: Scope) -> list[str]:
    """The methods that the path of the request accepts."""
    own = {**scope, "root_path": _root_path(scope)}
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


def _root_path(scope: Scope) -> str:
    # A mount has changed the root path for its own routes.
    return str(scope.get("app_root_path", scope.get("root_path", "")))
