"""`/api/v1/repositories`: registering, changing and removing repositories, and requesting their syncs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import Field

from reposync.api.auth import actor_of
from reposync.api.errors import ShuttingDown
from reposync.api.etags import ETAG_ANSWERS, conditional, etag_of, versions_of
from reposync.api.operating import add_operation, described
from reposync.api.routes.runs import end_of, run_path
from reposync.api.routing import ApiParts, RepositoryName, Router
from reposync.api.server import stopping_of
from reposync.errors import NotSearchableYet
from reposync.operations import index, repositories, search, syncs
from reposync.operations.core import NOTHING, Arguments, NoArguments
from reposync.operations.paths import PREFIX, path_of
from reposync.operations.repositories import RepositoryDetail
from reposync.operations.runs import Run

NoQuery = Annotated[NoArguments, Query()]
"""Of routes without a query string."""

REMOVAL_WAIT_SECONDS = 60.0
_EXAMPLES: dict[str, Any] = {
    "a project of a GitLab server": {"name": "platform/payments-api", "gitlab": "main", "project": "platform/api"},
    "a public git repository": {"name": "handbook", "git": "https://example.com/handbook.git", "include": ["*.md"]},
}
_CHANGES: dict[str, Any] = {
    "pause": {"is_active": False, "paused_reason": "migration until Friday"},
    "a different schedule, and the default branch again": {"schedule": "daily at 03:00", "branch": None},
}
NewRepository = Annotated[
    repositories.NewRepository,
    Body(openapi_examples={title: {"value": value} for title, value in _EXAMPLES.items()}),
]
Change = Annotated[
    repositories.Change, Body(openapi_examples={title: {"value": value} for title, value in _CHANGES.items()})
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1_000,
        description="Change it only if nobody has changed it since the response with this ETag; syncs do not count.",
    ),
]


class Waiting(Arguments):
    wait: float = Field(
        0,
        ge=0,
        le=syncs.MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for the end of the run, which is then the response.",
    )


class RemovalWaiting(Waiting):
    wait: float = Field(
        REMOVAL_WAIT_SECONDS,
        ge=0,
        le=syncs.MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait until the removal is recorded: then the response is 200, and the name is free.",
    )


_RUN_ENDED: dict[int | str, dict[str, Any]] = {200: {"model": Run, "description": "The run, which ended within `wait`"}}


def repository_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["repositories"])
    readers, operators = parts.readers, parts.operators

    async def run_response(request: Request, response: Response, run: Run, wait: float) -> Run:
        """The requested run, or its end if that comes within `wait` seconds."""
        response.headers["Location"] = run_path(request, run.id)
        ended = await end_of(parts.application(), request, run.id, wait) if wait else None
        if ended is None:
            return run
        response.status_code = 200
        return Run.model_validate(ended.model_dump())

    def shown(response: Response, repository: RepositoryDetail) -> RepositoryDetail:
        response.headers["ETag"] = etag_of(repository, repository.version)
        return repository

    add_operation(routes, parts, repositories.list_repositories, has_etag=True)

    @routes.post("/repositories", status_code=201, dependencies=operators, **described(repositories.register))
    async def register(request: Request, response: Response, definition: NewRepository, _: NoQuery) -> RepositoryDetail:
        repository = await repositories.register(parts.application(), actor_of(request), definition)
        root = request.scope.get("root_path", "")
        response.headers["Location"] = f"{root}{PREFIX}/repositories/{path_of(repository.name)}"
        return shown(response, repository)

    @routes.post(
        "/repositories/{name:path}/sync",
        status_code=202,
        dependencies=operators,
        responses=_RUN_ENDED,
        **described(syncs.sync),
    )
    async def sync(
        request: Request,
        response: Response,
        name: RepositoryName,
        waiting: Annotated[Waiting, Query()],
        options: Annotated[syncs.SyncOptions | None, Body()] = None,
    ) -> Run:
        run = await syncs.sync(parts.application(), actor_of(request), options or syncs.SyncOptions(), name=name)
        return await run_response(request, response, run, waiting.wait)

    for operation in (syncs.repair, repositories.adopt, syncs.verify, search.outline):
        add_operation(routes, parts, operation, status_code=202 if operation.executes else 200)
    add_operation(routes, parts, index.repository_index, has_etag=True)

    @routes.get("/repositories/{name:path}/wait", dependencies=readers, **described(syncs.wait))
    async def wait_for_commit(
        request: Request, name: RepositoryName, query: Annotated[syncs.WaitFor, Query()]
    ) -> syncs.CommitState:
        stopping = stopping_of(request)

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await request.is_disconnected()

        try:
            return await syncs.wait_while_wanted(parts.application(), actor_of(request), query, name, is_wanted)
        except NotSearchableYet:
            if stopping.is_set():
                raise ShuttingDown from None
            raise

    @routes.get(
        "/repositories/{name:path}",
        response_model=RepositoryDetail,
        dependencies=readers,
        responses=ETAG_ANSWERS,
        **described(repositories.get_repository),
    )
    async def get_repository(request: Request, name: RepositoryName, _: NoQuery) -> Response:
        repository = await repositories.get_repository(parts.application(), actor_of(request), NOTHING, name=name)
        return conditional(request, repository, version=repository.version)

    @routes.put("/repositories/{name:path}", dependencies=operators, **described(repositories.put_repository))
    async def put_repository(
        request: Request, response: Response, name: RepositoryName, definition: NewRepository, _: NoQuery
    ) -> RepositoryDetail:
        app, actor = parts.application(), actor_of(request)
        return shown(response, await repositories.put_repository(app, actor, definition, name=name))

    @routes.patch("/repositories/{name:path}", dependencies=operators, **described(repositories.change))
    async def patch_repository(
        request: Request,
        response: Response,
        name: RepositoryName,
        changes: Change,
        _: NoQuery,
        if_match: IfMatch = None,
    ) -> RepositoryDetail:
        app, actor = parts.application(), actor_of(request)
        versions = None if if_match is None else versions_of(if_match)
        return shown(response, await repositories.change_if(app, actor, changes, name, versions))

    @routes.delete(
        "/repositories/{name:path}",
        status_code=202,
        dependencies=operators,
        responses=_RUN_ENDED,
        **described(repositories.remove),
    )
    async def remove_repository(
        request: Request, response: Response, name: RepositoryName, waiting: Annotated[RemovalWaiting, Query()]
    ) -> Run:
        run = await repositories.remove(parts.application(), actor_of(request), NOTHING, name=name)
        return await run_response(request, response, run, waiting.wait)

    return routes
