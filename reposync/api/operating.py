"""Routes made from operations: the path, the arguments and the document of a route are those of its operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Body, Path, Query, Request
from pydantic import AfterValidator

from reposync.api.auth import actor_of
from reposync.api.etags import ETAG_ANSWERS, conditional
from reposync.api.routing import ApiParts, RepositoryName
from reposync.operations.core import NoArguments, Operation
from reposync.operations.fields import MAX_NAME_CHARS, MAX_PATH_CHARS

_ID_CHARS = 36


def _without_nul(path: str) -> str:
    """Git allows every character but this one in a path, and databases too."""
    if "\0" in path:
        raise ValueError("must not contain NUL")
    return path


RunId: TypeAlias = Annotated[
    str, Path(max_length=_ID_CHARS, description="Id of the run; to show it, a unique prefix of it is enough.")
]
FilePath: TypeAlias = Annotated[
    str,
    AfterValidator(_without_nul),
    Path(
        min_length=1, max_length=MAX_PATH_CHARS, description="From the root of the repository.", examples=["src/app.py"]
    ),
]
PLACEHOLDERS: Mapping[str, Any] = {
    "name": RepositoryName,
    "run_id": RunId,
    "path": FilePath,
    "repository": Annotated[
        str, Path(min_length=1, max_length=MAX_NAME_CHARS, description="Its name, or its id if it has no name.")
    ],
    "repository_id": Annotated[str, Path(min_length=1, max_length=100)],
}
_SLASHED = ("name", "path", "repository")
"""Placeholders whose values may have slashes."""


def described(operation: Operation[Any, Any]) -> dict[str, Any]:
    """Name, summary and description of a route, from the docstring of the operation."""
    summary, _, rest = " ".join((inspect.getdoc(operation.act) or "").split()).partition(". ")
    return {"name": operation.name, "summary": summary.rstrip("."), "description": rest or None}


def path_template(operation: Operation[Any, Any]) -> str:
    path = operation.path
    for placeholder in _SLASHED:
        path = path.replace(f"{{{placeholder}}}", f"{{{placeholder}:path}}")
    return path


def add_operation(
    routes: APIRouter, parts: ApiParts, operation: Operation[Any, Any], *, has_etag: bool = False, **options: Any
) -> None:
    """A route that answers with the document of the operation; `has_etag`: on condition that it has changed. `options`:
    of FastAPI's route."""

    async def handle(request: Request, arguments: Any, **named: str) -> Any:
        document = await operation(parts.application(), actor_of(request), arguments or operation.arguments(), **named)
        return conditional(request, document) if has_etag else document

    _annotate(handle, operation)
    routes.add_api_route(
        path_template(operation),
        handle,
        methods=[operation.method],
        response_model=operation.answer,
        dependencies=[parts.access.requires(operation.role)],
        **{**described(operation), **({"responses": ETAG_ANSWERS} if has_etag else {}), **options},
    )


def _annotate(handle: Callable[..., Any], operation: Operation[Any, Any]) -> None:
    """FastAPI reads from the signature what a request has to have. A body
    may be omitted if nothing in it is required."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [
        inspect.Parameter(placeholder, keyword, annotation=annotation)
        for placeholder, annotation in PLACEHOLDERS.items()
        if f"{{{placeholder}}}" in operation.path
    ]
    is_body = operation.method not in ("GET", "DELETE") and operation.arguments is not NoArguments
    is_optional = is_body and not operation.arguments.model_json_schema().get("required")
    kind: Any = operation.arguments | None if is_optional else operation.arguments
    arguments = inspect.Parameter(
        "arguments",
        keyword,
        annotation=Annotated[kind, Body() if is_body else Query()],
        default=None if is_optional else inspect.Parameter.empty,
    )
    request = inspect.Parameter("request", keyword, annotation=Request)
    handle.__signature__ = inspect.Signature([request, *named, arguments])  # type: ignore[attr-defined]
