"""`GET /api/v1/runs/{id}/events`: the progress of a run as server-sent events, whichever pod executes it."""

# Without postponed annotations: one names a function inside a function, which FastAPI could not resolve later.
import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event

from reposync.api.auth import actor_of
from reposync.api.middleware import is_head
from reposync.api.operating import RunId
from reposync.api.routing import ApiParts, Router
from reposync.api.server import pause, stopping_of
from reposync.errors import StoreUnavailable
from reposync.operations.core import Rule
from reposync.operations.following import Follower, following
from reposync.operations.paths import PREFIX
from reposync.operations.runs import Run

KEEP_ALIVE_SECONDS = 10.0
"""Proxies close an idle connection after a minute, some after 15 s."""
MAX_SECONDS = 3600.0
"""Browsers reconnect by themselves; a stream that a client forgot does not stay open for ever."""
MAX_LIMITED_SECONDS = 60.0
"""For those who may not see all repositories: what they see is decided when they connect."""
RETRY_MILLISECONDS = 2_000

_DESCRIPTION = """\
Sends an event with the current state at once, and one for every change, at most one per second. Each `data` has the \
first keys of the run as `GET /runs/{run_id}` shows it, and `progress`. The event is `progress` until the run ends, \
and then `ended`, which is the last one: an `EventSource` that reconnects after that gets 204, which stops it. If a \
stream ends without `ended`, open it again: the server is shutting down, or an hour has passed (a minute, if you may \
not see all repositories)."""


def event_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"], dependencies=parts.readers)

    async def followed(request: Request, run_id: RunId) -> AsyncIterator[tuple[Run, AsyncIterator[bytes]]]:
        # A dependency, not part of the stream: its errors still become a response, and it ends with the request.
        # A response to HEAD has no body to stream.
        actor = actor_of(request)
        max_seconds = MAX_SECONDS if actor.may(Rule.READ_EVERYTHING) else MAX_LIMITED_SECONDS
        max_seconds = 0.0 if is_head(request) else max_seconds
        async with following(parts.application(), actor, run_id) as follower:
            events = run_events(follower, stopping_of(request), max_seconds=max_seconds)
            async with contextlib.aclosing(events):
                yield follower.state, events

    # Only OpenAPI 3.2 describes the events of a stream.
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "The events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "`Last-Event-ID` is the end of this run: there are no more events"},
    }

    @routes.get(
        "/runs/{run_id}/events",
        name="run_events",
        summary="Follow a run",
        description=_DESCRIPTION,
        response_class=Response,
        responses=responses,
    )
    async def follow(
        run_and_events: Annotated[tuple[Run, AsyncIterator[bytes]], Depends(followed)],
        last_event_id: Annotated[
            str | None, Header(description="Sent by an `EventSource` that reconnects.", max_length=200)
        ] = None,
    ) -> Response:
        run, events = run_and_events
        if run.is_final and last_event_id == _end_id(run):
            return Response(status_code=204)
        # X-Accel-Buffering: nginx would hold events back until its buffer is full.
        return EventSourceResponse(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    return routes


async def run_events(
    follower: Follower,
    stopping: asyncio.Event,
    *,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    max_seconds: float = MAX_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """The events of the run that is followed."""
    run = follower.state
    ends_at = time.monotonic() + max_seconds
    yield _state(run, retry=RETRY_MILLISECONDS)
    sent_at = time.monotonic()
    while not run.is_final:
        if stopping.is_set() or time.monotonic() >= ends_at:
            yield format_sse_event(comment="reconnect", retry=RETRY_MILLISECONDS)
            return
        await pause(stopping, follower.pause_seconds)
        comment = "no change"
        found: Run | None
        try:
            found = await follower.look()
        except StoreUnavailable:
            # It may be available again in a moment; a client that reconnects would be refused.
            comment, found = "the database does not respond", run
        if found is None:
            yield format_sse_event(comment="this run is no longer in the history", retry=RETRY_MILLISECONDS)
            return
        if found != run:
            run = found
            yield _state(run)
        elif time.monotonic() - sent_at >= keep_alive_seconds:
            yield format_sse_event(comment=comment)
        else:
            continue
        sent_at = time.monotonic()


def _state(run: Run, retry: int | None = None) -> bytes:
    return format_sse_event(
        data_str=run.model_dump_json(),
        event="ended" if run.is_final else "progress",
        id=_end_id(run) if run.is_final else None,
        retry=retry,
    )


def _end_id(run: Run) -> str:
    return f"ended-{run.attempt}-{run.status}"
