"""A name for every request, in its answer and in every line of the log that it causes."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

REQUEST_ID = "X-Request-Id"

# What a proxy or a client calls it is taken over if it can harm no log and no header.
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """Middleware: takes `X-Request-Id` over or makes one, and gives it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _SANE.fullmatch(given) else uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with bound_contextvars(request=request_id):
            await self._app(scope, receive, named)
