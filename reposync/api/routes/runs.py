"""`/api/v1/runs`: the execution history, single runs, and what can be done with them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Body, Query, Request, Response

from reposync.api.auth import actor_of
from reposync.api.operating import RunId, add_operation, described
from reposync.api.routing import ApiParts, Router
from reposync.api.server import pause, stopping_of
from reposync.app.application import Application
from reposync.errors import RunNotFound, StoreUnavailable, TooManyWatchers
from reposync.operations import runs
from reposync.operations.core import NOTHING, NoArguments, Operation
from reposync.operations.following import following
from reposync.operations.paths import PREFIX
from reposync.operations.runs import Run


def run_path(request: Request, run_id: str) -> str:
    """The path of a run, below the root path."""
    return f"{request.scope.get('root_path', '')}{PREFIX}/runs/{run_id}"


def run_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"])
    for operation in (runs.history, runs.get_run, runs.problems):
        add_operation(routes, parts, operation, has_etag=True)
    add_operation(routes, parts, runs.retry_failed, status_code=202)

    @routes.post(
        "/runs/{run_id}/cancel",
        dependencies=parts.operators,
        responses={202: {"model": runs.RunDetail, "description": "It ends at the next heartbeat"}},
        **described(runs.cancel),
    )
    async def cancel(
        request: Request,
        response: Response,
        run_id: RunId,
        options: Annotated[runs.Cancellation | None, Body()] = None,
    ) -> runs.RunDetail:
        run = await runs.cancel(parts.application(), actor_of(request), options or runs.Cancellation(), run_id=run_id)
        response.status_code = 200 if run.is_final else 202
        return run

    def queue_again(operation: Operation[NoArguments, runs.RunDetail]) -> None:
        @routes.post(operation.path, status_code=202, dependencies=parts.operators, **described(operation))
        async def handle(
            request: Request, response: Response, run_id: RunId, _: Annotated[NoArguments, Query()]
        ) -> runs.RunDetail:
            run = await operation(parts.application(), actor_of(request), NOTHING, run_id=run_id)
            response.headers["Location"] = run_path(request, run.id)
            return run

    queue_again(runs.approve)
    queue_again(runs.retry)
    return routes


async def end_of(app: Application, request: Request, run_id: str, seconds: float) -> Run | None:
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
