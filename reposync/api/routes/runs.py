"""`/api/v1/runs`: the execution history, single runs, and what can be done with them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from reposync.api.auth import Role
from reposync.api.dependencies import ApiParts
from reposync.api.documents import cursor_after, key_before, run_detail, run_documents
from reposync.api.errors import CHANGING, errors
from reposync.api.etags import ETAG_HEADER, NOT_MODIFIED, conditional
from reposync.api.models import NoFilters, ProblemFilters, ProblemPage, RunDetail, RunFilters, RunPage
from reposync.api.routing import PREFIX, Router
from reposync.api.server import stopping_of
from reposync.errors import (
    Remedy,
    RepositoryNotFound,
    RunAmbiguous,
    RunNotFound,
    RunStateConflict,
    StoreUnavailable,
    UsageError,
)
from reposync.store.notifications import RowWatch, TooManyWatchers
from reposync.store.run import Run
from reposync.store.status import RunTrigger

_ID_CHARS = 36

RunIdPrefix = Annotated[str, Path(max_length=_ID_CHARS, description="Id of the run, or a unique prefix of it.")]
RunId = Annotated[str, Path(max_length=_ID_CHARS, description="The whole id of the run.")]

LOCATION = {"Location": {"schema": {"type": "string"}, "description": "Where the run can be followed."}}


def run_path(request: Request, run_id: str) -> str:
    """The path of a run, below the root path."""
    return f"{request.scope.get('root_path', '')}{PREFIX}/runs/{run_id}"


def run_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"])
    reads = [parts.access.requires(Role.READ)]
    operates = [parts.access.requires(Role.OPERATE)]
    again: dict[str, Any] = {
        "dependencies": operates,
        "status_code": 202,
        "response_model": RunDetail,
        "responses": {
            202: {"headers": LOCATION},
            **errors(RunNotFound, RepositoryNotFound, RunStateConflict, *CHANGING),
        },
    }

    @routes.get(
        "/runs",
        summary="The execution history, newest first",
        description="All filters must match. Pages do not shift while runs are added: `next_cursor` is a position in "
        "the history, not a page number.",
        dependencies=reads,
        response_model=RunPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RepositoryNotFound, UsageError)},
    )
    async def list_runs(request: Request, filters: Annotated[RunFilters, Query()]) -> Response:
        runs = parts.application().runs
        found = await runs.history(
            filters.repository,
            filters.status or None,
            # One more than requested shows whether there is another page.
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
        return conditional(request, {"items": await run_documents(runs, shown), "next_cursor": next_cursor})

    @routes.get(
        "/runs/{run_id}",
        summary="One run, with its attempts and its first problems",
        dependencies=reads,
        response_model=RunDetail,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RunNotFound, RunAmbiguous)},
    )
    async def get_run(request: Request, run_id: RunIdPrefix, _: Annotated[NoFilters, Query()]) -> Response:
        runs = parts.application().runs
        return conditional(request, await run_detail(runs, await runs.get(run_id)))

    @routes.get(
        "/runs/{run_id}/problems",
        summary="The files that a run skipped or failed on, with the reason",
        dependencies=reads,
        response_model=ProblemPage,
        responses={200: {"headers": ETAG_HEADER}, **NOT_MODIFIED, **errors(RunNotFound, RunAmbiguous, UsageError)},
    )
    async def list_problems(
        request: Request, run_id: RunIdPrefix, filters: Annotated[ProblemFilters, Query()]
    ) -> Response:
        after = None if filters.cursor is None else key_before(filters.cursor)
        runs = parts.application().runs
        run = await runs.get(run_id)
        found = await runs.problems(run.id, filters.limit + 1, after=after, reason=filters.reason)
        shown = found[: filters.limit]
        next_cursor = cursor_after(shown[-1].path) if len(found) > len(shown) else None
        return conditional(request, {"items": shown, "next_cursor": next_cursor})

    @routes.post(
        "/runs/{run_id}/cancel",
        summary="Cancel a run",
        description="A waiting or blocked run ends at once (200). A running one ends at the next heartbeat of its "
        "worker (202). One that has ended stays unchanged (200). What was stored stays, and the next run continues "
        "from it.",
        dependencies=operates,
        response_model=RunDetail,
        responses={
            202: {"model": RunDetail, "description": "It ends at the next heartbeat of its worker"},
            **errors(RunNotFound, *CHANGING),
        },
    )
    async def cancel_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> dict[str, Any]:
        runs = parts.application().runs
        run = await runs.request_cancel(whole_id(run_id), by=parts.access.name_of(request))
        response.status_code = 200 if run.is_final else 202
        return await run_detail(runs, run)

    @routes.post("/runs/{run_id}/approve", summary="Approve what a blocked run stopped at, and queue it again", **again)
    async def approve_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> dict[str, Any]:
        runs = parts.application().runs
        return await queued(request, response, await runs.approve(whole_id(run_id), **_requested(request)))

    @routes.post("/runs/{run_id}/retry", summary="Queue a failed or cancelled run again", **again)
    async def retry_run(
        request: Request, response: Response, run_id: RunId, _: Annotated[NoFilters, Query()]
    ) -> dict[str, Any]:
        runs = parts.application().runs
        return await queued(request, response, await runs.retry(whole_id(run_id), **_requested(request)))

    def _requested(request: Request) -> dict[str, Any]:
        attempts = parts.application().configuration.registry.daemon.max_attempts
        return {"by": parts.access.name_of(request), "trigger": RunTrigger.HTTP, "max_attempts": attempts}

    async def queued(request: Request, response: Response, run: Run) -> dict[str, Any]:
        response.headers["Location"] = run_path(request, run.id)
        return await run_detail(parts.application().runs, run)

    return routes


def whole_id(run_id: str) -> str:
    """For changes: a prefix may match a different run by the time it is used. Raises RunNotFound."""
    if len(run_id.strip()) != _ID_CHARS:
        raise RunNotFound(
            f"{run_id!r} is not the whole id of a run, which is required to change one.",
            remedy=Remedy(
                "`reposync runs show ID` takes a prefix, and shows the whole id.",
                "`GET /api/v1/runs/ID` takes a prefix, and responds with the whole id.",
            ),
        )
    return run_id


async def end_of(following: RowWatch[Run], request: Request, run_id: str, seconds: float) -> Run | None:
    """The run when it has ended; None if it has not within `seconds`, if the client disconnects or the server shuts
    down first, or if this pod has too many watchers: the run is queued, and the response says how to follow it."""
    stopping = stopping_of(request)
    gone = asyncio.ensure_future(_disconnected(request))
    ending = asyncio.ensure_future(stopping.wait())
    try:
        async with asyncio.timeout(seconds):
            with following.watching(run_id):
                while not gone.done() and not stopping.is_set():
                    try:
                        run = await following.look(run_id)
                    except StoreUnavailable:
                        pass  # it may be available again in time
                    else:
                        if run is None or run.is_final:
                            return run
                    pause = following.pause_seconds
                    await asyncio.wait({gone, ending}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
    except (TimeoutError, TooManyWatchers):
        return None
    finally:
        gone.cancel()
        ending.cancel()
        await asyncio.gather(gone, ending, return_exceptions=True)
    return None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
