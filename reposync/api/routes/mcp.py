"""`POST /mcp`: the tools for agents, by the streamable HTTP transport of the Model Context Protocol.

Each request is complete in itself and is answered with one JSON document: no session and no stream, so that any pod
answers any request. Who may ask, the limits of heads and bodies, hosts and origins are those of the API.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from reposync.api.auth import admitted
from reposync.api.routing import ApiParts, Router
from reposync.api.server import stopping_of
from reposync.app.application import Application
from reposync.app.commit_wait import SearchableCommits
from reposync.supervision import in_thread

MAX_WAITING = 200


def mcp_routes(parts: ApiParts) -> APIRouter:
    routes = Router()
    commits = SearchableCommits(parts.application, max_waiting=MAX_WAITING)

    # Not in the description of the API: the protocol describes itself.
    @routes.post("/mcp", dependencies=parts.readers, include_in_schema=False)
    async def mcp(request: Request) -> Response:
        # The SDK takes half a second to import, and many daemons have no agents.
        await in_thread(partial(import_module, "reposync.mcp.server"))
        return _Exchange(parts, commits, request, await request.body())

    return routes


class _Exchange(Response):
    """The SDK's own response to the request, whose body was read already."""

    def __init__(self, parts: ApiParts, commits: SearchableCommits, request: Request, body: bytes) -> None:
        super().__init__()
        self._parts, self._commits, self._request = parts, commits, request
        self._left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from reposync.mcp.server import answered, make_server
        from reposync.mcp.tools import TOOLS, Caller

        parts = self._parts
        stopping = stopping_of(self._request)

        async def application() -> Application:
            return parts.application()

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await self._request.is_disconnected()

        async def call(name: str, arguments: Any) -> Any:
            caller = Caller(
                application,
                self._commits,
                parts.searches.search,
                parts.greps.search,
                is_wanted,
                client=admitted(self._request).credential,
            )
            tool = name if name in TOOLS else "other"
            with parts.metrics.measure("mcp_call_duration_seconds", tool) as measurement:
                result = await answered(caller, name, arguments, redact=parts.secrets.redact)
                measurement.outcome = "failed" if result.is_error else "ok"
            return result

        async def replayed() -> Message:
            return self._left.pop() if self._left else await receive()

        # Made for this request alone: with `stateless` it would keep none either, but it starts only once.
        manager = StreamableHTTPSessionManager(make_server(parts.version, call), json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, replayed, send)
