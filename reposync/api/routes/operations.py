"""Routes that are their operations: `/api/v1/repositories`, `/runs`, `/search` and the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response

from reposync.api.errors import ShuttingDown
from reposync.api.etags import ETAG_ANSWERS, conditional, conditional_body, versions_of
from reposync.api.explaining import explaining
from reposync.api.operating import add_operation, with_etag
from reposync.api.routing import ApiParts, Router
from reposync.api.server import stopping_of
from reposync.operations import (
    access,
    audit,
    evaluation,
    groups,
    index,
    repositories,
    runs,
    search,
    secrets,
    status,
    syncs,
)
from reposync.operations.core import Operation
from reposync.operations.paths import PREFIX

_NEW: Mapping[str, Any] = {
    "a project of a GitLab server": {"name": "platform/payments-api", "gitlab": "main", "project": "platform/api"},
    "a public git repository": {"name": "handbook", "git": "https://example.com/handbook.git", "include": ["*.md"]},
}
_CHANGES: Mapping[str, Any] = {
    "pause": {"is_active": False, "paused_reason": "migration until Friday"},
    "a different schedule, and the default branch again": {"schedule": "daily at 03:00", "branch": None},
}
_TEXT: dict[int | str, dict[str, Any]] = {
    **ETAG_ANSWERS,
    200: {
        "description": "`Accept: text/plain` returns the text alone",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    },
}
# Searches first: each route before the one of a request costs it 5 microseconds.
_OPERATIONS: Mapping[str, tuple[Operation[Any, Any], ...]] = {
    "search": (search.search, search.grep, search.search_text, evaluation.evaluate, search.read),
    "repositories": (
        repositories.list_repositories,
        repositories.register,
        syncs.sync,
        syncs.repair,
        repositories.adopt,
        syncs.verify,
        search.outline,
        index.repository_index,
        evaluation.evaluate_history,
        evaluation.evaluations,
        secrets.repository_secrets,
        secrets.purge,
        syncs.wait,
        repositories.get_repository,
        repositories.put_repository,
        repositories.change,
        repositories.remove,
    ),
    "groups": (groups.list_groups, groups.put_group, groups.remove_group),
    "runs": (
        *(runs.history, runs.get_run, runs.problems, runs.changes, runs.log_lines),
        *(runs.retry_failed, runs.cancel, runs.approve, runs.retry),
    ),
    "status": (status.status,),
    "index": (
        index.indexes,
        syncs.leftovers,
        syncs.remove_leftovers,
        syncs.plan,
        syncs.targets,
        syncs.discover,
        syncs.sync_target,
    ),
    "secrets": (secrets.found_secrets,),
    "access": (access.access,),
    "audit": (audit.audit,),
    "locks": (index.locks, index.release),
    "workers": (index.workers,),
}
_WITH_ETAG = (
    *(repositories.list_repositories, repositories.get_repository, index.repository_index, index.indexes),
    *(runs.history, runs.get_run, runs.problems, runs.changes, runs.log_lines),
)
"""Documents that clients request again and again."""


def operation_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX)
    options: dict[str, dict[str, Any]] = {operation.name: {"respond": with_etag} for operation in _WITH_ETAG}
    options["register"] = {"status_code": 201, "examples": _NEW}
    options["put_repository"] = {"examples": _NEW}
    options["change"] = {
        "act": repositories.change_if,
        "extra": {"versions": Annotated[frozenset[str] | None, Depends(_versions)]},
        "examples": _CHANGES,
    }
    options["wait"] = {
        "act": syncs.wait_while_wanted,
        "extra": {"is_wanted": Annotated[Callable[[], Awaitable[bool]], Depends(_is_wanted)]},
    }

    async def explain(request: Request) -> access.Explain:
        return explaining(parts, request)

    options["access"] = {
        "act": access.explained_access,
        "extra": {"explain": Annotated[Any, Depends(explain)]},
    }
    options["retry_failed"] = {"status_code": 202}
    options["read"] = {"respond": _text_or_lines, "responses": _TEXT}
    for tag, operations in _OPERATIONS.items():
        for operation in operations:
            add_operation(routes, parts, operation, tags=[tag], **options.get(operation.name, {}))
    return routes


async def _versions(
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            max_length=1_000,
            description="Change it only if nobody has changed it since the response with this ETag; syncs do not "
            "count.",
        ),
    ] = None,
) -> frozenset[str] | None:
    return None if if_match is None else versions_of(if_match)


async def _is_wanted(request: Request) -> Callable[[], Awaitable[bool]]:
    """Whether the client still waits. Raises ShuttingDown."""
    stopping = stopping_of(request)

    async def is_wanted() -> bool:
        if stopping.is_set():
            raise ShuttingDown
        return not await request.is_disconnected()

    return is_wanted


def _text_or_lines(request: Request, file: search.FileLines) -> Response:
    kinds = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    if "text/plain" in kinds and "application/json" not in kinds:
        response = conditional_body(request, file.text.encode(), "text/plain; charset=utf-8")
    else:
        response = conditional(request, file)
    response.headers["Vary"] += ", Accept"
    return response
