"""Responses in gzip, for clients that accept it."""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reposync.api.hosts import is_cross_site

MIN_BYTES = 1_000
"""A smaller response fits into one packet either way."""
_LEVEL = 5
"""A page of 25 kB takes less than 0.2 ms. Level 9 takes two to three times as long, and saves at most a tenth more."""
_REFUSES = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)")


class Compression:
    """Middleware. Server-sent events are not compressed; bodies of 128 KiB and more are compressed in a thread. Both by
    Starlette.

    Requests that a page of another site caused get the plain response: otherwise that page could add guesses to a page
    with private code, and somebody who sees the traffic would learn from its size which guess was right (BREACH).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(app, minimum_size=MIN_BYTES, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            # As the response with a body has it: caches take the headers of a 304 over.
            if message["type"] == "http.response.start" and message["status"] == 304:
                MutableHeaders(scope=message).add_vary_header("Accept-Encoding")
            await send(message)

        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if is_cross_site(headers) or _REFUSES.search(headers.get("accept-encoding", "")):
                kept = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
                scope = {**scope, "headers": kept}
        await self._app(scope, receive, sent)
