import asyncio
import contextlib
import http.client
import json
import logging
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import structlog
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from reposync.api.app import create_app
from reposync.api.server import Connection, HttpAddress, HttpLimits, check_exposure, serve_http
from reposync.errors import ConfigError, UsageError
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.api.conftest import Daemon

QUICK_END = HttpLimits(grace_seconds=0.05)
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
QUICK_HEAD = HttpLimits(grace_seconds=0.05, idle_seconds=0.3)


@pytest.fixture
def app(daemon: Daemon) -> FastAPI:
    return create_app(daemon.parts)


@contextlib.asynccontextmanager
async def connected(address: HttpAddress) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def asks(address: HttpAddress, path: str) -> httpx.Response:
    """Over a connection of its own."""
    async with httpx.AsyncClient(base_url=address.url, timeout=PATIENCE_SECONDS) as client:
        return await client.get(path)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes the connection, however it does."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    except ConnectionError:
        return b""


async def test_port_0_takes_a_free_port_of_the_address(app: FastAPI) -> None:
    async with (
        serve_http(app, "127.0.0.1", 0) as first,
        serve_http(app, "localhost", 0) as second,
        serve_http(app, "0.0.0.0", 0) as every,
        httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client,
    ):
        assert first.port != second.port
        assert first.url == f"http://127.0.0.1:{first.port}"
        assert every.host == "0.0.0.0"
        for url in (first.url, second.url, f"http://127.0.0.1:{every.port}"):
            assert (await client.get(f"{url}/healthz")).status_code == 200


async def test_ipv6_where_the_machine_has_it(app: FastAPI) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serve_http(app, "::", 0) as address, httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        assert (await client.get(f"http://[::1]:{address.port}/healthz")).status_code == 200
        assert (await client.get(f"http://127.0.0.1:{address.port}/healthz")).status_code == 200
        assert address.url == f"http://[::]:{address.port}"


async def test_a_response_in_two_writes_is_not_held_back(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[socket.socket] = []
    made = Connection.connection_made

    def accept(connection: Connection, transport: asyncio.Transport) -> None:
        accepted.append(transport.get_extra_info("socket"))
        made(connection, transport)

    monkeypatch.setattr(Connection, "connection_made", accept)
    async with serve_http(app, "127.0.0.1", 0) as address, connected(address) as (reader, writer):
        writer.write(PROBE)
        await reader.readuntil(b"}")
        assert [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in accepted] == [1]


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "Cannot assign requested address."),
        ("no-such.invalid", "it is neither an address nor a known name."),
    ],
)
async def test_an_address_that_cannot_be_used_is_explained(app: FastAPI, host: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        async with serve_http(app, host, 0):
            pass

    assert (caught.value.message, caught.value.exit_code) == (f"Cannot listen on port 0 of {host}: {reason}", 2)
    assert caught.value.remedy


async def test_a_port_in_use_is_named_and_free_again_when_the_server_ends(app: FastAPI) -> None:
    async with serve_http(app, "127.0.0.1", 0) as address:
        with pytest.raises(UsageError, match=f"port {address.port} of 127.0.0.1: Address already in use.*--port"):
            async with serve_http(app, "127.0.0.1", address.port):
                pass
    async with serve_http(app, "127.0.0.1", address.port):
        pass


def streaming(app: FastAPI) -> asyncio.Event:
    begun = asyncio.Event()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            begun.set()
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)

        return StreamingResponse(pieces())

    return begun


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localhost",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
        b"nonsense\r\n\r\n",
    ],
    ids=["silent", "half a head", "kept alive", "never reads", "half a body", "nonsense"],
)
async def test_no_open_connection_holds_up_the_end(
    app: FastAPI, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    streaming(app)

    @app.post("/orders")
    async def orders(order: dict[str, str]) -> None: ...

    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(serve_http(app, "127.0.0.1", 0, limits=QUICK_END))
        # Not asyncio's: a client that never reads must not read.
        with socket.create_connection((address.host, address.port)) as idle:
            idle.sendall(request_bytes)
            assert (await asks(address, "/healthz")).status_code == 200
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stack.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_answer_under_way_is_finished_when_the_daemon_ends(app: FastAPI) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    @app.get("/slow")
    async def slow() -> str:
        asked.set()
        await go_on.wait()
        return "done"

    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        async with serve_http(app, "127.0.0.1", 0) as address:
            request = asyncio.create_task(client.get(f"{address.url}/slow"))
            await asked.wait()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        answer = await request

    assert answer.json() == "done"


async def test_a_head_must_be_complete_in_time(app: FastAPI) -> None:
    async with serve_http(app, "127.0.0.1", 0, limits=QUICK_HEAD) as address:
        for beginning in (b"", b"GET /healthz HTTP/1.1\r\n"):
            async with connected(address) as (reader, writer):
                writer.write(beginning)
                assert await rest(reader) == b""
        async with connected(address) as (reader, writer):  # the next one on a kept connection, too
            writer.write(PROBE)
            await reader.readuntil(b'{"status":"ok"}')
            writer.write(b"GET /healthz HTTP/1.1\r\n")
            assert await rest(reader) == b""
        async with connected(address) as (reader, writer):  # byte by byte

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    for _ in range(10_000):
                        writer.write(b"GET" if not _ else b"T")
                        await writer.drain()
                        await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert b"200" not in await rest(reader)
            dripping.cancel()


async def test_idle_connections_keep_out_neither_probes_nor_anybody_else(app: FastAPI) -> None:
    limits = HttpLimits(max_connections=50, idle_seconds=600)
    async with serve_http(app, "127.0.0.1", 0, limits=limits) as address, contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connected(address)) for _ in range(50)]
        for reader, writer in held:
            writer.write(PROBE)
            assert await reader.readuntil(b"}")

        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await asks(address, path)).status_code in (200, 503)
        # The oldest one made room.
        assert await rest(held[0][0]) == b""
        reader, writer = held[-1]
        writer.write(PROBE)
        assert await reader.readuntil(b"}")


async def test_with_every_connection_busy_probes_are_answered_and_the_reserve_cannot_be_held(
    app: FastAPI, daemon: Daemon
) -> None:
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    @app.get("/wait", dependencies=daemon.parts.readers)
    async def wait() -> None:
        begun.release()
        await go_on.wait()

    limits = HttpLimits(max_connections=3)
    async with (
        serve_http(app, "127.0.0.1", 0, limits=limits) as address,
        asyncio.TaskGroup() as group,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(3):
            group.create_task(asks(address, "/wait"))
            await begun.acquire()
        held = [await stack.enter_async_context(connected(address)) for _ in range(5)]

        assert (await asks(address, "/healthz")).status_code == 200
        refused = await asks(address, "/openapi.json")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "TOO_MANY_CONNECTIONS")
        assert refused.headers["retry-after"] == "5"
        # Whoever held a place for probes, and said nothing, had to leave it.
        assert await rest(held[0][0]) == b""
        go_on.set()


async def test_a_client_that_is_refused_before_its_body_came_in_still_reads_why(app: FastAPI) -> None:
    def sends(path: str, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.request("POST", path, body=b"x" * 26_000_000, headers=headers)
            return connection.getresponse().status

    async with serve_http(app, "127.0.0.1", 0) as address:
        for path, headers, status in (
            ("/api/v1/repositories", {"Sec-Fetch-Site": "cross-site"}, 403),
            ("/api/v1/repositories", {}, 413),
            ("/no/such/page", {}, 404),
            ("/healthz", {}, 405),
        ):
            assert await asyncio.to_thread(sends, path, headers) == status, path


async def test_what_comes_after_the_last_answer_is_taken_within_limits(app: FastAPI) -> None:
    async with serve_http(app, "127.0.0.1", 0, limits=QUICK_HEAD) as address, connected(address) as (reader, writer):
        writer.write(b"POST /no/such/page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000,
    ],
)
async def test_invalid_http_gets_400_in_our_envelope(app: FastAPI, rubbish: bytes) -> None:
    async with serve_http(app, "127.0.0.1", 0) as address, connected(address) as (reader, writer):
        writer.write(rubbish)
        answer = await rest(reader)

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    error = json.loads(body)["error"]
    assert (error["code"], error["message"]) == ("BAD_REQUEST", "Invalid HTTP request received.")
    assert error["help"] == "/help/errors#bad_request"


@pytest.mark.parametrize("path", ["/stream", "/wait"], ids=["an answer has begun", "none has"])
async def test_an_invalid_body_closes_only_its_connection(
    app: FastAPI, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun = streaming(app)
    go_on, done = asyncio.Event(), asyncio.Event()

    @app.get("/wait")
    async def wait() -> None:
        begun.set()
        await go_on.wait()
        asyncio.get_running_loop().call_later(0.01, done.set)

    async with serve_http(app, "127.0.0.1", 0, limits=QUICK_END) as address, connected(address) as (reader, writer):
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        await begun.wait()
        writer.write(b"nonsense\r\n\r\n")
        answer = await rest(reader)
        assert (b"400 Bad Request" in answer) == (path == "/wait")
        go_on.set()
        assert (await asks(address, "/healthz")).status_code == 200
        assert path == "/stream" or await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_requests_are_not_logged_and_do_not_inherit_the_context_of_the_server(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/context")
    async def context() -> dict[str, object]:
        return structlog.contextvars.get_contextvars()

    with caplog.at_level(logging.INFO), structlog.contextvars.bound_contextvars(run="01J"):
        async with serve_http(app, "127.0.0.1", 0) as address:
            answer = await asks(address, "/context?token=abc")

    assert "run" not in answer.json()
    assert "server" not in answer.headers and "date" in answer.headers
    assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"] == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "pod.example.com", "localhost.example.com", "fe80::1%eth0"]
)
def test_without_a_token_others_are_not_let_in(host: str) -> None:
    for ours in ("127.0.0.1", "127.8.9.10", "localhost", "::1"):
        check_exposure(ours, has_tokens=False)
    check_exposure(host, has_tokens=True)
    with pytest.raises(ConfigError) as caught:
        check_exposure(host, has_tokens=False)

    assert "REPOSYNC_API_TOKEN" in (caught.value.remedy or "")
    assert caught.value.exit_code == 2
