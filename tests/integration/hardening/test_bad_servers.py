"""Servers that take every connection and then do what no server should: each client ends, in its time and in its
memory, with an error that says what is wrong."""

from __future__ import annotations

import asyncio
import itertools
import re
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from reposync.errors import EmbeddingUnavailable, IndexUnavailable, RepoSyncError, SourceUnavailable
from reposync.store import postgresql
from tests.fixtures.network import BadServer
from tests.integration.hardening.conftest import EMBEDDING, GIT, GITLAB, HTTP, POSTGRESQL, QDRANT, REDIS, SECRET, Client

UNAVAILABLE = {GITLAB: SourceUnavailable, GIT: SourceUnavailable, EMBEDDING: EmbeddingUnavailable,
               QDRANT: IndexUnavailable}  # fmt: skip
SECONDS = 0.2
# Far above what a client that keeps to its bounds needs, below the default of every time-out (Qdrant's 30 s).
PATIENCE_SECONDS = 25.0
READING_SECONDS = 60.0
"""Of what is read while memory is traced, which takes long on a busy machine."""
MOST_MEMORY_BYTES = 150 * 1024 * 1024
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
TYPES = {GIT: b"application/x-git-upload-pack-advertisement"}

Pieces = Callable[[Client], AsyncIterator[bytes]]


def name(value: Client | Pieces) -> str:
    return getattr(value, "__name__", "") or str(value)


def head(client: Client, *lines: bytes) -> bytes:
    return HEAD % TYPES.get(client, b"application/json") + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


async def nothing(client: Client) -> AsyncIterator[bytes]:
    """Takes the request, and says nothing."""
    await asyncio.Event().wait()
    yield b""


async def endless_refs(client: Client) -> AsyncIterator[bytes]:
    """A list of refs whose lines say nothing."""
    yield head(client, b"Transfer-Encoding: chunked")
    while True:
        yield b"10000\r\n" + b"0000" * 16_384 + b"\r\n"


async def dripping_body(client: Client) -> AsyncIterator[bytes]:
    yield head(client, b"Content-Length: 1000000")
    while True:
        yield b"0"
        await asyncio.sleep(SECONDS / 6)


async def endless_headers(client: Client) -> AsyncIterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"".join(b"X-%d-%d: %s\r\n" % (number, each, b"y" * 1000) for each in range(100))


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A megabyte that unfolds to 256."""
    packer = zlib.compressobj(1, wbits=zlib.MAX_WBITS | 16)
    lines = (b"fff0" + b"0" * 65_516) * 16  # git's framing, so that git reads on
    return b"".join([*(packer.compress(lines) for _ in range(256)), packer.flush()])


async def asked(
    client: Client, behaviour: Pieces, seconds: float = SECONDS, patience_seconds: float = PATIENCE_SECONDS
) -> RepoSyncError:
    """The error with which the client gives up. `seconds`: its time-out."""
    calls = 0
    with BadServer(lambda: behaviour(client)) as server:
        async with asyncio.timeout(patience_seconds):
            while not server.taken:  # on a busy machine connecting may take the whole time-out
                calls += 1
                with pytest.raises(RepoSyncError) as given_up:
                    await client.ask(f"http://127.0.0.1:{server.port}", None, seconds)
        assert server.taken <= calls, "each call asks once"
        assert SECRET not in str(given_up.value)
        return given_up.value


@pytest.mark.parametrize("behaviour", [nothing, dripping_body], ids=name)
@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_a_server_that_is_silent_or_drips_is_not_waited_for(client: Client, behaviour: Pieces) -> None:
    error = await asked(client, behaviour)

    assert isinstance(error, UNAVAILABLE[client])
    assert re.search(r"time|did not end within", str(error)), str(error)


@pytest.mark.parametrize(
    ("client", "behaviour"), [*((each, endless_headers) for each in HTTP), (GIT, endless_refs)], ids=name
)
async def test_a_head_or_a_list_without_end_is_not_read(client: Client, behaviour: Pieces) -> None:
    tracemalloc.start()
    try:
        error = await asked(client, behaviour, patience_seconds=READING_SECONDS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert error.retryable or error.status == 502
    assert peak_bytes < MOST_MEMORY_BYTES


@pytest.mark.parametrize("client", HTTP, ids=str)
async def test_an_answer_that_unfolds_without_measure_is_not_unfolded(client: Client, bomb: bytes) -> None:
    async def gzip_bomb(client: Client) -> AsyncIterator[bytes]:
        yield head(client, b"Content-Encoding: gzip", b"Content-Length: %d" % len(bomb)) + bomb

    tracemalloc.start()
    try:
        error = await asked(client, gzip_bomb, READING_SECONDS, READING_SECONDS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "unfold" in str(error) or "more than" in str(error), str(error)
    assert peak_bytes < MOST_MEMORY_BYTES


@pytest.mark.parametrize("client", [REDIS, POSTGRESQL], ids=str)
async def test_a_database_that_says_nothing_is_not_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", SECONDS)

    error = await asked(client, nothing)

    assert error.retryable
    assert "in time" in str(error)


async def dripping_resp(client: Client) -> AsyncIterator[bytes]:
    yield b"+"
    while True:
        yield b"."
        await asyncio.sleep(SECONDS / 6)


@pytest.mark.parametrize("client", [REDIS, POSTGRESQL], ids=str)
async def test_a_database_that_never_comes_to_an_end_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", SECONDS)

    error = await asked(client, dripping_resp)

    assert error.retryable
