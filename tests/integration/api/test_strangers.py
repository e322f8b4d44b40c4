"""Clients without a token that hold connections: nobody who has one is kept out. Real sockets, and few connections."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.api.server import HttpAddress, HttpLimits, serve_http
from reposync.config.sections import HttpConfig
from reposync.operations.core import Rule
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.api.conftest import Daemon
from tests.integration.api.serving import READER, TOKENS, bearer, eventually

CONNECTIONS = 12
UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4
BODY = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9000\r\n\r\nt"
SLOW = f"POST /login HTTP/1.1\r\nHost: localhost\r\n{BODY}".encode()


@contextlib.asynccontextmanager
async def serving(daemon: Daemon, idle_seconds: float = 600, **config: object) -> AsyncIterator[HttpAddress]:
    access = Access(TOKENS, HttpConfig.model_validate(config))
    app = create_app(replace(daemon.parts, access=access))

    @app.get("/test/read", dependencies=[access.requires(Rule.READ)])
    async def read() -> str:
        return "read"

    limits = HttpLimits(grace_seconds=0.05, idle_seconds=idle_seconds, max_connections=CONNECTIONS)
    async with serve_http(app, "127.0.0.1", 0, limits=limits) as address:
        yield address


@contextlib.asynccontextmanager
async def holding(address: HttpAddress, request: bytes, count: int = CONNECTIONS) -> AsyncIterator[list[socket.socket]]:
    """Connections that have sent `request`, and neither send nor read anything more."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            stranger = stack.enter_context(socket.socket())
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            # As on a real network: small segments, small buffers.
            stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            stranger.connect((address.host, address.port))
            stranger.sendall(request)
            held.append(stranger)
            await asyncio.sleep(0)
        # Answered after the requests before it have begun.
        assert (await status(address, "/healthz")) == 200
        yield held


def is_open(stranger: socket.socket) -> bool:
    """Without reading, which would make room for the server to write."""
    established = 1
    return stranger.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == established


async def status(address: HttpAddress, path: str) -> int:
    async with httpx.AsyncClient(base_url=address.url, timeout=PATIENCE_SECONDS, headers=bearer(READER)) as client:
        return (await client.get(path)).status_code


@pytest.mark.parametrize("request_bytes", [UNREAD, SLOW], ids=["responses nobody reads", "bodies that do not come"])
async def test_a_request_with_a_token_is_answered_while_strangers_hold_all_they_can(
    daemon: Daemon, request_bytes: bytes
) -> None:
    async with serving(daemon) as address, holding(address, request_bytes, CONNECTIONS * 2) as held:
        assert [await status(address, "/test/read") for _ in range(5)] == [200] * 5
        assert sum(map(is_open, held)) > CONNECTIONS // 2, "the strangers still hold most of the connections"


async def test_a_response_that_nobody_reads_ends_with_its_connection(daemon: Daemon) -> None:
    async with serving(daemon, idle_seconds=0.3) as address, holding(address, UNREAD, 3) as held:
        await eventually(lambda: not any(map(is_open, held)))


async def test_a_slow_reader_gets_every_response_whole(daemon: Daemon) -> None:
    last = UNREAD.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
    async with serving(daemon, idle_seconds=2) as address, holding(address, last, 1) as (reader,):
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        reader.setblocking(False)
        received, loop = bytearray(), asyncio.get_running_loop()
        while piece := await loop.sock_recv(reader, 4_096):
            received += piece
            await asyncio.sleep(0.01)

    assert received.count(b"HTTP/1.1 200") == received.count(b'"openapi":') == 4
    assert received.endswith(b"}")


async def test_a_login_form_must_arrive_within_three_seconds(daemon: Daemon) -> None:
    async with serving(daemon) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(SLOW)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"within 3 s" in answer


async def test_probes_do_not_wait_until_a_burst_of_pages_is_answered(daemon: Daemon) -> None:
    async with serving(daemon) as address, contextlib.AsyncExitStack() as stack:
        assert await status(address, "/docs") == 200
        # Without a turn of the event loop in between: the server finds all of them at once.
        *pages, probe = (stack.enter_context(socket.create_connection((address.host, address.port))) for _ in range(11))
        for page in pages:
            page.sendall(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        probe.setblocking(False)
        assert b"200 OK" in await asyncio.get_running_loop().sock_recv(probe, 4_096)

        answered, _, _ = select.select(pages, [], [], 0)
        assert len(answered) < len(pages)
