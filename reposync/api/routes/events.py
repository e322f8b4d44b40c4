"""`GET /api/v1/runs/{id}/events`: the progress of a run as server-sent events, whichever pod executes it."""

# Without postponed annotations: one names a function inside a function, which FastAPI could not resolve later.
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic_core import to_json

from reposync.api.auth import Role
from reposync.api.dependencies import ApiParts
from reposync.api.errors import errors
from reposync.api.middleware import is_head
from reposync.api.routes.runs import RunIdPrefix
from reposync.api.routing import PREFIX, Router
from reposync.api.server import stopping_of
from reposync.errors import RunAmbiguous, RunNotFound, StoreUnavailable
from reposync.runs.reporting import current_progress
from reposync.store.notifications import RowWatch, TooManyWatchers
from reposync.store.run import Run

MAX_STREAMS = 200
"""A pod serves 500 connections; these may take less than half of them."""
KEEP_ALIVE_SECONDS = 10.0
"""Proxies close an idle connection after a minute, some after 15 s."""
MAX_SECONDS = 3600.0
"""Browsers reconnect by themselves; a stream that a client forgot does not stay open for ever."""
RETRY_MILLISECONDS = 2_000

# One event, as other APIs describe them: only OpenAPI 3.2 has a description of streams (`itemSchema`), and few programs
# read it. `Run` is among the schemas because of the routes of runs.
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["progress", "ended"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "allOf": [
                    {"$ref": "#/components/schemas/Run"},
                    {"type": "object", "properties": {"progress": {"type": ["object", "null"]}}},
                ]
            },
        },
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    },
}

_DESCRIPTION = """\
Sends an event with the current state at once, and one for every change, at most one per second; comments keep the \
connection open. Each `data` has the first keys of the run as `GET /runs/{run_id}` shows it, and `progress`: null if \
no worker executes the run at the moment.

The event is `progress` until the run ends, and then `ended` (completed, failed, cancelled, or blocked until somebody \
approves it), which is the last one. An `EventSource` that reconnects after that gets 204, which stops it. If a stream \
ends without `ended`, open it again: the server is shutting down, or an hour has passed."""


def event_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["runs"])

    async def fetch(ids: Any) -> dict[str, Run]:
        return await parts.application().runs.by_ids(ids)

    following = RowWatch(fetch, max_watchers=MAX_STREAMS)

    async def followed(
        run_id: RunIdPrefix,
    ) -> AsyncIterator[Run]:
        # A dependency, not part of the stream: its errors still become a response, and it ends with the request.
        run = await parts.application().runs.get(run_id)
        try:
            with following.watching(run.id):
                yield run
        finally:
            await following.settle()

    @routes.get(
        "/runs/{run_id}/events",
        summary="Follow a run",
        description=_DESCRIPTION,
        response_class=Response,
        dependencies=[parts.access.requires(Role.READ)],
        responses={
            **errors(RunNotFound, RunAmbiguous, TooManyWatchers),
            200: {
                "description": "The events",
                "content": {"text/event-stream": {"schema": _EVENT}},
            },
            204: {"description": "`Last-Event-ID` is the end of this run: there are no more events"},
        },
    )
    async def run_events(
        request: Request,
        run: Annotated[Run, Depends(followed)],
        last_event_id: Annotated[
            str | None, Header(description="Sent by an `EventSource` that reconnects.", max_length=200)
        ] = None,
    ) -> Response:
        if run.is_final and last_event_id == _end_id(run):
            return Response(status_code=204)
        # A response to HEAD has no body to stream.
        max_seconds = 0.0 if is_head(request) else MAX_SECONDS
        return EventSourceResponse(
            RunEvents(following, run, stopping_of(request), max_seconds=max_seconds),
            # X-Accel-Buffering: nginx would hold events back until its buffer is full.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return routes


class RunEvents:
    """The bytes of the events of `run`, while it is watched. Not a generator: a response that is cut off leaves nothing
    to close."""

    def __init__(
        self,
        following: RowWatch[Run],
        run: Run,
        stopping: asyncio.Event,
        *,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._following = following
        self._run = run
        self._stopping = stopping
        self._keep_alive_seconds = keep_alive_seconds
        self._until = time.monotonic() + max_seconds
        self._sent_at = 0.0
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._next() if self._sent_at else self._state(first=True)
        self._sent_at = time.monotonic()
        return event

    async def _next(self) -> bytes:
        comment = "no change"
        while not self._stopping.is_set() and time.monotonic() < self._until:
            await self._pause()
            try:
                run = await self._following.look(self._run.id)
            except StoreUnavailable:
                # It may be available again in a moment; a client that reconnects would be refused.
                comment, run = "the database does not respond", self._run
            if run is None:
                return self._end("this run is no longer in the history")
            if run != self._run:
                self._run = run
                return self._state()
            if time.monotonic() - self._sent_at >= self._keep_alive_seconds:
                return format_sse_event(comment=comment)
        return self._end("reconnect")

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._following.pause_seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _state(self, *, first: bool = False) -> bytes:
        run = self._run
        self._is_over = run.is_final
        return format_sse_event(
            data_str=to_json({**run.document, "progress": current_progress(run)}).decode(),
            event="ended" if run.is_final else "progress",
            id=_end_id(run) if run.is_final else None,
            retry=RETRY_MILLISECONDS if first else None,
        )

    def _end(self, comment: str) -> bytes:
        self._is_over = True
        return format_sse_event(comment=comment, retry=RETRY_MILLISECONDS)


def _end_id(run: Run) -> str:
    return f"ended-{run.attempt}-{run.status}"
