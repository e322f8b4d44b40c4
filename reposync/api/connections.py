"""One connection of the HTTP server, bounded: a stranger who opens many or sends slowly costs little."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from reposync.api.envelope import envelope
from reposync.api.headers import ALWAYS
from reposync.api.hosts import TrustedNetworks, client_network
from reposync.api.shares import Shares

PROBES_ALONE = "probes_alone"
"""Key of the state of a request whose connection is one of `reserved_connections`."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`grace_seconds`: what answers under way have when the daemon ends, before they are cut. `head_seconds`: for the
    head of a request to come in whole; uvicorn itself would wait for ever for the first one.

    `max_connections`: more would take the file descriptors that syncs need. `connections_a_client`: of one address;
    `trusted_proxies` (networks) are not limited. `reserved_connections`: besides, for probes. See `Shares`.

    `linger_seconds`, `linger_bytes`: what is still taken, and thrown away, from a client that was answered before its
    body was whole.
    """

    grace_seconds: float = 3.0
    head_seconds: float = 10.0
    keep_alive_seconds: int = 30
    max_connections: int = 500
    connections_a_client: int = 400
    reserved_connections: int = 16
    trusted_proxies: tuple[str, ...] = ()
    linger_seconds: float = 10.0
    linger_bytes: int = 64 << 20
    max_head_bytes: int = 16_384


class BoundedProtocol(H11Protocol):
    """Uvicorn's, within `limits`, and with our envelope around its own error."""

    limits: ClassVar[HttpLimits] = HttpLimits()
    shares: ClassVar[Shares]
    network: str = ""
    _idle_since: float = 0.0
    _head_timer: asyncio.TimerHandle | None = None
    _lingering: _Lingering

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = _Lingering(transport, self)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self.network = client_network(self.client[0] if self.client else "")
        self._idle_since = self.loop.time()
        self._await_head()
        if not self.shares.enter(self):
            self.app_state = {**self.app_state, PROBES_ALONE: True}

    def connection_lost(self, exc: Exception | None) -> None:
        self.shares.leave(self)
        self._head_is_here()
        self._lingering.ended()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_under_way:
            self._lingering.discard(data)
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_is_here()
        elif self._head_timer is None and (before is None or before.response_complete):
            # The beginning of the next head on a connection that was kept; uvicorn has just stopped its own timer.
            self._await_head()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def idle_since(self) -> float | None:
        return self._idle_since if self.cycle is None or self.cycle.response_complete else None

    @property
    def is_sending(self) -> bool:
        """Whether the client has not come to the end of its request, as far as is known."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def cut(self) -> None:
        self.transport.abort()

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


class _Lingering:
    """A transport whose `close` lets the client read the last answer.

    Closing a socket before all that came in was read resets the connection, and the client may lose the answer over it
    (RFC 9112, 9.6). So only our side is closed first, and what still comes is thrown away within the limits.
    """

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._left_bytes = protocol.limits.linger_bytes
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_under_way(self) -> bool:
        return self._timer is not None

    def is_closing(self) -> bool:
        return self.is_under_way or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._protocol.is_sending:
            self._transport.close()
            return
        loop, seconds = self._protocol.loop, self._protocol.limits.linger_seconds
        self._timer = loop.call_later(seconds, self._transport.abort)
        try:
            self._transport.write_eof()
            self._transport.resume_reading()
        except OSError:  # the client has left already
            self._transport.abort()

    def discard(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.abort()

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def within(limits: HttpLimits) -> type[BoundedProtocol]:
    """Uvicorn makes its protocols itself, so the limits are the class's."""
    shares = Shares(
        limits.max_connections,
        limits.connections_a_client,
        limits.reserved_connections,
        TrustedNetworks(limits.trusted_proxies).have,
    )
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "shares": shares})
