"""Bodies of which nothing is known before their last byte: what all of them together may hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from reposync.api.bounds import BodyBounds, read_body
from reposync.errors import RepoSyncError


class BodiesBusy(RepoSyncError):
    """Too much is being sent at once."""

    code = "BUSY"
    status = 503


class Bodies:
    """Each within `bounds`, and of at most `total_bytes` together."""

    def __init__(self, bounds: BodyBounds, *, total_bytes: int) -> None:
        self._bounds = bounds
        self._free_bytes = total_bytes

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """What is read within the block counts until it is left."""
        reading = Reading(self)
        try:
            yield reading
        finally:
            self._free_bytes += reading.held_bytes

    async def read(self, request: Request, reading: Reading) -> bytearray:
        """Raises BodiesBusy, and what `read_body` does."""

        def take(size_bytes: int) -> None:
            if size_bytes > self._free_bytes:
                raise BodiesBusy("Too much is being sent at once.", remedy="Send it again in a moment.")
            self._free_bytes -= size_bytes
            reading.held_bytes += size_bytes

        return await read_body(request, self._bounds, on_piece=take)


class Reading:
    """One request's share of what is held."""

    def __init__(self, bodies: Bodies) -> None:
        self.held_bytes = 0
        self._bodies = bodies

    async def body(self, request: Request) -> bytearray:
        """See `Bodies.read`."""
        return await self._bodies.read(request, self)
