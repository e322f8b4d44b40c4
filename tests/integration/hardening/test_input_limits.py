"""What a client may send: beyond it there is an answer in the usual envelope, and never a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.integration.api.conftest import Daemon

DEEP = 300_000


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with Daemon().client() as client:
        yield client


async def raw(client: httpx.AsyncClient, head: bytes, body: bytes = b"") -> tuple[int, str]:
    """Status and error code of the answer to these very bytes."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(head + b"\r\nConnection: close\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    first, _, text = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(text)["error"]["code"]


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        (b"\r\n".join(b"X-%d: y" % number for number in range(2_000)), "many"),
        (b"X-Long: " + b"y" * 20_000, "long"),
        (b"Cookie: " + b"a=b; " * 4_000, "cookies"),
    ],
)
async def test_more_header_than_is_taken_is_refused(client: httpx.AsyncClient, headers: bytes, what: str) -> None:
    status, code = await raw(client, b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n" + headers)

    assert (status, code) == (431, "HEADERS_TOO_LARGE")


async def test_an_address_longer_than_a_head_may_be_is_refused(client: httpx.AsyncClient) -> None:
    assert await raw(client, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost") == (414, "PATH_TOO_LONG")


@pytest.mark.parametrize("path", ["/api/v1/repositories/{}", "/api/v1/repositories/{}/sync", "/api/v1/runs/{}", "/{}"])
async def test_a_path_is_found_or_not_however_long_it_is(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path.format("a" * 8_000))

    assert answer.status_code in (404, 405, 422), answer.text
    assert len(answer.content) < 2_000, "the answer does not grow with the question"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"name": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"name": "a", "max_file_bytes": ' + b"9" * 900_000 + b"}",
        b'{"name": "a", "max_file_bytes": 1e999999}',
        b"{" + b",".join(b'"k%d": 1' % number for number in range(60_000)) + b"}",
        b'{"name": "a", "include": [' + b",".join([b'"*"'] * 200_000) + b"]}",
    ],
    ids=["brackets", "nested value", "digits", "infinite", "keys", "items"],
)
@pytest.mark.parametrize("path", ["/api/v1/repositories", "/api/v1/repositories/a/sync"])
async def test_a_body_of_any_depth_and_width_gets_an_answer(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})

    # 503: what came was understood, and there is no database in these tests.
    assert answer.status_code in (400, 413, 422, 503), answer.text[:300]
    assert answer.json()["error"]["code"] != "INTERNAL_ERROR"
    assert len(answer.content) < 20_000


@pytest.mark.parametrize(
    "query",
    ["q=" + "a" * 8_000, "q=x&limit=" + "9" * 5_000, "q=x&limit=-1", "q=x&path=" + "*" * 1_001,
     "q=x&language=" + "a" * 51, "q=x&q=y&" + "&".join(f"k{number}=1" for number in range(900)), "q=%ff%fe", "q="],
    ids=["long", "digits", "negative", "pattern", "language", "keys", "bytes", "empty"],
)  # fmt: skip
async def test_a_search_for_anything_gets_an_answer(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/api/v1/search?{query}")

    assert answer.status_code in (400, 414, 422, 503), answer.text[:300]
    assert answer.json()["error"]["code"] != "INTERNAL_ERROR"
