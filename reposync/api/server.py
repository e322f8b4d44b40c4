"""Serving the application: one listener, inside the caller's event loop, gone when the caller leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from reposync.api.connections import BoundedProtocol, HttpLimits, within
from reposync.api.leaving import STATE_KEY
from reposync.api.listening import listen
from reposync.errors import ConfigError, RepoSyncError, first_error
from reposync.outgoing import is_loopback

log = logging.getLogger(__name__)

_CUT_SECONDS = 1.0
_TURN_SECONDS = 0.01
_DRAIN_TURNS = 100
_DATE_SECONDS = 1.0
_BACKLOG = 512


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where the server really listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def check_exposure(host: str, *, has_tokens: bool) -> None:
    """Raises ConfigError where others could reach the server and it would let anybody in."""
    if has_tokens or is_loopback(host):
        return
    raise ConfigError(
        f"Listening on {host or 'every address'} would let anybody on the network trigger, read and cancel syncs.",
        remedy="Set REPOSYNC_API_TOKEN, or listen on 127.0.0.1 (--host 127.0.0.1).",
    )


@contextlib.asynccontextmanager
async def serve_http(
    app: ASGIApp, host: str, port: int, *, limits: HttpLimits | None = None
) -> AsyncIterator[HttpAddress]:
    """Serve `app` until the block is left; port 0 takes a free one. No signal handlers, no access log.

    Raises UsageError where the address cannot be had. A server that ends by itself ends the block: it is cancelled, and
    RepoSyncError is raised. Leaving takes the grace of `limits` and two seconds at most, whoever holds a connection.
    """
    limits = limits or HttpLimits()
    listener = await listen(host, port, backlog=_BACKLOG)
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
                server.leaving.set()
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
        http=within(limits),
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
        # asyncio gives a connection the context of whoever opened it; lines of a request must not name a run.
        reset_contextvars=True,
    )


class _Server(uvicorn.Server):
    """Uvicorn that is told when to end, in place of asking ten times a second, and that ends in bounded time."""

    def __init__(self, config: uvicorn.Config, grace_seconds: float) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.leaving = asyncio.Event()
        self._grace_seconds = grace_seconds

    async def serve_on(self, listener: socket.socket) -> None:
        try:
            # Not `serve`, which takes the process's signals.
            await self._serve([listener])
        except asyncio.CancelledError:
            if self.leaving.is_set():
                raise
        finally:
            self._cut()
        if not self.leaving.is_set():
            log.error("The HTTP server ended by itself")
            raise RepoSyncError("The HTTP server ended by itself.", remedy="Its last lines in the log may say why.")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # In the scope of every request, for answers that have no end of their own.
        self.lifespan.state[STATE_KEY] = self.leaving
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.up.set()
        while not self.leaving.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self.leaving.wait()
            # Nothing but the Date header of the answers hangs on it.
            await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._wait_for_tasks(self._grace_seconds)
        # Those who wait still get an answer that says why. One that has begun can only end here; before its task does,
        # so that nobody is told that the task did not finish it.
        for connection in self._connections():
            if connection.answers:
                connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        await self._wait_for_tasks(_CUT_SECONDS)
        await self._drain()

    async def _wait_for_tasks(self, timeout_seconds: float) -> None:
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=timeout_seconds)

    async def _drain(self) -> None:
        """Give what answers left in the buffers of their connections a moment, if the clients take it."""
        for _ in range(_DRAIN_TURNS):
            if not self.server_state.connections:
                return
            await asyncio.sleep(_TURN_SECONDS)

    def _cut(self) -> None:
        for server in getattr(self, "servers", []):
            server.close()
        for connection in self._connections():
            connection.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()

    def _connections(self) -> list[BoundedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, BoundedProtocol)]
