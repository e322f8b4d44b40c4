"""Servers whose answers never end: they cost the time that the documentation states, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.sections import EmbeddingConfig, QdrantConfig
from reposync.embedding.factory import open_embedder
from reposync.errors import EmbeddingUnavailable, IndexUnavailable, SourceUnavailable
from reposync.outgoing import Timeouts
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.port import RemoteGit
from reposync.sources.smart_http import UploadPack
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.listener import Connection, Listener

READ_SECONDS = 0.2
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n"


def content_type(request: bytes) -> bytes:
    return b"application/x-git-upload-pack-advertisement" if b"info/refs" in request else b"application/json"


class Endless(Listener):
    """Sends its answer a byte at a time, each well within the time-out between two bytes: without an end to its
    headers, or to its body."""

    def __init__(self, *, headers: bool) -> None:
        super().__init__()
        self.headers = headers
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def handle(self, connection: Connection) -> None:
        request = await connection.reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        connection.writer.write(HEAD % content_type(request) + (b"" if self.headers else b"\r\n"))
        while True:
            connection.writer.write(b"X: y\r\n" if self.headers else b"1\r\n0\r\n")
            await connection.writer.drain()
            await asyncio.sleep(READ_SECONDS / 20)


@pytest.fixture(params=[True, False], ids=["headers", "body"])
def endless(request: pytest.FixtureRequest) -> Iterator[Endless]:
    with Endless(headers=request.param) as server:
        yield server


class InProcess(httpx.AsyncBaseTransport):
    """Such answers without a server: no time-out between two bytes passes first, however busy the machine is."""

    def __init__(self, *, headers: bool) -> None:
        self.headers = headers
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.headers:
            await asyncio.Event().wait()
        return httpx.Response(200, headers={"Content-Type": content_type(request.url.raw_path)}, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            yield b"0"
            await asyncio.sleep(READ_SECONDS / 20)


async def ask_gitlab(url: str) -> None:
    limits = {"connect_timeout_seconds": 1.0, "read_timeout_seconds": READ_SECONDS}
    client = GitLabClient(GitLabInstance.model_validate({"name": "main", "url": url, **limits}))
    try:
        await client.ping()
    finally:
        await client.close()


async def ask_git(url: str) -> None:
    pack = UploadPack(RemoteGit(f"{url}/a.git", timeouts=Timeouts(1.0, READ_SECONDS)))
    try:
        await pack.refs(b"refs/heads/")
    finally:
        await pack.close()


SOURCES = pytest.mark.parametrize("ask", [ask_gitlab, ask_git])
BOUND = r"the answer did not end within (1\.4|2) s"


@SOURCES
async def test_a_source_costs_at_most_the_documented_time(
    endless: Endless, ask: Callable[[str], Awaitable[None]]
) -> None:
    with pytest.raises(SourceUnavailable, match=rf"failed( \d times)?: {BOUND}"):
        await ask(endless.url)


@SOURCES
@pytest.mark.parametrize("headers", [True, False], ids=["headers", "body"])
async def test_a_source_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], Awaitable[None]], headers: bool
) -> None:
    transport = InProcess(headers=headers)
    monkeypatch.setattr("reposync.http_client.client_options", lambda *_, **__: {"transport": transport})
    with pytest.raises(SourceUnavailable, match=rf"failed: {BOUND}"):
        await ask("http://127.0.0.1:9")
    assert transport.requests == 1


async def test_qdrant(endless: Endless) -> None:
    config = QdrantConfig.model_validate({"url": endless.url, "timeout_seconds": 1.0})
    index = QdrantIndex(IndexSettings("code", Path("unused"), config))
    with pytest.raises(IndexUnavailable, match=r"failed: the answer did not end within (3|10) s"):
        await index.count()
    await index.close()
    assert endless.requests == 1


async def test_an_embedding_server_is_asked_at_most_as_often_as_attempts_say(endless: Endless) -> None:
    settings = {"provider": "openai", "url": endless.url, "model": "m", "timeout_seconds": 1.0, "attempts": 2}
    embedder = open_embedder(EmbeddingConfig.model_validate(settings))
    calls = 0
    while not endless.requests:  # on a busy machine a call may end before the server has read its request
        calls += 1
        with pytest.raises(EmbeddingUnavailable, match=r"no answer within"):
            await embedder.embed(["text"])
    await embedder.close()
    assert endless.requests <= 2 * calls
