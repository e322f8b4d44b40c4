"""`GET /api/v1/runs/{id}/events`: one run as it goes on, as server-sent events, wherever it is executed."""

# Annotations are evaluated here: one names a function inside a function, which FastAPI could not find later.
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic_core import to_json

from reposync.api.access import Role
from reposync.api.answers import errors
from reposync.api.head import is_head
from reposync.api.leaving import leaving_of
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.errors import RunAmbiguous, RunNotFound, StoreUnavailable
from reposync.runs.progress import shown_progress
from reposync.store.following import runs_by_id
from reposync.store.row_watch import Following, TooManyWatchers
from reposync.store.run import Run
from reposync.store.run_keys import run_json

MAX_STREAMS = 200
"""A pod serves 500 connections; these may take less than half of them."""
KEEP_ALIVE_SECONDS = 10.0
"""Proxies close a connection on which nothing was said for a minute; some for 15 s."""
LONGEST_SECONDS = 3600.0
"""A browser comes back by itself; a client that forgot its stream does not keep it for ever."""
RETRY_MILLISECONDS = 2_000

_EXAMPLE = """\
event: progress
data: {"id": "0198b7c2-5f3e-7c1a-9d2b-3f6a1c5e8d70", "repository": "payments-api", "status": "running", "attempt": 1, \
"progress": {"phase": "indexing", "files_total": 1204, "files_done": 311, "chunks_done": 902, "bytes_read": 2411002, \
"elapsed_seconds": 8.013, "files_per_second": 38.81, "eta_seconds": 23.0}}
retry: 2000

event: ended
data: {"id": "0198b7c2-5f3e-7c1a-9d2b-3f6a1c5e8d70", "repository": "payments-api", "status": "completed", \
"attempt": 1, "files_processed": 1204, "files_failed": 0, "progress": null}
id: ended-1-completed
"""

# One event, as other APIs and their clients have it: OpenAPI has own words for streams (`itemSchema`) since 3.2 alone,
# which few programs read. `RunShown` is there through the routes of runs.
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["progress", "ended"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "allOf": [
                    {"$ref": "#/components/schemas/RunShown"},
                    {"type": "object", "properties": {"progress": {"type": ["object", "null"]}}},
                ]
            },
        },
        "id": {"type": "string"},
        "retry": {"type": "integer", "minimum": 0},
    },
}

_DESCRIPTION = """\
An event comes at once with the present state, and another one with every change, once a second at most; comments keep \
the connection open. Each `data` is the run as `GET /runs/{run_id}` shows it in its first keys, and `progress`: null \
where nobody executes the run at the moment.

`progress` while the run is on its way, `ended` at the end (completed, failed, cancelled, or blocked until a person \
approves it); then the stream is over. An `EventSource` that comes back after that is told by 204 to stay away. A \
stream that ends without `ended` is to be opened again: the server is about to end, or an hour has passed."""


def event_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix="/api/v1", tags=["runs"])

    async def fetch(ids: Any) -> dict[str, Run]:
        return await runs_by_id(parts.application().database, ids)

    following = Following(fetch, max_watchers=MAX_STREAMS)

    async def followed(
        run_id: Annotated[str, Path(max_length=36, description="Of the run; a unique beginning will do.")],
    ) -> AsyncIterator[Run]:
        # A dependency and not part of the stream: what it raises still becomes an answer, and it is ended with the
        # request, however that ends.
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
                "content": {"text/event-stream": {"schema": _EVENT, "example": _EXAMPLE}},
            },
            204: {"description": "`Last-Event-ID` names the end of this run: there is nothing more to come"},
        },
    )
    async def run_events(
        request: Request,
        run: Annotated[Run, Depends(followed)],
        last_event_id: Annotated[
            str | None, Header(description="Sent by an `EventSource` that comes back.", max_length=200)
        ] = None,
    ) -> Response:
        if run.is_final and last_event_id == _end_id(run):
            return Response(status_code=204)
        # Without a body there is nobody to follow the run for.
        longest_seconds = 0.0 if is_head(request) else LONGEST_SECONDS
        return EventSourceResponse(
            RunEvents(following, run, leaving_of(request), longest_seconds=longest_seconds),
            # The second one: nginx would hold events back until its buffer is full.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return routes


class RunEvents:
    """The bytes of the events of `run`, which somebody is `watching`. Not a generator: wherever the answer is cut off,
    there is nothing left to close."""

    def __init__(
        self,
        following: Following[Run],
        run: Run,
        leaving: asyncio.Event,
        *,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        self._following = following
        self._run = run
        self._leaving = leaving
        self._keep_alive_seconds = keep_alive_seconds
        self._until = time.monotonic() + longest_seconds
        self._spoke_at = 0.0
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        said = await self._next() if self._spoke_at else self._state(first=True)
        self._spoke_at = time.monotonic()
        return said

    async def _next(self) -> bytes:
        silence = "nothing new"
        while not self._leaving.is_set() and time.monotonic() < self._until:
            await self._pause()
            try:
                run = await self._following.look(self._run.id)
            except StoreUnavailable:
                # It may be back in a moment; whoever opens the stream again would be refused.
                silence, run = "the database does not answer", self._run
            if run is None:
                return self._farewell("this run is no longer in the history")
            if run != self._run:
                self._run = run
                return self._state()
            if time.monotonic() - self._spoke_at >= self._keep_alive_seconds:
                return format_sse_event(comment=silence)
        return self._farewell("open this again")

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._following.pause_seconds):
                await self._leaving.wait()
        except TimeoutError:
            return

    def _state(self, *, first: bool = False) -> bytes:
        run = self._run
        self._is_over = run.is_final
        return format_sse_event(
            data_str=to_json({**run_json(run), "progress": shown_progress(run)}).decode(),
            event="ended" if run.is_final else "progress",
            id=_end_id(run) if run.is_final else None,
            retry=RETRY_MILLISECONDS if first else None,
        )

    def _farewell(self, words: str) -> bytes:
        self._is_over = True
        return format_sse_event(comment=words, retry=RETRY_MILLISECONDS)


def _end_id(run: Run) -> str:
    return f"ended-{run.attempt}-{run.status}"
