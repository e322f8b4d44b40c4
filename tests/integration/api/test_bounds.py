"""What a request may be, and the name that it gets. Raw bytes where a client library would be too polite."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import structlog
from fastapi import FastAPI, Request

from reposync.api.errors import add_error_handlers
from reposync.api.middleware import MAX_QUERY_BYTES, Requests
from reposync.api.routing import BodyLimits, Route
from reposync.api.server import HttpAddress, serve_http
from reposync.config.sections import HttpConfig
from reposync.telemetry.metrics import Metrics
from tests.fixtures.patience import PATIENCE_SECONDS


class SmallRoute(Route):
    body_limits = BodyLimits(max_bytes=1_000, seconds=0.2)


@pytest.fixture
async def address() -> AsyncIterator[HttpAddress]:
    app = FastAPI()
    app.router.route_class = SmallRoute
    add_error_handlers(app, str)
    app.add_middleware(Requests, config=HttpConfig(), metrics=Metrics(version="1.2.3"), has_tokens=True)

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/api/echo/{word:path}")
    async def echo(word: str) -> dict[str, str]:
        return {"word": word, "request": structlog.contextvars.get_contextvars()["request"]}

    @app.get("/wrong")
    async def wrong() -> None:
        raise ZeroDivisionError

    async with serve_http(app, "127.0.0.1", 0) as address:
        yield address


@pytest.fixture
async def client(address: HttpAddress) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address.url) as client:
        yield client


async def said(address: HttpAddress, *pieces: bytes) -> tuple[int, str]:
    """Status and error code of what the server answers to these bytes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


async def test_a_body_within_the_bounds_arrives_whole(client: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 100

    assert (await client.post("/length", content=b"x" * 1_000)).json() == 1_000
    assert (await client.post("/length", content=pieces())).json() == 1_000
    assert (await client.post("/length")).json() == 0


async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(address: HttpAddress) -> None:
    head = b"POST /length HTTP/1.1\r\nHost: x\r\n"

    assert await said(address, head, b"Content-Length: 1001\r\n\r\n") == (413, "BODY_TOO_LARGE")
    assert await said(address, head, b"Content-Length: " + b"9" * 19 + b"\r\n\r\n") == (413, "BODY_TOO_LARGE")
    chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    assert await said(address, head, b"Transfer-Encoding: chunked\r\n\r\n", chunk * 3) == (413, "BODY_TOO_LARGE")


async def test_a_body_of_two_lengths_is_refused_and_ends_the_connection(address: HttpAddress) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"0\r\n\r\nGET /api/echo/smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    answers = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()

    assert answers.startswith(b"HTTP/1.1 400") and b"BAD_REQUEST" in answers
    assert answers.count(b"HTTP/1.1") == 1 and b"smuggled" not in answers


async def test_a_body_that_comes_too_slowly_is_refused(address: HttpAddress) -> None:
    head = b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"

    assert await said(address, head, b"x") == (408, "BODY_TOO_SLOW")


async def test_an_address_that_is_too_long_or_holds_a_nul_is_refused(client: httpx.AsyncClient) -> None:
    for path, status, code in (
        ("/api/echo/x?" + "a" * (MAX_QUERY_BYTES + 1), 414, "QUERY_TOO_LONG"),
        ("/api/echo/x?a=%00", 422, "REQUEST_INVALID"),
        ("/api/echo/x%00y", 422, "REQUEST_INVALID"),
        ("/x%00y", 404, "NOT_FOUND"),
    ):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
    assert (await client.get("/api/echo/x?" + "a" * MAX_QUERY_BYTES)).status_code == 200


async def test_a_valid_request_id_is_used_and_any_other_is_replaced(client: httpx.AsyncClient) -> None:
    for given in (b"abc", b"A.b_c-9", b"x" * 64, b"", b"a b", b"x" * 65, b'"', "ä".encode(), b"a\tb"):
        answer = await client.get("/api/echo/x", headers={b"X-Request-Id": given})
        request_id = answer.headers["x-request-id"]
        assert answer.json()["request"] == request_id
        is_valid = re.fullmatch(rb"[A-Za-z0-9._-]{1,64}", given)
        assert request_id == given.decode() if is_valid else re.fullmatch("[0-9a-f]{32}", request_id)
