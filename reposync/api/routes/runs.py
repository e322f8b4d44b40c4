"""`/api/v1/runs`: the execution history, one run, and what a person may do with it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from reposync.api.access import Role
from reposync.api.answers import CHANGING, errors
from reposync.api.conditional import ETAG_HEADER, NOT_MODIFIED, conditional
from reposync.api.cursors import cursor_after, key_before
from reposync.api.documents import run_detail, run_documents
from reposync.api.models import (
    NoFilters,
    ProblemFilters,
    ProblemPage,
    RunDetail,
    RunFilters,
    RunPage,
    RunShown,
)
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.app.application import Application
from reposync.errors import Remedy, RepositoryNotFound, RunAmbiguous, RunNotFound, RunStateConflict, UsageError
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger

PREFIX = "/api/v1"
_ID_CHARS = 36

RunIdBeginning = Annotated[
    str, Path(max_length=_ID_CHARS, description="Id of the run; a beginning that no other run has will do.")
]
RunId = Annotated[str, Path(max_length=_ID_CHARS, description="Id of the run, all of it.")]

LOCATION = {"Location": {"schema": {"type": "string"}, "description": "Where the run can be followed."}}


def run_path(request: Request, run_id: str) -> str:
    """The address of a run, below the path at which a proxy shows this server."""
    return f"{request.scope.get('root_path', '')}{PREFIX}/runs/{run_id}"


def run_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"])
    reads = [parts.access.requires(Role.READ)]
    operates = [parts.access.requires(Role.OPERATE)]

    @routes.get(
        "/runs",
        summary="The execution history, newest first",
        description="Filters narrow each other. Pages do not shift while runs are added: `next_cursor` is a place in "
        "the history, and not a number of a page.",
        dependencies=reads,
        response_model=RunPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RepositoryNotFound, UsageError)},
    )
    async def list_runs(request: Request, filters: Annotated[RunFilters, Query()]) -> Response:
        runs = parts.application().runs
        found = await runs.history(
            filters.repository,
            filters.status or None,
            # One more than is shown tells whether there is another page.
            filters.limit + 1,
            filters.cursor,
            trigger=filters.trigger,
            since=filters.since,
            until=filters.until,
        )
        if not found and filters.repository is not None:
            await runs.require_known(filters.repository)
        shown = found[: filters.limit]
        next_cursor = shown[-1].cursor if len(found) > len(shown) else None
        items = [RunShown(**each) for each in await run_documents(runs, shown)]
        return conditional(request, RunPage(items=items, next_cursor=next_cursor))

    @routes.get(
        "/runs/{run_id}",
        summary="One run, with its attempts and the first of its problems",
        dependencies=reads,
        response_model=RunDetail,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RunNotFound, RunAmbiguous)},
    )
    async def get_run(request: Request, run_id: RunIdBeginning, _: Annotated[NoFilters, Query()]) -> Response:
        runs = parts.application().runs
        return conditional(request, await _detail(runs, await runs.get(run_id)))

    @routes.get(
        "/runs/{run_id}/problems",
        summary="The files that a run skipped or failed on, with the reason",
        dependencies=reads,
        response_model=ProblemPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RunNotFound, RunAmbiguous, UsageError)},
    )
    async def list_problems(
        request: Request, run_id: RunIdBeginning, filters: Annotated[ProblemFilters, Query()]
    ) -> Response:
        after = None if filters.cursor is None else key_before(filters.cursor)
        runs = parts.application().runs
        run = await runs.get(run_id)
        return conditional(request, await _problems(runs, run, filters.limit, after, filters.reason))

    @routes.post(
        "/runs/{run_id}/cancel",
        summary="Ask a run to end",
        description="One that waits or is blocked ends at once (200). A running one ends at its worker's next "
        "heartbeat (202). One that ended stays as it is (200). What was stored stays, and the next run goes on there.",
        dependencies=operates,
        responses={
            202: {"model": RunDetail, "description": "It is told at its worker's next heartbeat"},
            **errors(RunNotFound, *CHANGING),
        },
    )
    async def cancel_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> RunDetail:
        runs = parts.application().runs
        run = await runs.request_cancel(whole_id(run_id), by=parts.access.name_of(request))
        response.status_code = 200 if run.is_final else 202
        return await _detail(runs, run)

    @routes.post(
        "/runs/{run_id}/approve",
        summary="Allow a blocked run what it stopped at, and queue it again",
        dependencies=operates,
        status_code=202,
        responses={202: {"headers": LOCATION}, **errors(RunNotFound, RepositoryNotFound, RunStateConflict, *CHANGING)},
    )
    async def approve_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> RunDetail:
        app = parts.application()
        run = await app.runs.approve(whole_id(run_id), **_again(app, request))
        response.headers["Location"] = run_path(request, run.id)
        return await _detail(app.runs, run)

    @routes.post(
        "/runs/{run_id}/retry",
        summary="Send a run that failed or was cancelled back into the queue",
        dependencies=operates,
        status_code=202,
        responses={202: {"headers": LOCATION}, **errors(RunNotFound, RepositoryNotFound, RunStateConflict, *CHANGING)},
    )
    async def retry_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> RunDetail:
        app = parts.application()
        run = await app.runs.retry(whole_id(run_id), **_again(app, request))
        response.headers["Location"] = run_path(request, run.id)
        return await _detail(app.runs, run)

    def _again(app: Application, request: Request) -> dict[str, Any]:
        attempts = app.configuration.registry.daemon.max_attempts
        return {"by": parts.access.name_of(request), "trigger": RunTrigger.HTTP, "max_attempts": attempts}

    return routes


async def _detail(runs: Runs, run: Run) -> RunDetail:
    return RunDetail(**await run_detail(runs, run))


async def _problems(runs: Runs, run: Run, limit: int, after: str | None, reason: str | None) -> ProblemPage:
    found = await runs.problems(run.id, limit + 1, after=after, reason=reason)
    shown = found[:limit]
    next_cursor = cursor_after(shown[-1].path) if len(found) > len(shown) else None
    return ProblemPage(items=shown, next_cursor=next_cursor)


def whole_id(run_id: str) -> str:
    """A beginning, which is fine for looking at a run, may be another run's by the time it is acted on. Raises
    RunNotFound."""
    if len(run_id.strip()) != _ID_CHARS:
        raise RunNotFound(
            f"{run_id!r} is no whole id of a run, which it takes to change one.",
            remedy=Remedy(
                "`reposync runs show ID` takes a beginning, and shows the whole id.",
                "`GET /api/v1/runs/ID` takes a beginning, and answers with the whole id.",
            ),
        )
    return run_id
