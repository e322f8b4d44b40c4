"""The HTTP server: one listener inside the caller's event loop, for as long as the caller's block runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import uvicorn
from fastapi import Request
from starlette.types import ASGIApp

from reposync.api.connections import BoundedProtocol, HttpLimits, protocol_class
from reposync.errors import ConfigError, RepoSyncError, UsageError, first_error
from reposync.outgoing import is_loopback

log = logging.getLogger(__name__)

_STOPPING = "stopping"
_ABORT_SECONDS = 1.0
_POLL_SECONDS = 0.01
_DRAIN_POLLS = 100
_DATE_SECONDS = 1.0
_BACKLOG = 512


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

    Raises UsageError if it cannot listen on the address. If the server ends by itself, the block is cancelled, and
    RepoSyncError is raised. Shutting down takes the grace period and two seconds at most, whatever clients do.
    """
    limits = limits or HttpLimits()
    listener = await asyncio.to_thread(_listen, host, port)
    bound = listener.getsockname()
    server = _Server(_config(app, limits), limits.grace_seconds)
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve_on(listener), name="http server")
            await server.up.wait()
            try:
                yield HttpAddress(bound[0], bound[1])
            except Exception as error:  # noqa: BLE001 (raised below, outside the group that would wrap it)
                failure = error
            finally:
                server.stopping.set()
                await asyncio.wait({serving})
    except ExceptionGroup as errors:
        failure = failure or first_error(errors)
    finally:
        listener.close()
    if failure is not None:
        raise failure


def _config(app: ASGIApp, limits: HttpLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol_class(limits),
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=limits.keep_alive_seconds,
        h11_max_incomplete_event_size=limits.max_head_bytes,
        # asyncio gives a connection the context in which the server was started; its requests must not log that run.
        reset_contextvars=True,
    )


class _Server(uvicorn.Server):
    """Uvicorn that is stopped by an event, instead of polling ten times a second, and that stops in bounded time."""

    def __init__(self, config: uvicorn.Config, grace_seconds: float) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.stopping = asyncio.Event()
        self._grace_seconds = grace_seconds

    async def serve_on(self, listener: socket.socket) -> None:
        try:
            # Not `serve`, which replaces the signal handlers of the process.
            await self._serve([listener])
        except asyncio.CancelledError:
            if self.stopping.is_set():
                raise
        finally:
            for server in getattr(self, "servers", []):
                server.close()
            for connection in self._connections():
                connection.transport.abort()
            for task in self.server_state.tasks:
                task.cancel()
        if not self.stopping.is_set():
            log.error("The HTTP server ended by itself")
            raise RepoSyncError("The HTTP server ended by itself.", remedy="Its last log lines may give the reason.")

    async def main_loop(self) -> None:
        # Part of the scope of every request from now on; for responses without an end of their own.
        self.lifespan.state[_STOPPING] = self.stopping
        await self.on_tick(0)
        self.up.set()
        while not self.stopping.is_set():
            await pause(self.stopping, _DATE_SECONDS)
            # Updates the Date header of responses.
            await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._wait_for_tasks(self._grace_seconds)
        # Requests without a response still get one that gives the reason. A response that has started can only be cut
        # off; before its task is cancelled, or uvicorn would log that the task did not complete it.
        for connection in self._connections():
            if connection.is_responding:
                connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        await self._wait_for_tasks(_ABORT_SECONDS)
        # Time for clients to read what is left in the buffers of their connections.
        for _ in range(_DRAIN_POLLS):
            if not self.server_state.connections:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _wait_for_tasks(self, timeout_seconds: float) -> None:
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=timeout_seconds)

    def _connections(self) -> list[BoundedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, BoundedProtocol)]


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
