"""One shape for every error that leaves over HTTP: `{"error": {"code", "message", "details"}}`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.envelope import error_answer
from reposync.errors import RepoSyncError

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
MOST_PROBLEMS = 50
_LONGEST_PATH_CHARS = 200
_METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")


def add_error_handlers(app: FastAPI, redact: Callable[[str], str]) -> None:
    """For errors of routing, of validation, of `reposync.errors`, and for whatever was not foreseen."""
    app.add_middleware(Incidents)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # Starlette names those of the first route of this path alone.
            headers["Allow"] = ", ".join(_methods_at(request.scope))
        return error_answer(error.status_code, _code(error.status_code), _message(request, error), headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        # Without `input`: it may be a password, and it is the client's own.
        problems = [
            {"where": [str(part) for part in each["loc"]], "message": each["msg"], "type": each["type"]}
            for each in error.errors()
        ]
        # A body may hold a hundred thousand mistakes.
        told = {"problems": problems[:MOST_PROBLEMS]}
        return error_answer(422, "REQUEST_INVALID", _problem_sentence(problems), told)

    @app.exception_handler(RepoSyncError)
    async def known_error(request: Request, error: RepoSyncError) -> Response:
        if error.status >= 500:
            log.warning("A request failed: %s", error, extra={"code": error.code, "path": request.scope["path"]})
        wait = {"Retry-After": str(RETRY_AFTER_SECONDS)} if error.status == 503 else None
        # Servers quote what they were sent.
        told, on_page = redact(error.for_clients), redact(error.for_pages)
        return error_answer(error.status, error.code, told, headers=wait, page_message=on_page)


class Incidents:
    """Answers what was not foreseen, and logs it under the id that the answer names. Answers as well what has no answer
    yet when the daemon ends.

    Not an exception handler: Starlette raises again behind one, and the server would log the same thing twice.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
            return
        except asyncio.CancelledError:
            # Only the server cancels a request, when it ends.
            answer = error_answer(
                503,
                "SHUTTING_DOWN",
                "This daemon is ending. Ask again.",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        except Exception:
            incident = secrets.token_hex(6)
            log.exception(
                "A request ended in an error that was not foreseen",
                extra={"incident": incident, "method": scope["method"], "path": scope["path"]},
            )
            message = f"Something went wrong here that was not foreseen. The log has it under incident {incident}."
            answer = error_answer(500, RepoSyncError.code, message, {"incident": incident})
        # Where an answer is under way it can only be cut off, which the server does with one that is not ended.
        if not started:
            await answer(scope, receive, send)


def _message(request: Request, error: HTTPException) -> str:
    if error.detail != _phrase(error.status_code):
        return str(error.detail)
    path = request.scope["path"]
    shown, bare = path[:_LONGEST_PATH_CHARS], path.rstrip("/")
    if error.status_code == 404:
        has_bare = bare not in ("", path) and _methods_at({**request.scope, "path": bare, "raw_path": bare.encode()})
        hint = f" Leave out the slash at its end: {bare[:_LONGEST_PATH_CHARS]}" if has_bare else ""
        return f"There is nothing at {shown}.{hint}"
    if error.status_code == 405:
        return f"{request.method[:20]} is not possible at {shown}, which takes {', '.join(_methods_at(request.scope))}."
    return f"{error.detail}."


def _methods_at(scope: Scope) -> list[str]:
    """What the path of the request can be asked with."""
    # A mount has changed the root for what is mounted.
    own = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    found = [
        method
        for method in _METHODS
        if any(
            route.matches({**own, "method": method})[0] is Match.FULL
            for route in scope["app"].routes
            if method == "GET" or not isinstance(route, Mount)  # what is mounted are files
        )
    ]
    return ["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found


def _problem_sentence(problems: Sequence[Mapping[str, Any]]) -> str:
    if not problems:
        return "The request does not fit."
    first = f"{'.'.join(problems[0]['where'])}: {problems[0]['message']}"
    return f"The request does not fit: {first}" + (f" (and {len(problems) - 1} more)." if len(problems) > 1 else ".")


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
