"""What the tests of the locks share: an execution log, claimed runs, and a recording observer."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from reposync.config.database_url import sqlite_url
from reposync.runs import redis_locks
from reposync.runs.locks import LOCK_PREFIX, IsStale, LockHolder, stale_by
from reposync.runs.redis_locks import RedisGuard, RedisLocks
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from tests.fixtures.databases import upgraded_sqlite_file  # noqa: F401
from tests.fixtures.redis_server import redis_server, redis_url  # noqa: F401

PATIENCE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def patient_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that could not be given back within a second is left to its time to live. On a busy machine giving it
    back may take longer than that."""
    monkeypatch.setattr(redis_locks, "RELEASE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def silent_server(patient_release: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody will answer, so that patience is in vain."""
    monkeypatch.setattr(redis_locks, "RELEASE_SECONDS", 1.0)


@dataclass
class Log:
    """An execution log on a database of its own."""

    url: str
    database: Database
    repository_ids: set[str] = field(default_factory=set)

    @property
    def runs(self) -> Runs:
        return Runs(self.database)

    @property
    def is_stale(self) -> IsStale:
        return stale_by(self.runs)

    async def running(
        self, name: str | None = None, worker: str = "pod-1:1:aaaaaa", lease_seconds: float = 60.0
    ) -> Run:
        """A run that `worker` has claimed, of a repository that no other test has."""
        queued = await self.queued(name)
        run = await self.runs.claim(worker, lease_seconds, run_id=queued.id)
        assert run is not None
        return run

    async def queued(self, name: str | None = None) -> Run:
        name = name or f"repository-{uuid.uuid4()}"
        await Repositories(self.database).register(
            Registration(name=name, location="/nowhere", source="path", origin="command", collection="code")
        )
        run, _ = await self.runs.enqueue(name, RunTrigger.COMMAND)
        self.repository_ids.add(run.repository_id)
        return run

    async def taken_over(self, run: Run, worker: str = "pod-2:2:bbbbbb") -> Run:
        """The run as another worker has it after the death of the first."""
        await self.runs.expire(run)
        taken = await self.runs.claim(worker, 60.0, run_id=run.id)
        assert taken is not None
        return taken


@dataclass
class Heard(Observer):
    """An observer of locks that remembers."""

    reported: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        if name == "lock_losses":
            self.reported.append(f"lost: {labels[0]}")
        self.counted[name] += 1

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        self.counted[name] += 1

    def lock_unavailable(self, reason: str) -> None:
        self.reported.append("unavailable")
        self.reasons.append(reason)

    def lock_available(self) -> None:
        self.reported.append("available")


@dataclass
class Watched:
    """A guard with its watchdog at work."""

    guard: RedisGuard
    watchdog: asyncio.Task[None]

    async def lost(self) -> str:
        """What the watchdog raised, once it has."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait({self.watchdog})
        return f"{type(self.watchdog.exception()).__name__}: {self.watchdog.exception()}"


@contextlib.asynccontextmanager
async def watched(locks: RedisLocks, run: Run) -> AsyncIterator[Watched]:
    """As the worker does it."""
    async with locks.guard(run) as guard:
        watchdog = asyncio.create_task(guard.watch())
        try:
            yield Watched(guard, watchdog)
        finally:
            watchdog.cancel()
            await asyncio.gather(watchdog, return_exceptions=True)


OpenLocks = Callable[..., RedisLocks]


@pytest.fixture
async def log(tmp_path: Path, upgraded_sqlite_file: Path) -> AsyncIterator[Log]:  # noqa: F811
    shutil.copyfile(upgraded_sqlite_file, tmp_path / "reposync.db")
    url = sqlite_url(tmp_path / "reposync.db")
    async with await Database.open(url) as database:
        yield Log(url, database)


@pytest.fixture
def server(redis_url: str, log: Log) -> Iterator[redis.Redis]:  # noqa: F811
    """The shared server as an operator looks at it; what the test put into locks is removed."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client
        if log.repository_ids:
            client.delete(*(LOCK_PREFIX + identity for identity in log.repository_ids))


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def open_locks(log: Log, heard: Heard) -> AsyncIterator[OpenLocks]:
    """Locks on a Redis, judged by the execution log, closed at the end."""
    opened: list[RedisLocks] = []

    def open_one(url: str, ttl_seconds: float = 60.0, watchdog_seconds: float | None = 0.2) -> RedisLocks:
        locks = RedisLocks(
            url,
            ttl_seconds=ttl_seconds,
            watchdog_seconds=watchdog_seconds,
            is_stale=log.is_stale,
            observer=heard,
        )
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
