"""`/api/v1/repositories`: registering, changing and removing repositories, and requesting their syncs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from pydantic_core import to_jsonable_python

from reposync.api.auth import admitted
from reposync.api.documents import page_of_names, run_document
from reposync.api.errors import NotSearchableYet, ShuttingDown
from reposync.api.etags import ETAG_ANSWERS, conditional, etag_of, is_current
from reposync.api.hosts import check_source
from reposync.api.models import (
    CHANGEABLE,
    IDENTITY,
    MAX_WAIT_SECONDS,
    NOT_OVER_HTTP,
    NewRepository,
    NoQuery,
    Pause,
    RepositoryChange,
    RepositoryFilters,
    RepositoryPage,
    RequestModel,
    RunOut,
    SyncRequest,
    Waiting,
)
from reposync.api.routes.runs import end_of, run_path
from reposync.api.routing import PREFIX, ApiParts, RepositoryName, Router, path_of
from reposync.api.server import stopping_of
from reposync.app.commit_wait import CommitState, SearchableCommits
from reposync.catalog.overview import RepositoryDetail, overviews, repository_detail
from reposync.catalog.targets import add_repository, change_repository, request_removal, syncable
from reposync.config.loading import checked_repository
from reposync.errors import ConfigError, RepositoryChanged
from reposync.store.notifications import RowWatch
from reposync.store.repository import Repository
from reposync.store.run import IN_ADVANCE, Ask, Run
from reposync.store.status import RunTrigger
from reposync.words import suggestion

HTTP = "http"
"""The origin of repositories that are registered here."""
MAX_KEY_CHARS = 200

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=1_000,
        description="Change it only if nobody has changed it since the response with this ETag.",
    ),
]

_RUN_ENDED: dict[int | str, dict[str, Any]] = {
    200: {"model": RunOut, "description": "The run, which ended within `wait`"}
}


MAX_WAITING = 200

_DESCRIPTION = """\
Responds with 200 as soon as the index holds exactly `commit`, or a descendant of it; a commit counts from the end of \
its sync. It triggers nothing: `POST .../sync` does. **Plain git servers cannot compare commits**: the indexed commit \
itself counts, and a run that began after the request (`relation` is then `later`)."""


class WaitQuery(RequestModel):
    commit: str = Field(
        pattern="^[0-9a-fA-F]{7,64}$",
        description="Its name, or a unique prefix of at least 7 digits.",
        examples=["8843d7f"],
    )
    timeout: float = Field(
        30.0, ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="Seconds; 0 returns the current state."
    )


def repository_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["repositories"], dependencies=parts.readers)

    async def fetch(ids: Collection[str]) -> dict[str, Run]:
        return await parts.application().history.by_ids(ids)

    following = RowWatch(fetch)

    async def run_response(request: Request, response: Response, run: dict[str, Any], wait: float) -> dict[str, Any]:
        """The requested run, or its end if that comes within `wait` seconds."""
        response.headers["Location"] = run_path(request, run["id"])
        ended = await end_of(following, request, run["id"], wait) if wait else None
        if ended is None:
            return run
        response.status_code = 200
        return run_document(parts.application().history, ended)

    async def detail(name: str) -> tuple[RepositoryDetail, Repository]:
        app = parts.application()
        return await repository_detail(app.repositories, app.manifests, app.history, name)

    @routes.get(
        "/repositories",
        summary="The registered repositories, by name",
        response_model=RepositoryPage,
        responses=ETAG_ANSWERS,
    )
    async def list_repositories(request: Request, filters: Annotated[RepositoryFilters, Query()]) -> Response:
        app = parts.application()
        states = {row.name: row.state for row in await app.repositories.states()}
        of_state = [name for name, state in states.items() if filters.state in (None, state)]
        names, next_cursor = page_of_names(of_state, filters.limit, filters.cursor, filters.name)
        items = await overviews(app.repositories, app.manifests, app.history, names) if names else []
        return conditional(request, {"items": items, "next_cursor": next_cursor})

    @routes.post(
        "/repositories",
        summary="Register a repository",
        description="Takes the keys of an entry under `repositories` of the registry file, with the same validation; "
        "but `${VARIABLE}` is plain text here, and passwords are refused. Folders of the server, and addresses outside "
        "the public internet, are refused unless the operator allows them. It is synced within seconds.",
        status_code=201,
        dependencies=parts.operators,
    )
    async def register_repository(
        request: Request, response: Response, definition: NewRepository, _: NoQuery
    ) -> RepositoryDetail:
        app = parts.application()
        for key in NOT_OVER_HTTP & definition.keys():
            raise ConfigError(f"`{key}` cannot be set over HTTP.", remedy="The registry file can have it.")
        registry = app.configuration.registry
        resolved = checked_repository(registry, definition)
        await check_source(resolved, allow_local=registry.http.allow_local_sources)
        row = await add_repository(app.catalog, definition, origin=HTTP)
        root = request.scope.get("root_path", "")
        response.headers["Location"] = f"{root}{PREFIX}/repositories/{path_of(row.name)}"
        shown, row = await detail(row.name)
        response.headers["ETag"] = etag_of(shown, row.changeable)
        return shown

    @routes.post(
        "/repositories/{name:path}/sync",
        summary="Request a sync",
        description="Responds at once with the run that does it. A run that is already queued is returned, and no "
        "second one is queued; a running one is followed by a new one. `wait` waits for the end.",
        status_code=202,
        response_model=RunOut,
        dependencies=parts.operators,
        responses=_RUN_ENDED,
    )
    async def sync_repository(
        request: Request,
        response: Response,
        name: RepositoryName,
        waiting: Annotated[Waiting, Query()],
        options: Annotated[SyncRequest | None, Body()] = None,
    ) -> dict[str, Any]:
        app = parts.application()
        options = options or SyncRequest()
        row = await syncable(app.repositories, name)
        approval = IN_ADVANCE if options.allow_mass_delete else None
        attempts = app.configuration.registry.daemon.max_attempts
        by = admitted(request).name
        ask = Ask(RunTrigger.HTTP, by, full=options.full, approval=approval, max_attempts=attempts)
        run, _ = await app.runs.enqueue(row.name, ask)
        return await run_response(request, response, run_document(app.history, run), waiting.wait)

    @routes.get(
        "/repositories/{name:path}", summary="One repository", response_model=RepositoryDetail, responses=ETAG_ANSWERS
    )
    async def get_repository(request: Request, name: RepositoryName, _: NoQuery) -> Response:
        shown, row = await detail(name)
        return conditional(request, shown, version=row.changeable)

    @routes.patch(
        "/repositories/{name:path}",
        summary="Pause or resume a repository, or change its definition",
        description="Omitted keys stay unchanged; null restores the default. A repository of the registry file or of a "
        "group can be paused and resumed here; everything else is changed in the file. Concurrent changes of different "
        "keys do not undo each other. With `If-Match`, the ETag of an earlier response, it is changed only if nobody "
        "has changed it since; syncs do not count.",
        dependencies=parts.operators,
    )
    async def patch_repository(
        request: Request,
        response: Response,
        name: RepositoryName,
        changes: RepositoryChange,
        _: NoQuery,
        if_match: IfMatch = None,
    ) -> RepositoryDetail:
        app = parts.application()
        pause, definition = _split(changes)
        # The repository as the client knows it.
        expected = None if if_match is None else await app.repositories.get(name)
        if expected is not None and not is_current(if_match or "", expected.changeable):
            raise RepositoryChanged(
                f"{name!r} was changed since the ETag in If-Match; nothing was written.", remedy="Read it again."
            )
        if definition:
            changed = await change_repository(app.catalog, name, definition, expected=expected)
            expected = changed if expected is not None else None
        if pause.is_active is False:
            reason = pause.paused_reason or "Paused over HTTP."
            await app.repositories.pause(name, reason, expected=expected, by=admitted(request).name)
        elif pause.is_active:
            await app.repositories.resume(name, expected=expected)
        shown, row = await detail(name)
        response.headers["ETag"] = etag_of(shown, row.changeable)
        return shown

    @routes.delete(
        "/repositories/{name:path}",
        summary="Remove a repository with its index",
        description="A run does it, after the current one has ended. Its history stays.",
        status_code=202,
        response_model=RunOut,
        dependencies=parts.operators,
        responses=_RUN_ENDED,
    )
    async def remove_repository(
        request: Request, response: Response, name: RepositoryName, waiting: Annotated[Waiting, Query()]
    ) -> dict[str, Any]:
        app = parts.application()
        ask = Ask(RunTrigger.HTTP, admitted(request).name, removal=True)
        run = await request_removal(app.repositories, app.runs, name, ask)
        return await run_response(request, response, run_document(app.history, run), waiting.wait)

    commits = SearchableCommits(parts.application, max_waiting=MAX_WAITING)

    @routes.get(
        "/repositories/{name:path}/wait", summary="Wait until a commit can be searched", description=_DESCRIPTION
    )
    async def wait_for_commit(
        request: Request, name: RepositoryName, query: Annotated[WaitQuery, Query()]
    ) -> CommitState:
        stopping = stopping_of(request)

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await request.is_disconnected()

        found = await commits.wait(
            name,
            query.commit.lower(),
            query.timeout,
            is_wanted=is_wanted,
            client=admitted(request).credential,
        )
        state = replace(found, commit=query.commit)
        if state.relation is None:
            if stopping.is_set():
                raise ShuttingDown
            why = await commits.explained(name, state)
            details = {**asdict(state), "limit": why.limit, "run": why.run and why.run.document}
            raise NotSearchableYet(why.text, to_jsonable_python(details))
        return state

    return routes


def _split(changes: Mapping[str, Any]) -> tuple[Pause, dict[str, Any]]:
    """What pauses or resumes, and what changes the definition. Raises ConfigError for a key that cannot be changed,
    RequestValidationError for an invalid value."""
    known = CHANGEABLE | Pause.model_fields.keys()
    for key in changes:
        if key in IDENTITY | NOT_OVER_HTTP:
            raise ConfigError(f"`{key}` cannot be changed.", remedy="Register a new repository.")
        if key not in known:
            message = f"unknown key `{key[:MAX_KEY_CHARS]}`{suggestion(key, known)}"
            raise ConfigError(message if message.endswith("?") else f"{message}.")
    try:
        pause = Pause.model_validate({key: value for key, value in changes.items() if key in Pause.model_fields})
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    if pause.paused_reason is not None and pause.is_active is not False:
        raise ConfigError("`paused_reason` requires `is_active: false`.")
    return pause, {key: value for key, value in changes.items() if key in CHANGEABLE}
