"""The HTTP server: one listener inside the caller's event loop, for as long as the caller's block runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from fastapi import Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from reposync.api.auth import ADMITTED
from reposync.api.errors import envelope
from reposync.api.middleware import PROBES_ONLY
from reposync.errors import ConfigError, UsageError
from reposync.outgoing import is_loopback

MAX_HEAD_BYTES = 16_384
RESERVED_CONNECTIONS = 16

_STOPPING = "stopping"
_ABORT_SECONDS = 1.0
_POLL_SECONDS = 0.01
_DRAIN_POLLS = 100
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`grace_seconds`: for responses in progress when the daemon shuts down. `idle_seconds`: a connection without a
    complete head of a request, or whose client reads nothing of a response, is closed after this time, and before twice
    as much; uvicorn would wait for ever. `max_connections`: more would take the file descriptors that syncs need; see
    `Connection`."""

    grace_seconds: float = 3.0
    idle_seconds: float = 10.0
    max_connections: int = 500


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where the server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


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


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep, but not while the server shuts down."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()


class Connection(H11Protocol):
    """Uvicorn's protocol within `limits`, with our JSON for its own error.

    If there are too many connections, the oldest one without an admitted request in progress is closed: a request with
    a valid token is answered whatever strangers hold. If all connections have an admitted request in progress, a few
    more may be used for probes. `limit_concurrency` of uvicorn would refuse probes and tokens as well.
    """

    def __init__(
        self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], limits: HttpLimits
    ) -> None:
        super().__init__(config, state, app_state)
        self._limits = limits
        self._made_at = self.loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._times_drained = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._close_if_still(before=self)
        surplus = len(self.connections) - self._limits.max_connections
        if surplus <= 0:
            return
        strangers = [each for each in connections_of(self.server_state) if not each.is_admitted and each is not self]
        if strangers:
            oldest = min(strangers, key=lambda each: each._made_at)
            self.connections.discard(oldest)
            oldest.drop()
        elif surplus > RESERVED_CONNECTIONS:
            self.transport.abort()
        else:
            self.app_state = {**self.app_state, PROBES_ONLY: True}

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._times_drained += 1
        super().resume_writing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_admitted(self) -> bool:
        """Whether a request is in progress whose client has a valid token or session, or needs none."""
        return not self.is_idle and ADMITTED in self.scope["state"]

    def drop(self) -> None:
        """End it now. What its client has not read is discarded: otherwise the kernel would keep it for minutes."""
        if self.transport.get_write_buffer_size() > 0:
            no_lingering = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_lingering)
        self.transport.abort()

    def _close_if_still(self, before: object) -> None:
        """`before`: the state at the check before this one."""
        state: object = object()
        if self.is_idle:
            state = self.cycle
        elif self.flow.write_paused:
            # Nothing more is written until the buffer drains: an equal size means that the client has read nothing.
            state = (self._times_drained, self.transport.get_write_buffer_size())
        if state == before:
            self.drop()
        else:
            self._idle_timer = self.loop.call_later(self._limits.idle_seconds, self._close_if_still, state)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            # The application may still be running; its response is discarded.
            self.cycle.disconnected = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # The invalid bytes followed a request whose response has started.
            self.transport.abort()
            return
        body = envelope("BAD_REQUEST", msg)
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        self.transport.write(f"HTTP/1.1 400 Bad Request\r\n{head}\r\n".encode() + body)
        self.transport.close()


def connections_of(state: ServerState) -> list[Connection]:
    return [each for each in state.connections if isinstance(each, Connection)]


@contextlib.asynccontextmanager
async def serve_http(
    app: ASGIApp, host: str, port: int, *, limits: HttpLimits | None = None
) -> AsyncIterator[HttpAddress]:
    """Serve `app` until the block ends; port 0 takes a free one. No signal handlers, no access log.

    Raises UsageError if it cannot listen on the address. Shutting down takes the grace period and two seconds at most,
    whatever clients do. Not `uvicorn.Server` (0.54.0): without a request in progress it ends 0.1 to 0.2 s later,
    it logs requests that it cancels as errors, and a connection whose client reads nothing stays open.
    """
    limits = limits or HttpLimits()
    listener = await asyncio.to_thread(_listen, host, port)
    bound = listener.getsockname()
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_seconds) + 1,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        # asyncio gives a connection the context in which the server was started; its requests must not log that run.
        reset_contextvars=True,
    )
    config.load()
    state, stopping = ServerState(), asyncio.Event()
    # Part of the scope of every request, for responses without an end of their own.
    app_state = {_STOPPING: stopping}
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(config, state, app_state, limits), sock=listener, backlog=_BACKLOG
    )
    try:
        yield HttpAddress(bound[0], bound[1])
    finally:
        stopping.set()
        server.close()
        await _shut_down(state, limits.grace_seconds)


async def _shut_down(state: ServerState, grace_seconds: float) -> None:
    async def wait_for_tasks(timeout_seconds: float) -> None:
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=timeout_seconds)

    try:
        for connection in connections_of(state):
            if not connection.transport.is_closing():
                connection.shutdown()
        await wait_for_tasks(grace_seconds)
        # Requests without a response still get one that gives the reason. A response that has started can only be cut
        # off; before its task is cancelled, or uvicorn would log that the task did not complete it.
        for connection in connections_of(state):
            if not connection.is_idle and connection.cycle.response_started:
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
        for connection in connections_of(state):
            connection.transport.abort()
        for task in state.tasks:
            task.cancel()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError that says what is wrong with the address."""
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
        remedy = "Use 127.0.0.1 for this machine only, or 0.0.0.0 for all its addresses."
        if code == errno.EADDRINUSE:
            remedy = "Is a daemon running already? Stop it, or choose a different port with --port (0: a free one)."
        raise UsageError(
            f"Cannot listen on port {port} of {host or 'this machine'}: {reason}.", remedy=remedy
        ) from error
    # Connections inherit it. asyncio sets it only on sockets with an explicit protocol, and each response with head and
    # body in two writes would otherwise take 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener
