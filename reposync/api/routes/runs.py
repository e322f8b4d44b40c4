"""`/api/v1/runs`: the execution history, single runs, and what can be done with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from reposync.api.auth import admitted
from reposync.api.documents import cursor_after, key_before, run_detail, run_documents
from reposync.api.etags import ETAG_ANSWERS, conditional
from reposync.api.models import NoQuery, ProblemFilters, ProblemPage, RunDetail, RunFilters, RunPage
from reposync.api.routing import PREFIX, ApiParts, Router
from reposync.api.server import pause, stopping_of
from reposync.app.application import Application
from reposync.errors import Remedy, RunNotFound, StoreUnavailable
from reposync.store.notifications import RowWatch, TooManyWatchers
from reposync.store.run import Ask, Run
from reposync.store.status import RunTrigger

_ID_CHARS = 36

RunIdPrefix = Annotated[str, Path(max_length=_ID_CHARS, description="Id of the run, or a unique prefix of it.")]
RunId = Annotated[str, Path(max_length=_ID_CHARS, description="The whole id of the run.")]


def run_path(request: Request, run_id: str) -> str:
    """The path of a run, below the root path."""
    return f"{request.scope.get('root_path', '')}{PREFIX}/runs/{run_id}"


def run_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"], dependencies=parts.readers)

    @routes.get(
        "/runs",
        summary="The execution history, newest first",
        description="All filters must match. Pages do not shift while runs are added: `next_cursor` is a position in "
        "the history, not a page number.",
        response_model=RunPage,
        responses=ETAG_ANSWERS,
    )
    async def list_runs(request: Request, filters: Annotated[RunFilters, Query()]) -> Response:
        history = parts.application().history
        wanted = filters.model_dump(exclude={"limit", "cursor"}) | {"status": filters.status or None}
        # One more than requested shows whether there is another page.
        found = await history.runs(**wanted, limit=filters.limit + 1, before=filters.cursor)
        if not found and filters.repository is not None:
            await history.require_known(filters.repository)
        shown = found[: filters.limit]
        next_cursor = shown[-1].cursor if len(found) > len(shown) else None
        return conditional(request, {"items": run_documents(history, shown), "next_cursor": next_cursor})

    @routes.get(
        "/runs/{run_id}",
        summary="One run, with its attempts and its first problems",
        response_model=RunDetail,
        responses=ETAG_ANSWERS,
    )
    async def get_run(request: Request, run_id: RunIdPrefix, _: NoQuery) -> Response:
        history = parts.application().history
        return conditional(request, await run_detail(history, await history.get(run_id)))

    @routes.get(
        "/runs/{run_id}/problems",
        summary="The files that a run skipped or failed on, with the reason",
        response_model=ProblemPage,
        responses=ETAG_ANSWERS,
    )
    async def list_problems(
        request: Request, run_id: RunIdPrefix, filters: Annotated[ProblemFilters, Query()]
    ) -> Response:
        after = None if filters.cursor is None else key_before(filters.cursor)
        history = parts.application().history
        run = await history.get(run_id)
        found = await history.problems(run.id, filters.limit + 1, after=after, reason=filters.reason)
        shown = found[: filters.limit]
        next_cursor = cursor_after(shown[-1].path) if len(found) > len(shown) else None
        return conditional(request, {"items": shown, "next_cursor": next_cursor})

    @routes.post(
        "/runs/{run_id}/cancel",
        summary="Cancel a run",
        description="A waiting or blocked run ends at once (200). A running one ends at the next heartbeat of its "
        "worker (202). One that has ended stays unchanged (200). What was stored stays, and the next run continues "
        "from it.",
        response_model=RunDetail,
        dependencies=parts.operators,
        responses={202: {"model": RunDetail, "description": "It ends at the next heartbeat"}},
    )
    async def cancel_run(request: Request, response: Response, run_id: RunId, _: NoQuery) -> dict[str, Any]:
        run = await act_on_run(parts.application(), "cancel", run_id, admitted(request).name)
        response.status_code = 200 if run.is_final else 202
        return await run_detail(parts.application().history, run)

    def queue_again(action: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def handle(request: Request, response: Response, run_id: RunId, _: NoQuery) -> dict[str, Any]:
            run = await act_on_run(parts.application(), action, run_id, admitted(request).name)
            response.headers["Location"] = run_path(request, run.id)
            return await run_detail(parts.application().history, run)

        return handle

    for action, summary in (
        ("approve", "Approve what a blocked run stopped at, and queue it again"),
        ("retry", "Queue a failed or cancelled run again"),
    ):
        routes.post(
            f"/runs/{{run_id}}/{action}",
            name=f"{action}_run",
            summary=summary,
            status_code=202,
            response_model=RunDetail,
            dependencies=parts.operators,
        )(queue_again(action))

    return routes


async def act_on_run(app: Application, action: str, run_id: str, by: str) -> Run:
    """`cancel`, `approve` or `retry`. Needs the whole id: a prefix may match a different run by the time it is used.
    Raises RunNotFound, RunStateConflict."""
    if len(run_id.strip()) != _ID_CHARS:
        raise RunNotFound(
            f"{run_id!r} is not the whole id of a run, which is required to change one.",
            remedy=Remedy(
                "`reposync runs show ID` takes a prefix, and shows the whole id.",
                "`GET /api/v1/runs/ID` takes a prefix, and responds with the whole id.",
            ),
        )
    if action == "cancel":
        return await app.runs.cancel(run_id, by=by)
    queue_again = app.runs.approve if action == "approve" else app.runs.retry
    attempts = app.configuration.registry.daemon.max_attempts
    return await queue_again(run_id, Ask(RunTrigger.HTTP, by, max_attempts=attempts))


async def end_of(following: RowWatch[Run], request: Request, run_id: str, seconds: float) -> Run | None:
    """The run when it has ended; None if it has not within `seconds`, if the client disconnects or the server shuts
    down first, or if this pod has too many watchers: the run is queued, and the response says how to follow it."""
    stopping = stopping_of(request)
    with contextlib.suppress(TimeoutError, TooManyWatchers):
        async with asyncio.timeout(seconds):
            with following.watching(run_id, admitted(request).credential):
                while not stopping.is_set() and not await request.is_disconnected():
                    with contextlib.suppress(StoreUnavailable):  # it may be available again in time
                        run = await following.look(run_id)
                        if run is None or run.is_final:
                            return run
                    await pause(stopping, following.pause_seconds)
    return None
