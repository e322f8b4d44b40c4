"""Servers whose answers never end: they cost the time that the documentation states, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from reposync.config.registry import GitLabInstance
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
        kind = b"application/x-git-upload-pack-advertisement" if b"info/refs" in request else b"application/json"
        connection.writer.write(HEAD % kind + (b"" if self.headers else b"\r\n"))
        while True:
            connection.writer.write(b"X: y\r\n" if self.headers else b"1\r\n0\r\n")
            await connection.writer.drain()
            await asyncio.sleep(READ_SECONDS / 20)


@pytest.fixture(params=[True, False], ids=["headers", "body"])
def endless(request: pytest.FixtureRequest) -> Iterator[Endless]:
    with Endless(headers=request.param) as server:
        yield server


async def test_gitlab(endless: Endless) -> None:
    limits = {"connect_timeout_seconds": 1.0, "read_timeout_seconds": READ_SECONDS}
    server = GitLabInstance.model_validate({"name": "main", "url": endless.url, **limits})
    client = GitLabClient(server)
    with pytest.raises(
        SourceUnavailable, match=r"version failed( 2 times)?: the answer did not end within [12](\.4)? s"
    ):
        await client.ping()
    await client.close()
    assert endless.requests == 1


async def test_git(endless: Endless) -> None:
    pack = UploadPack(RemoteGit(f"{endless.url}/a.git", timeouts=Timeouts(1.0, READ_SECONDS)))
    with pytest.raises(
        SourceUnavailable, match=r"a\.git failed( 2 times)?: the answer did not end within [12](\.4)? s"
    ):
        await pack.refs(b"refs/heads/")
    await pack.close()
    assert endless.requests == 1


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
    with pytest.raises(EmbeddingUnavailable, match=r"no answer within"):
        await embedder.embed(["text"])
    await embedder.close()
    assert 1 <= endless.requests <= 2
