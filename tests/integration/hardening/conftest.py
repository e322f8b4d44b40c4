"""The clients of everything that reposync reaches, each opened as the program opens it, with short time-outs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.sections import EmbeddingConfig, QdrantConfig
from reposync.embedding.factory import open_embedder
from reposync.outgoing import RetryPolicy, Timeouts
from reposync.runs.redis_locks import RedisLocks
from reposync.sources.factory import open_source
from reposync.sources.port import GitLabProject, RemoteGit
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import CollectionMissing, IndexSettings
from tests.acceptance.conftest import person, repository  # noqa: F401
from tests.fixtures.databases import postgresql  # noqa: F401
from tests.fixtures.redis_server import redis_server  # noqa: F401

SECRET = "glpat-hush-hush-hush"
ONCE = RetryPolicy(attempts=1, max_wait_seconds=0.0)


@dataclass(frozen=True, slots=True)
class Client:
    """`ask`: one question to the server at this address (scheme, host and port), with this CA file or none."""

    name: str
    ask: Callable[[str, Path | None, float], Awaitable[object]]

    def __str__(self) -> str:
        return self.name


@contextlib.asynccontextmanager
async def closing(client: Any) -> AsyncIterator[Any]:
    try:
        yield client
    finally:
        await client.close()


async def ask_gitlab(url: str, ca_file: Path | None, seconds: float) -> object:
    instance = GitLabInstance(
        name="main", url=url, token=SecretStr(SECRET), ca_file=ca_file, connect_timeout_seconds=seconds,
        read_timeout_seconds=seconds,
    )  # fmt: skip
    async with closing(open_source(GitLabProject(instance, "platform/payments-api", 42, retry=ONCE))) as source:
        return (await source.head()).sha


async def ask_git(url: str, ca_file: Path | None, seconds: float) -> object:
    remote = RemoteGit(
        f"{url}/platform/payments-api.git", username="oauth2", password=SecretStr(SECRET), ca_file=ca_file,
        timeouts=Timeouts(seconds, seconds), retry=ONCE,
    )  # fmt: skip
    async with closing(open_source(remote)) as source:
        return (await source.head()).sha


async def ask_embedding(url: str, ca_file: Path | None, seconds: float) -> object:
    config = EmbeddingConfig(
        provider="openai", url=f"{url}/v1", model="test/words", api_key=SecretStr(SECRET), ca_file=ca_file, attempts=1,
        timeout_seconds=seconds,
    )  # fmt: skip
    async with closing(open_embedder(config)) as embedder:
        return len(await embedder.embed(["x"]))


async def ask_qdrant(url: str, ca_file: Path | None, seconds: float) -> object:
    config = QdrantConfig(url=url, api_key=SecretStr(SECRET), ca_file=ca_file, timeout_seconds=seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reposync.vectors.connection.ATTEMPTS", 1)
        opened = QdrantIndex(IndexSettings("code", Path("/nonexistent"), config))
    async with closing(opened) as index:
        with contextlib.suppress(CollectionMissing):  # Qdrant's own answer, where nobody has synced yet
            return await index.count()
        return 0


async def ask_redis(url: str, ca_file: Path | None, seconds: float) -> object:
    scheme, _, rest = url.partition("://")
    address = f"{'rediss' if scheme == 'https' else 'redis'}://:{SECRET}@{rest}/0"
    async with closing(RedisLocks(address, RunHistory(None))) as locks:  # type: ignore[arg-type]
        return await locks.ping()


async def ask_postgresql(url: str, ca_file: Path | None, seconds: float) -> object:
    address = url.partition("://")[2]
    async with await Database.open(f"postgresql://worker:{SECRET}@{address}/reposync") as database:
        return database.where


GITLAB, GIT = Client("gitlab", ask_gitlab), Client("git", ask_git)
EMBEDDING, QDRANT = Client("embedding", ask_embedding), Client("qdrant", ask_qdrant)
REDIS, POSTGRESQL = Client("redis", ask_redis), Client("postgresql", ask_postgresql)
HTTP = (GITLAB, GIT, EMBEDDING, QDRANT)
