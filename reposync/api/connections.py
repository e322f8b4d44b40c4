"""One connection of the HTTP server, bounded: a stranger who opens many or sends slowly costs little."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from reposync.api.envelope import envelope
from reposync.api.headers import ALWAYS


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`grace_seconds`: what answers under way have when the daemon ends, before they are cut. `head_seconds`: for the
    head of a request to come in whole; uvicorn itself would wait for ever for the first one. `max_connections`: further
    ones are closed at once, because they would take the file descriptors that syncs need."""

    grace_seconds: float = 3.0
    head_seconds: float = 10.0
    keep_alive_seconds: int = 30
    max_connections: int = 500
    max_head_bytes: int = 16_384


class BoundedProtocol(H11Protocol):
    """Uvicorn's, within `limits`, and with our envelope around its own error."""

    limits: ClassVar[HttpLimits] = HttpLimits()
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_is_here()
        elif self._head_timer is None and (before is None or before.response_complete):
            # The beginning of the next head on a connection that was kept; uvicorn has just stopped its own timer.
            self._await_head()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            # It is being closed already, over a request that made no sense.
            self.transport.abort()

    @property
    def answers(self) -> bool:
        """Whether an answer has begun and is not over."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        body = envelope("BAD_REQUEST", msg)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"cache-control", b"no-store"),
            *((name.lower().encode(), value.encode()) for name, value in ALWAYS.items()),
        ]
        if self.cycle is not None:
            # Its application may still be at work; what it has to say goes nowhere.
            self.cycle.disconnected = True
        try:
            head = self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request"))
        except h11.LocalProtocolError:
            # The rubbish came behind a request whose answer has begun.
            self.transport.abort()
            return
        self.transport.write((head or b"") + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def within(limits: HttpLimits) -> type[BoundedProtocol]:
    """Uvicorn makes its protocols itself, so the limits are the class's."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})
