"""Reading request bodies within limits of size, time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message as MimeMessage
from typing import Any

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.types import Message

from reposync.api.errors import BodiesBusy, BodyTooLarge, BodyTooSlow, BodyUnreadable, MediaTypeUnsupported

ReadBody = Callable[[], Awaitable[bytearray]]
"""Raises BodiesBusy, and as `read_body` does."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`seconds`: for the whole body to arrive."""

    max_bytes: int = 1_000_000
    seconds: float = 15.0


async def read_body(
    request: Request, limits: BodyLimits, *, on_piece: Callable[[int], None] = lambda size_bytes: None
) -> bytearray:
    """The whole body. `on_piece` is called with the number of bytes about to be kept, and may raise.

    Raises BodyTooLarge, BodyTooSlow, BodyUnreadable.
    """
    too_large = BodyTooLarge(f"The body is larger than the {limits.max_bytes:,} bytes that are accepted.")
    declared = request.headers.get("content-length", "")
    # The number of digits first: converting a number of a thousand digits is work.
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > limits.max_bytes):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for piece in request.stream():
                if len(body) + len(piece) > limits.max_bytes:
                    raise too_large
                on_piece(len(piece))
                body += piece
    except TimeoutError:
        raise BodyTooSlow(f"The body was not complete within {limits.seconds:g} s.") from None
    except ClientDisconnect:
        raise BodyUnreadable("The connection ended within the body.") from None
    return body


async def with_body(request: Request, limits: BodyLimits) -> Request:
    """The same request with its body already read. Raises as `read_body` does."""
    rest: list[Message] = [
        {"type": "http.request", "body": bytes(await read_body(request, limits)), "more_body": False}
    ]

    async def replay() -> Message:
        return rest.pop() if rest else await request.receive()

    return Request(request.scope, replay)


class SharedBodies:
    """Bodies within `limits` that take at most `total_bytes` of memory together."""

    def __init__(self, limits: BodyLimits, *, total_bytes: int) -> None:
        self._limits = limits
        self._free_bytes = total_bytes

    @contextmanager
    def reading(self, request: Request) -> Iterator[ReadBody]:
        """Yields a function that reads the body. The memory is held until the block ends."""
        held_bytes = 0

        def hold(size_bytes: int) -> None:
            nonlocal held_bytes
            if size_bytes > self._free_bytes:
                raise BodiesBusy("Too many bodies are being sent at once.", remedy="Try again in a moment.")
            self._free_bytes -= size_bytes
            held_bytes += size_bytes

        try:
            yield lambda: read_body(request, self._limits, on_piece=hold)
        finally:
            self._free_bytes += held_bytes


async def _check_json(request: Request) -> None:
    # `curl -X POST -d ''` declares a form without a body.
    if _is_json(request.headers.get("content-type", "")) or not await request.body():
        return
    raise MediaTypeUnsupported(
        "The Content-Type of the body is not JSON.", remedy="Send the header `Content-Type: application/json`."
    )


TAKES_JSON: Any = Depends(_check_json)
"""A dependency of routes with a JSON body, after the one that requires a role."""


def _is_json(content_type: str) -> bool:
    """`application/json` with or without parameters, and `application/*+json`: what FastAPI parses as JSON."""
    parsed = MimeMessage()
    parsed["content-type"] = content_type
    kind = parsed.get_content_subtype()
    return parsed.get_content_maintype() == "application" and (kind == "json" or kind.endswith("+json"))
