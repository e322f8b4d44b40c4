"""HEAD answers like GET on every route: the same headers, no body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY = "reposync.head"


class HeadAsGet:
    """Middleware. Not a second method of each route: the API's description would list every operation twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET", _KEY: True}, receive, without_body)


def is_head(request: Request) -> bool:
    """For streams that would not end by themselves."""
    return _KEY in request.scope
