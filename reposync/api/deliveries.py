"""Bodies of which nothing is known before their last byte: read within bounds of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from reposync.api.bounds import BodyTooLarge, BodyTooSlow
from reposync.errors import RepoSyncError


class BodiesBusy(RepoSyncError):
    """Too much is being sent at once."""

    code = "BUSY"
    status = 503


class Bodies:
    """Of at most `max_bytes` each and `total_bytes` together, each within `seconds`."""

    def __init__(self, *, max_bytes: int, total_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._free_bytes = total_bytes
        self._seconds = seconds

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """What is read within the block counts until it is left."""
        reading = Reading(self)
        try:
            yield reading
        finally:
            self._free_bytes += reading.held_bytes

    async def read(self, request: Request, reading: Reading) -> bytearray:
        """Raises BodyTooLarge, BodyTooSlow, BodiesBusy, and starlette's ClientDisconnect."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > 15 or int(declared) > self._max_bytes):
            raise self._too_large()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(request, reading)
        except TimeoutError:
            raise BodyTooSlow(f"The body did not come in whole within {self._seconds:g} s.") from None

    async def _read(self, request: Request, reading: Reading) -> bytearray:
        body = bytearray()
        async for piece in request.stream():
            if len(body) + len(piece) > self._max_bytes:
                raise self._too_large()
            if len(piece) > self._free_bytes:
                raise BodiesBusy("Too much is being sent at once.", remedy="Send it again in a moment.")
            self._free_bytes -= len(piece)
            reading.held_bytes += len(piece)
            body += piece
        return body

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than the {self._max_bytes:,} bytes that are taken.")


class Reading:
    """One request's share of what is held."""

    def __init__(self, bodies: Bodies) -> None:
        self.held_bytes = 0
        self._bodies = bodies

    async def body(self, request: Request) -> bytearray:
        """See `Bodies.read`."""
        return await self._bodies.read(request, self)
