"""`POST /mcp`: the tools for agents, by the streamable HTTP transport of the Model Context Protocol.

Each request is complete in itself and is answered with one JSON document: no session and no stream, so that any pod
answers any request. Who may ask, the limits of heads and bodies, hosts and origins are those of the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from reposync.api.auth import actor_of
from reposync.api.routing import ApiParts, Router
from reposync.api.server import stopping_of
from reposync.app.application import Application
from reposync.operations.core import Rule
from reposync.supervision import in_thread


def mcp_routes(parts: ApiParts) -> APIRouter:
    routes = Router()

    # Not in the description of the API: the protocol describes itself.
    @routes.post("/mcp", dependencies=[parts.access.agents(Rule.READ)], include_in_schema=False)
    async def mcp(request: Request) -> Response:
        # The SDK takes half a second to import, and many daemons have no agents.
        await in_thread(partial(import_module, "reposync.mcp.server"))
        return _Exchange(parts, request)

    return routes


class _Exchange(Response):
    """The SDK's own response to the request, whose body was read already."""

    def __init__(self, parts: ApiParts, request: Request) -> None:
        super().__init__()
        self._parts, self._request = parts, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from reposync.mcp.server import answered, make_server
        from reposync.mcp.tools import TOOLS, Caller

        parts, request = self._parts, self._request
        stopping = stopping_of(request)

        async def application() -> Application:
            return parts.application()

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await request.is_disconnected()

        caller = Caller(application, replace(actor_of(request), via="mcp"), is_wanted)

        async def call(name: str, arguments: Mapping[str, Any]) -> Any:
            tool = name if name in TOOLS else "other"
            with parts.metrics.measure("mcp_call_duration_seconds", tool) as measurement:
                result = await answered(caller, name, arguments, redact=parts.secrets.redact)
                measurement.outcome = "failed" if result.is_error else "ok"
            return result

        server = make_server(parts.version, call, caller.actor)
        # Made for this request alone: with `stateless` it would keep none either, but it starts only once.
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, request.receive, send)
