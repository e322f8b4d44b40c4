"""Routes made from operations: the path, the arguments and the document of a route are those of its operation."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Body, Path, Query, Request, Response
from pydantic import AfterValidator, BeforeValidator, Field

from reposync.api.auth import actor_of
from reposync.api.etags import ETAG_ANSWERS, conditional, etag_of
from reposync.api.routing import ApiParts, RepositoryName
from reposync.api.server import pause, stopping_of
from reposync.app.application import Application
from reposync.errors import RunNotFound, StoreUnavailable, TooManyWatchers
from reposync.operations.core import NOTHING, Arguments, NoArguments, Operation
from reposync.operations.fields import MAX_NAME_CHARS, MAX_PATH_CHARS
from reposync.operations.following import following
from reposync.operations.paths import PREFIX, path_of
from reposync.operations.repositories import RepositoryDetail
from reposync.operations.runs import RUN_ID_CHARS, Run, get_run
from reposync.operations.syncs import MAX_WAIT_SECONDS

REMOVAL_WAIT_SECONDS = 60.0


def _without_nul(path: str) -> str:
    """Git allows every character but this one in a path, and databases too."""
    if "\0" in path:
        raise ValueError("must not contain NUL")
    return path


RunId: TypeAlias = Annotated[
    str, Path(max_length=RUN_ID_CHARS, description="Id of the run; to show it, a unique prefix of it is enough.")
]
PLACEHOLDERS: Mapping[str, Any] = {
    "name": RepositoryName,
    "group": Annotated[
        str,
        Path(
            min_length=1,
            max_length=MAX_NAME_CHARS,
            description="Path of the group on its GitLab server.",
            examples=["platform/core"],
        ),
    ],
    "run_id": RunId,
    "path": Annotated[
        str,
        AfterValidator(_without_nul),
        Path(
            min_length=1,
            max_length=MAX_PATH_CHARS,
            description="From the root of the repository.",
            examples=["src/app.py"],
        ),
    ],
    "repository": Annotated[
        str, Path(min_length=1, max_length=MAX_NAME_CHARS, description="Its name, or its id if it has no name.")
    ],
    "repository_id": Annotated[str, Path(min_length=1, max_length=100)],
}
_SLASHED = ("name", "group", "path", "repository")
"""Placeholders whose values may have slashes."""


class Waiting(Arguments):
    wait: float = Field(
        0,
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for the end of the run, which is then the response.",
    )


class RemovalWaiting(Waiting):
    wait: float = Field(
        REMOVAL_WAIT_SECONDS,
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait until the removal is recorded: then the response is 200, and the name is free.",
    )


def add_operation(
    routes: APIRouter,
    parts: ApiParts,
    operation: Operation[Any, Any],
    *,
    act: Callable[..., Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    examples: Mapping[str, Any] | None = None,
    respond: Callable[[Request, Any], Response] | None = None,
    **options: Any,
) -> None:
    """A route that answers with the document of the operation. One that answers with a run can wait for its end.

    `act`: what is called in place of the operation, with the values of `extra` (annotations as FastAPI reads them).
    `examples`: of the body, by title. `respond`: makes the response of the document, such as `with_etag`. `options`: of
    FastAPI's route."""
    perform = act or operation
    waiting = None
    if operation.method != "GET" and issubclass(operation.answer, Run):
        waiting = RemovalWaiting if operation.method == "DELETE" else Waiting
        ended = {"model": operation.answer, "description": "The run, which has ended"}
        options = {"status_code": 202, "responses": {200: ended}, **options}
    elif respond is not None:
        options = {"responses": ETAG_ANSWERS, **options}

    async def handle(request: Request, response: Response, query: Any, body: Any = None, **named: Any) -> Any:
        app, actor = parts.application(), actor_of(request)
        asked = body or (query if isinstance(query, operation.arguments) else operation.arguments())
        document = await perform(app, actor, asked, **named)
        if respond is not None:
            return respond(request, document)
        if isinstance(query, Waiting):
            ended = await _end_of(app, request, document.id, query.wait) if query.wait else None
            if ended is not None:
                document = ended if operation.answer is Run else await get_run(app, actor, NOTHING, run_id=ended.id)
            response.status_code = 200 if document.is_final else 202
        if isinstance(document, RepositoryDetail):
            response.headers["ETag"] = etag_of(document, document.version)
        if operation.method in ("POST", "DELETE") and (path := _path_of(document)):
            response.headers["Location"] = f"{request.scope.get('root_path', '')}{PREFIX}{path}"
        return document

    handle.__signature__ = _signature(operation, waiting, extra or {}, examples or {})  # type: ignore[attr-defined]
    routes.add_api_route(
        _path_template(operation),
        handle,
        methods=[operation.method],
        response_model=operation.answer,
        dependencies=[parts.access.requires(operation.rule)],
        **{**_described(operation), **options},
    )


def with_etag(request: Request, document: object) -> Response:
    """The document, or 304 if the client has it already."""
    version = document.version if isinstance(document, RepositoryDetail) else None
    return conditional(request, document, version=version)


def _described(operation: Operation[Any, Any]) -> dict[str, Any]:
    """Name, summary and description of a route, from the docstring of the operation."""
    summary, _, rest = " ".join((inspect.getdoc(operation.act) or "").split()).partition(". ")
    return {"name": operation.name, "summary": summary.rstrip("."), "description": rest or None}


def _path_template(operation: Operation[Any, Any]) -> str:
    path = operation.path
    for placeholder in _SLASHED:
        path = path.replace(f"{{{placeholder}}}", f"{{{placeholder}:path}}")
    return path


def _path_of(document: object) -> str | None:
    """Where the run or repository is shown, below the prefix."""
    match document:
        case Run():
            return f"/runs/{document.id}"
        case RepositoryDetail():
            return f"/repositories/{path_of(document.name)}"
    return None


def _signature(
    operation: Operation[Any, Any], waiting: type[Waiting] | None, extra: Mapping[str, Any], examples: Mapping[str, Any]
) -> inspect.Signature:
    """From it FastAPI reads what a request has to have. A body may be omitted if nothing in it is required; an unknown
    key of the query is an error."""
    has_body = operation.method not in ("GET", "DELETE") and operation.arguments is not NoArguments
    named = {key: kind for key, kind in PLACEHOLDERS.items() if f"{{{key}}}" in operation.path}
    query = waiting or (NoArguments if has_body else operation.arguments)
    kinds = {"request": Request, "response": Response, **named, "query": Annotated[query, Query()], **extra}
    parameters = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[key]) for key in kinds]
    if has_body:
        body: Any = Body(openapi_examples={title: {"value": value} for title, value in examples.items()} or None)
        is_required = any(field.is_required() for field in operation.arguments.model_fields.values())
        kind: Any = operation.arguments
        if not is_required:
            # Null is accepted too, and not described: of a body that may be null, generators of clients make one that
            # is sent if it is omitted.
            kind = Annotated[kind, BeforeValidator(lambda value: {} if value is None else value)]
        default = inspect.Parameter.empty if is_required else None
        parameters.append(
            inspect.Parameter("body", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, body], default=default)
        )
    return inspect.Signature(parameters)


async def _end_of(app: Application, request: Request, run_id: str, seconds: float) -> Run | None:
    """The run when it has ended; None if it has not within `seconds`, if the client disconnects or the server shuts
    down first, or if this pod has too many watchers: the run is queued, and the response says how to follow it."""
    stopping = stopping_of(request)
    with contextlib.suppress(TimeoutError, TooManyWatchers, RunNotFound):
        async with asyncio.timeout(seconds), following(app, actor_of(request), run_id) as follower:
            while not stopping.is_set() and not await request.is_disconnected():
                with contextlib.suppress(StoreUnavailable):  # it may be available again in time
                    run = await follower.look()
                    if run is None or run.is_final:
                        return run
                await pause(stopping, follower.pause_seconds)
    return None
