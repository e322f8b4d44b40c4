"""What the tests of the locks share: an execution log, claimed runs, and a recording observer."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from reposync.config.database_url import sqlite_url
from reposync.runs import redis_locks
from reposync.runs.locks import LOCK_PREFIX, LockHolder
from reposync.runs.redis_locks import RedisLocks
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.run import Run
from tests.fixtures.databases import upgraded_sqlite_file  # noqa: F401
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.redis_server import redis_server, redis_url  # noqa: F401
from tests.integration.store.conftest import Store


class Log(Store):
    """An execution log of repositories that no other test has: all tests share one Redis."""

    async def running(self, name: str = "", *, worker: str = "pod-1:1:aaaaaa", **asked: Any) -> Run:
        return await super().running(name or f"repository-{uuid.uuid4()}", worker=worker, **asked)


@dataclass
class Heard(Observer):
    """An observer of locks that remembers."""

    reported: list[str] = field(default_factory=list)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        if name == "lock_losses":
            self.reported.append(f"lost: {labels[0]}")
        if name == "lock_unavailable":
            self.reported.append("began without")


@contextlib.asynccontextmanager
async def watched(locks: RedisLocks, run: Run) -> AsyncIterator[asyncio.Task[None]]:
    """The guard of a run with its watchdog at work, as a worker has it."""
    async with locks.guard(run) as guard:
        watchdog = asyncio.create_task(guard.watch())
        try:
            yield watchdog
        finally:
            watchdog.cancel()
            await asyncio.gather(watchdog, return_exceptions=True)


async def lost(watchdog: asyncio.Task[None]) -> str:
    """What the watchdog raised, once it has."""
    await asyncio.wait({watchdog}, timeout=PATIENCE_SECONDS)
    return f"{type(watchdog.exception()).__name__}: {watchdog.exception()}"


OpenLocks = Callable[..., RedisLocks]


@pytest.fixture
async def log(tmp_path: Path, upgraded_sqlite_file: Path) -> AsyncIterator[Log]:  # noqa: F811
    shutil.copyfile(upgraded_sqlite_file, tmp_path / "reposync.db")
    async with await Database.open(sqlite_url(tmp_path / "reposync.db")) as database:
        yield Log(database)


@pytest.fixture
async def server(redis_url: str, log: Log) -> AsyncIterator[redis.Redis]:  # noqa: F811
    """The shared server as an operator looks at it; what the test put into locks is removed."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client
        for row in await log.repositories.list():
            client.delete(LOCK_PREFIX + row.id)


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def open_locks(log: Log, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OpenLocks]:
    """Locks on a Redis, judged by the execution log, closed at the end."""
    opened: list[RedisLocks] = []
    # On a busy machine an answer may take longer.
    monkeypatch.setattr(redis_locks, "CALL_SECONDS", 5.0)

    def open_one(url: str, ttl_seconds: float = 60.0, watchdog_seconds: float | None = 0.2) -> RedisLocks:
        locks = RedisLocks(url, log.history, ttl_seconds=ttl_seconds, watchdog_seconds=watchdog_seconds, observer=heard)
        opened.append(locks)
        return locks

    yield open_one
    for locks in opened:
        await locks.close()


def key(run: Run) -> str:
    return LOCK_PREFIX + run.repository_id


def value(run: Run) -> str:
    return LockHolder.of(run).value


def foreign_value() -> str:
    """Of a run that is in no database of this test: of another installation, for all that is known."""
    return LockHolder("elsewhere:9:ffffff", str(uuid.uuid4()), 1).value


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Looks again and again while everything else goes on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.005)
