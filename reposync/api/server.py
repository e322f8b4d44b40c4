"""The HTTP server: one listener inside the caller's event loop, for as long as the caller's block runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import Request
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from reposync.api.connections import BoundedProtocol, HttpLimits, Shares
from reposync.errors import ConfigError, UsageError
from reposync.outgoing import is_loopback

_STOPPING, _TASKS = "stopping", "tasks"
_ABORT_SECONDS = 1.0
_POLL_SECONDS = 0.01
_DRAIN_POLLS = 100
_BACKLOG = 512
# Of the loop: accept, make the transport, connection_made, the first step of the task that it may start.
_ACCEPTING_TURNS = 4


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
        await stop_accepting(server)
        await _shut_down(state, limits.grace_seconds)


async def stop_accepting(server: asyncio.Server) -> None:
    """Close `server` once the connections it has accepted exist: asyncio (Python 3.11) forgets those that it accepts
    in the same turn, with their sockets open, and the others would not be known to whoever closes them all."""
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener)
    try:
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
    finally:
        server.close()


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
