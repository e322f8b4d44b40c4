"""`reposync locks` as an operator uses it: who guards what, and what to do about a lock that is in the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from reposync.config.database_url import sqlite_url
from reposync.runs.locks import LOCK_PREFIX, LockHolder
from reposync.store.database import Database
from reposync.store.endings import Finish
from reposync.store.run import Run, RunFigures
from tests.acceptance.conftest import Person
from tests.fixtures.databases import upgraded_sqlite_file  # noqa: F401
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.redis_server import RedisServer, redis_server, redis_url  # noqa: F401
from tests.fixtures.repositories import GitRepository
from tests.fixtures.supervised import free_port
from tests.integration.runs.lock.conftest import Log

pytestmark = pytest.mark.full

WORKER = "pod-7:42:a1b2c3"
KEYS = {"repository", "repository_id", "state", "holder", "pod", "run_id", "attempt", "ttl_seconds", "lease_until"}


class Scene:
    """The database that the person's commands use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def running(self, name: str) -> Run:
        return self._do(lambda log: log.running(name, worker=WORKER))

    def ends(self, run: Run) -> None:
        self._do(lambda log: log.runs.end(run, Finish(), RunFigures()))

    def now(self, run: Run) -> Run:
        return self._do(lambda log: log.history.get(run.id))

    def _do(self, what: Any) -> Any:
        async def work() -> Any:
            async with await Database.open(sqlite_url(self.path)) as database:
                return await what(Log(database))

        return asyncio.run(work())


@pytest.fixture
def scene(person: Person, tmp_path: Path, upgraded_sqlite_file: Path) -> Scene:  # noqa: F811
    path = tmp_path / "reposync.db"
    shutil.copyfile(upgraded_sqlite_file, path)
    person.environment["REPOSYNC_DATABASE_URL"] = f"sqlite:///{path}"
    return Scene(path)


@pytest.fixture
def server(person: Person, redis_server: RedisServer) -> Iterator[redis.Redis]:  # noqa: F811
    person.environment["REPOSYNC_REDIS_URL"] = redis_server.url
    with redis_server.client() as client:
        yield client


def lock(server: redis.Redis, run: Run, value: str | bytes | None = None) -> str:
    key = LOCK_PREFIX + run.repository_id
    server.set(key, value if value is not None else LockHolder.of(run).value, px=1_700_000)
    return key


def test_without_redis_the_running_syncs_are_listed_from_the_database(person: Person, scene: Scene):
    assert "No repository is locked." in person.types("locks", "list").stdout
    run = scene.running("payments")
    (shown,) = person.lists("locks", "list")
    assert shown.keys() == KEYS
    assert (shown["repository"], shown["state"]) == ("payments", "database")
    assert (shown["holder"], shown["pod"], shown["run_id"], shown["attempt"]) == (WORKER, "pod-7", run.id, 1)
    assert shown["ttl_seconds"] is None
    assert shown["lease_until"].endswith("Z")


def test_the_lock_of_a_running_sync_is_displayed_and_removed_with_force_only(
    person: Person, scene: Scene, server: redis.Redis
):
    run = scene.running("payments")
    key = lock(server, run)
    (shown,) = person.lists("locks", "list")
    assert (shown["state"], shown["pod"], shown["run_id"]) == ("held", "pod-7", run.id)
    assert 1_600 < shown["ttl_seconds"] <= 1_700
    table = person.types("locks", "list").stdout
    assert "payments" in table and "28 min" in table
    refused = person.types("locks", "release", "payments", exit_code=4).stderr
    assert WORKER in refused and f"reposync runs cancel {run.id}" in refused
    assert (server.get(key), scene.now(run).cancel_requested) == (LockHolder.of(run).value, False)

    done = person.asks("locks", "release", "payments", "--force")
    assert done.keys() == KEYS | {"released", "cancel_requested"}
    assert (done["released"], done["cancel_requested"], done["run_id"]) == (True, True, run.id)
    assert not server.exists(key)
    assert scene.now(run).cancel_requested


def test_the_lock_of_a_different_installation_is_removed_with_force_only(
    person: Person, scene: Scene, server: redis.Redis
):
    run = scene.running("payments")
    scene.ends(run)
    key = lock(server, run.model_copy(update={"id": str(uuid.uuid4())}))
    (shown,) = person.lists("locks", "list")
    assert (shown["repository"], shown["state"]) == ("payments", "foreign")
    assert "not written by this installation" in person.types("locks", "release", "payments", exit_code=4).stderr
    assert server.exists(key)
    done = person.asks("locks", "release", "payments", "--force")
    assert (done["released"], done["cancel_requested"]) == (True, False)
    assert not server.exists(key)


def test_any_value_is_displayed_without_control_characters_and_can_be_removed(
    person: Person, scene: Scene, server: redis.Redis
):
    run = scene.running("payments")
    server.set(LOCK_PREFIX + run.repository_id, b"\xff\x1b]0;x\x07")
    (shown,) = person.lists("locks", "list")
    assert (shown["repository"], shown["state"], shown["ttl_seconds"]) == ("payments", "foreign", None)
    printed = person.types("locks", "list").stdout
    printed += person.types("locks", "release", "payments", "--force").stdout
    assert "\x1b" not in printed
    assert server.keys(LOCK_PREFIX + "*") == []


def test_an_unreachable_redis_is_reported_without_its_password(person: Person, scene: Scene):
    scene.running("payments")
    person.environment["REPOSYNC_REDIS_URL"] = f"redis://:geheimnis@127.0.0.1:{free_port()}"
    for words in (("list",), ("release", "payments")):
        reported = person.types("locks", *words, exit_code=1)
        assert "refused" in reported.stderr
        assert "geheimnis" not in reported.stderr
        assert reported.stdout == ""
    person.environment["REPOSYNC_REDIS_URL"] = "redis://127.0.0.1?geheimnis=1"
    reported = person.types("locks", "list", exit_code=2)
    assert "REPOSYNC_REDIS_URL" in reported.stderr
    assert "geheimnis" not in reported.stderr


def test_a_sync_holds_its_lock_and_one_that_was_killed_is_not_waited_for(
    person: Person, server: redis.Redis, repository: GitRepository, embeddings: EmbeddingServer
):
    repository.many(20)
    person.environment["POD_NAME"] = "laptop"
    person.applies(f'{embeddings.registry}repositories:\n  - {{name: payments, path: "{repository.path}"}}\n')
    with embeddings.holding():
        process = person.starts("sync")
        embeddings.wait_for_waiting(1)
        (shown,) = person.lists("locks", "list")
        assert (shown["repository"], shown["state"], shown["pod"]) == ("payments", "held", "laptop")
        assert shown["ttl_seconds"] > 1_700
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert server.keys(LOCK_PREFIX + "*")
    (after,) = person.lists("sync")
    assert after["status"] == "completed"
    assert max(run["attempt"] for run in person.lists("history")) == 2
    assert server.keys(LOCK_PREFIX + "*") == []
