"""Connections of the HTTP server: how many a client may have, how long they may take, and how the last response is
sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from reposync.api.errors import envelope
from reposync.api.hosts import TrustedNetworks, client_network
from reposync.api.middleware import PROBES_ONLY, SECURITY_HEADERS


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`grace_seconds`: for responses in progress when the daemon shuts down. `head_seconds`: for the head of a request
    to arrive; uvicorn would wait for the first one for ever.

    `max_connections`: more would take the file descriptors that syncs need. `connections_a_client`: from one address;
    `trusted_proxies` (networks) are not limited. `reserved_connections`: in addition, for probes. See `Shares`.

    `linger_seconds`, `linger_bytes`: what is still received, and discarded, from a client that got its response before
    its body was complete.
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


class Shares:
    """At most `most` connections, at most `a_client` of them from one client, and `reserved` more for probes.

    If there are no more, the client with the most connections loses an idle one, which HTTP allows a server to close at
    any time. No request is ever interrupted. Networks that are `is_trusted`, the proxies in front of this server, stand
    for many clients: they have no limit, and lose connections only to each other.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self._most, self._a_client = limits.max_connections, limits.connections_a_client
        self._max_reserved = limits.reserved_connections
        self._is_trusted: Callable[[str], bool] = TrustedNetworks(limits.trusted_proxies).contain
        self._held: dict[BoundedProtocol, bool] = {}
        """Whether it comes from a trusted network."""
        self._reserved: set[BoundedProtocol] = set()

    def enter(self, connection: BoundedProtocol) -> bool:
        """False if it may be used for probes only, or was closed."""
        is_trusted = self._is_trusted(connection.network)
        sizes = Counter(each.network for each in self._held)
        is_over_share = not is_trusted and sizes[connection.network] >= self._a_client
        if is_over_share or len(self._held) >= self._most:
            # Of the client that has most, proxies last, the one that is idle for the longest time.
            victims = [
                (is_proxy, -sizes[each.network], each.idle_since, each)
                for each, is_proxy in self._held.items()
                if each.idle_since is not None and is_proxy <= is_trusted
                if each.network == connection.network or not is_over_share
            ]
            if not victims:
                self._reserve(connection)
                return False
            self._cut(min(victims, key=lambda found: found[:3])[3])
        self._held[connection] = is_trusted
        return True

    def leave(self, connection: BoundedProtocol) -> None:
        self._reserved.discard(connection)
        self._held.pop(connection, None)

    def _reserve(self, connection: BoundedProtocol) -> None:
        idle = [each for each in self._reserved if each.idle_since is not None]
        self._reserved.add(connection)
        if len(self._reserved) > self._max_reserved:
            self._cut(min(idle, key=lambda each: each.idle_since or 0.0, default=connection))

    def _cut(self, connection: BoundedProtocol) -> None:
        self.leave(connection)
        connection.cut()


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol within `limits`, with our JSON for its own error."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        app_state: dict[str, Any],
        limits: HttpLimits,
        shares: Shares,
    ) -> None:
        super().__init__(config, state, app_state)
        self.limits, self._shares = limits, shares
        self.network = ""
        self._idle_since = 0.0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = _LingeringTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self.network = client_network(self.client[0] if self.client else "")
        self._idle_since = self.loop.time()
        self._await_head()
        if not self._shares.enter(self):
            self.app_state = {**self.app_state, PROBES_ONLY: True}

    def connection_lost(self, exc: Exception | None) -> None:
        self._shares.leave(self)
        self._head_received()
        self._lingering.ended()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_active:
            self._lingering.discard(data)
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._head_received()
        elif self._head_timer is None and (before is None or before.response_complete):
            # The start of the next head on a kept connection; uvicorn has just stopped its own timer.
            self._await_head()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def idle_since(self) -> float | None:
        """None while a request is in progress."""
        return self._idle_since if self.cycle is None or self.cycle.response_complete else None

    @property
    def is_receiving(self) -> bool:
        """Whether the request is not complete, as far as is known."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    @property
    def is_responding(self) -> bool:
        """Whether a response has started and is not complete."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def cut(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            # The connection is being closed already, after an invalid request.
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            # The application may still be running; its response is discarded.
            self.cycle.disconnected = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # The invalid bytes followed a request whose response has started.
            self.transport.abort()
            return
        body = envelope("BAD_REQUEST", msg)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "cache-control": "no-store",
            **SECURITY_HEADERS,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(f"HTTP/1.1 400 Bad Request\r\n{head}\r\n".encode() + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _head_received(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _LingeringTransport:
    """A transport whose `close` lets the client read the last response.

    Closing a socket with unread input resets the connection, and the client may lose the response (RFC 9112, 9.6). So
    only our side is closed first, and further input is discarded within the limits.
    """

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._left_bytes = protocol.limits.linger_bytes
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_active(self) -> bool:
        return self._timer is not None

    def is_closing(self) -> bool:
        return self.is_active or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._protocol.is_receiving:
            self._transport.close()
            return
        self._timer = self._protocol.loop.call_later(self._protocol.limits.linger_seconds, self._transport.abort)
        try:
            self._transport.write_eof()
            self._transport.resume_reading()
        except OSError:  # the client has closed the connection already
            self._transport.abort()

    def discard(self, data: bytes) -> None:
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.abort()

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
