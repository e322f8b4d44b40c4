"""The HTTP server: one listener inside the caller's event loop, for as long as the caller's block runs; how many
connections a client may have, how long they may take, and how the last response is sent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

import h11
import uvicorn
from fastapi import Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from reposync.api.errors import envelope
from reposync.api.hosts import TrustedNetworks, client_network
from reposync.api.middleware import PROBES_ONLY, SECURITY_HEADERS
from reposync.errors import ConfigError, UsageError
from reposync.outgoing import is_loopback

_STOPPING, _TASKS = "stopping", "tasks"
_ABORT_SECONDS = 1.0
_POLL_SECONDS = 0.01
_DRAIN_POLLS = 100
_BACKLOG = 512


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


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def check_exposure(host: str, *, has_tokens: bool) -> None:
    """Raises ConfigError if other machines could reach the server and no token is required."""
    if has_tokens or is_loopback(host):
        return
    raise ConfigError(
        f"Listening on {host or 'every address'} would let anybody on the network trigger, read and cancel syncs.",
        remedy="Set REPOSYNC_API_TOKEN, or listen on 127.0.0.1 (--host 127.0.0.1).",
    )


def stopping_of(request: Request) -> asyncio.Event:
    """Set when the server of this request begins to shut down; never, if the application is called without a server.
    Responses in progress then have `HttpLimits.grace_seconds` left."""
    found = request.scope.get("state", {}).get(_STOPPING)
    return found if isinstance(found, asyncio.Event) else asyncio.Event()


def outlive(request: Request, task: asyncio.Task[Any]) -> None:
    """Let `task` continue after its request. It ends with the server, like the requests in progress; without a server,
    nothing ends it."""
    tasks: set[asyncio.Task[Any]] = request.scope.get("state", {}).get(_TASKS, set())
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep, but not while the server shuts down."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


@contextlib.asynccontextmanager
async def serve_http(
    app: ASGIApp, host: str, port: int, *, limits: HttpLimits | None = None
) -> AsyncIterator[HttpAddress]:
    """Serve `app` until the block ends; port 0 takes a free one. No signal handlers, no access log.

    Raises UsageError if it cannot listen on the address. Shutting down takes the grace period and two seconds at most,
    whatever clients do.
    """
    limits = limits or HttpLimits()
    listener = await asyncio.to_thread(_listen, host, port)
    bound = listener.getsockname()
    config = _config(app, limits)
    state, shares, stopping = ServerState(), Shares(limits), asyncio.Event()
    # Part of the scope of every request; for responses without an end of their own, and for work after a response.
    app_state = {_STOPPING: stopping, _TASKS: state.tasks}
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedProtocol(config, state, app_state, limits, shares), sock=listener, backlog=_BACKLOG
    )
    try:
        yield HttpAddress(bound[0], bound[1])
    finally:
        stopping.set()
        server.close()
        await _shut_down(state, limits.grace_seconds)


async def _shut_down(state: ServerState, grace_seconds: float) -> None:
    def connections() -> list[BoundedProtocol]:
        return [each for each in state.connections if isinstance(each, BoundedProtocol)]

    async def wait_for_tasks(timeout_seconds: float) -> None:
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=timeout_seconds)

    try:
        for connection in connections():
            connection.shutdown()
        await wait_for_tasks(grace_seconds)
        # Requests without a response still get one that gives the reason. A response that has started can only be cut
        # off; before its task is cancelled, or uvicorn would log that the task did not complete it.
        for connection in connections():
            if connection.is_responding:
                connection.transport.abort()
        for task in state.tasks:
            task.cancel()
        await wait_for_tasks(_ABORT_SECONDS)
        # Time for clients to read what is left in the buffers of their connections.
        for _ in range(_DRAIN_POLLS):
            if not state.connections:
                return
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        for connection in connections():
            connection.transport.abort()
        for task in state.tasks:
            task.cancel()


def _config(app: ASGIApp, limits: HttpLimits) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        h11_max_incomplete_event_size=limits.max_head_bytes,
        # asyncio gives a connection the context in which the server was started; its requests must not log that run.
        reset_contextvars=True,
    )
    config.load()
    return config


_REMEDIES = {
    errno.EADDRINUSE: "Is a daemon running already? Stop it, or choose a different port with --port (0: a free one).",
    errno.EACCES: "Ports below 1024 usually require root: choose a different one with --port.",
}
_LOCAL_ONLY = "Use 127.0.0.1 for this machine only, or 0.0.0.0 for all its addresses."


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError that says what is wrong with the address."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"{port} is not a port.", remedy="Ports are 1 to 65535; 0 takes a free one.")
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=_BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        # A name that cannot be resolved (socket.EAI_*), or not a name at all, has no errno.
        reason = "it is neither an address nor a known name" if code is None or code < 0 else os.strerror(code)
        raise UsageError(
            f"Cannot listen on port {port} of {host or 'this machine'}: {reason}.",
            remedy=_REMEDIES.get(code or 0, _LOCAL_ONLY),
        ) from error
    # Connections inherit it. asyncio sets it only on sockets with an explicit protocol, and each response with head and
    # body in two writes would otherwise take 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


# Connections ---------------------------------------------------------------------------------------------------------


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
