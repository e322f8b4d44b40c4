"""The server's connections: how many a client may have, how long they may take, and how the last response is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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


class Connection(Protocol):
    @property
    def network(self) -> str:
        """Of the client, see `client_network`."""

    @property
    def idle_since(self) -> float | None:
        """By a clock that all connections share; None while a request is in progress."""

    def cut(self) -> None:
        """Close it at once."""


class Shares:
    """At most `most` connections, at most `a_client` of them from one client, and `reserved` more for probes.

    If there are no more, the client with the most connections loses an idle one, which HTTP allows a server to close at
    any time. No request is ever interrupted. Networks that are `is_trusted`, the proxies in front of this server, stand
    for many clients: they have no limit, and lose connections only to each other.
    """

    def __init__(self, most: int, a_client: int, reserved: int, is_trusted: Callable[[str], bool]) -> None:
        self._most, self._a_client, self._max_reserved = most, a_client, reserved
        self._is_trusted = is_trusted
        self._held: dict[str, set[Connection]] = {}
        self._reserved: set[Connection] = set()

    def enter(self, connection: Connection) -> bool:
        """False if it may be used for probes only, or was closed."""
        own = self._held.get(connection.network, set())
        is_trusted = self._is_trusted(connection.network)
        is_over_share = not is_trusted and len(own) >= self._a_client
        if is_over_share or sum(map(len, self._held.values())) >= self._most:
            victim = _idlest(own if is_over_share else self._candidates(is_trusted))
            if victim is None:
                self._reserved.add(connection)
                if len(self._reserved) > self._max_reserved:
                    self._cut(_idlest(self._reserved - {connection}) or connection)
                return False
            self._cut(victim)
        self._held.setdefault(connection.network, set()).add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        self._reserved.discard(connection)
        own = self._held.get(connection.network)
        if own is not None:
            own.discard(connection)
            if not own:
                del self._held[connection.network]

    def _candidates(self, for_trusted: bool) -> Iterable[Connection]:
        """The connections of the client that has most, among those with an idle one."""
        by_size = sorted(self._held.items(), key=lambda each: len(each[1]), reverse=True)
        for wants_trusted in (False, True) if for_trusted else (False,):
            for network, held in by_size:
                if self._is_trusted(network) is wants_trusted and _idlest(held) is not None:
                    return held
        return ()

    def _cut(self, connection: Connection) -> None:
        self.leave(connection)
        connection.cut()


def _idlest(connections: Iterable[Connection]) -> Connection | None:
    idle = [(since, each) for each in connections if (since := each.idle_since) is not None]
    return min(idle, key=lambda each: each[0], default=(0.0, None))[1]


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol within `limits`, with our JSON for its own error."""

    limits: ClassVar[HttpLimits] = HttpLimits()
    shares: ClassVar[Shares]
    network: str = ""
    _idle_since: float = 0.0
    _head_timer: asyncio.TimerHandle | None = None
    _lingering: _LingeringTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = _LingeringTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self.network = client_network(self.client[0] if self.client else "")
        self._idle_since = self.loop.time()
        self._await_head()
        if not self.shares.enter(self):
            self.app_state = {**self.app_state, PROBES_ONLY: True}

    def connection_lost(self, exc: Exception | None) -> None:
        self.shares.leave(self)
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


def protocol_class(limits: HttpLimits) -> type[BoundedProtocol]:
    """Uvicorn creates its protocols itself, so the limits belong to the class."""
    shares = Shares(
        limits.max_connections,
        limits.connections_a_client,
        limits.reserved_connections,
        TrustedNetworks(limits.trusted_proxies).contain,
    )
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "shares": shares})
