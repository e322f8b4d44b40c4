"""How an answer without an end of its own learns that its server is about to end."""

from __future__ import annotations

import asyncio

from fastapi import Request

STATE_KEY = "leaving"


def leaving_of(request: Request) -> asyncio.Event:
    """Set when the server that this request came to begins to end; never, where the application is called by
    something else. What is still being answered has the grace of `HttpLimits` from then on."""
    found = request.scope.get("state", {}).get(STATE_KEY)
    return found if isinstance(found, asyncio.Event) else asyncio.Event()
