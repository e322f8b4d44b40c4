"""Several processes meet at a schema that has to change: one changes it, the others wait and say for whom."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from reposync.config.database_url import sqlite_url
from reposync.errors import StoreUnavailable
from reposync.store.database import Database
from reposync.store.schema import HEAD, MIGRATION_LOCK
from tests.fixtures import pods
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod
from tests.fixtures.released_schemas import RELEASED, execute, make, rows
from tests.integration.store.test_migrations import GONE

pytestmark = pytest.mark.full

MANY_RUNS = 100_000
MIGRATES = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"


@dataclass
class Upgrading:
    """`reposync db upgrade`, as a pod or a job runs it."""

    process: subprocess.Popen[str]
    errors: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def ends(self) -> str:
        out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.process.returncode == 0, self.errors.read_text()
        return out.strip()


Upgrades = Callable[[str], Upgrading]


@pytest.fixture
def empty_postgresql(postgresql: PostgresqlDatabases) -> str:
    return postgresql.empty()


@pytest.fixture
def upgrades(tmp_path: Path) -> Iterator[Upgrades]:
    under_way: list[Upgrading] = []

    def begin(url: str) -> Upgrading:
        errors = tmp_path / f"errors-{len(under_way)}"
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "REPOSYNC_DATABASE_URL": url}
        with errors.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "reposync", "db", "upgrade"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        under_way.append(Upgrading(process, errors))
        return under_way[-1]

    yield begin
    for each in under_way:
        each.kill()


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("revision", [RELEASED, None])
async def test_of_several_processes_at_once_one_changes_the_schema_and_nothing_is_lost(
    empty_database_url: str, revision: str | None
) -> None:
    if revision is not None:
        await make(empty_database_url, revision)
    before = await rows(empty_database_url)

    async with await Database.open(empty_database_url) as one, await Database.open(empty_database_url) as other:
        assert sorted(await asyncio.gather(one.upgrade(), other.upgrade())) == [False, True]

    after = await rows(empty_database_url)
    assert [table for table, there in before.items() if table not in GONE and len(after[table]) < len(there)] == []


async def test_a_migration_that_meets_a_long_transaction_steps_aside(empty_postgresql: str, upgrades: Upgrades) -> None:
    url = empty_postgresql
    await make(url, RELEASED)
    before = await rows(url)

    async with connected(url) as psql, psql.transaction(), connected(url) as pod:
        await psql.execute("SELECT count(*) FROM sync_runs")  # a report, which goes on
        killed = upgrades(url)
        await until(lambda: has_said(killed, "waiting for a transaction that uses its tables"))
        # It asks for the table, and does not keep those waiting who only want to write a heartbeat.
        await pod.execute("UPDATE sync_runs SET worker = worker")
        # It is in the middle: some of its changes are made, and none is committed.
        await until(lambda: pod.fetchval(MIGRATES))
        killed.kill()
        assert await pod.fetchval("SELECT version_num FROM alembic_version") == RELEASED
        survivor = upgrades(url)
        await until(lambda: has_said(survivor, f"needs schema {HEAD}; waiting for"))

    assert survivor.ends() == f"{RELEASED} -> {HEAD}"
    after = await rows(url)
    assert [table for table, there in before.items() if table not in GONE and len(after[table]) < len(there)] == []


async def has_said(each: Upgrading, *words: str) -> bool:
    assert each.process.poll() is None, each.errors.read_text()
    return all(word in each.errors.read_text() for word in words)


async def test_a_wait_for_a_different_process_that_migrates_ends_with_a_clear_error(empty_postgresql: str) -> None:
    url = empty_postgresql
    await make(url, RELEASED)
    async with connected(url) as migrating, migrating.transaction(), await Database.open(url) as database:
        await migrating.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)

        with pytest.raises(StoreUnavailable, match=r"within 0\.1 s: waiting for a different process"):
            await database.upgrade(wait_seconds=0.1)
        assert (await database.schema()).revision == RELEASED


async def test_readyz_says_that_a_daemon_waits_for_the_schema(empty_postgresql: str, tmp_path: Path) -> None:
    await make(empty_postgresql, RELEASED)
    (tmp_path / "repositories.yaml").write_text("embedding: {provider: none}\n")

    def database() -> tuple[str, str]:
        component = daemon.gets("/readyz").json()["components"]["database"]
        return component["status"], component["reason"] or ""

    with ExitStack() as stack:
        async with connected(empty_postgresql) as migrating, migrating.transaction():
            await migrating.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            daemon = stack.enter_context(Pod("laptop", tmp_path, {"REPOSYNC_DATABASE_URL": empty_postgresql}))
            pods.until(lambda: "a different process, which upgrades it" in database()[1], details=daemon.log_tail)
            assert database()[0] == "down"
        pods.until(lambda: database()[0] == "ok", details=daemon.log_tail)


async def test_a_process_that_is_killed_while_it_changes_an_sqlite_schema_leaves_it_to_the_next(
    tmp_path: Path, upgrades: Upgrades
) -> None:
    path = tmp_path / "reposync.db"
    url = sqlite_url(path)
    await make(url, RELEASED)
    await execute(url, MANY)
    await execute(url, "PRAGMA journal_mode = WAL")
    killed = upgrades(f"sqlite:///{path}")
    await until(lambda: is_being_written(path))
    killed.process.send_signal(signal.SIGSTOP)
    assert await is_being_written(path), "frozen, it still holds the write lock: it is in the middle"
    waiting = upgrades(f"sqlite:///{path}")
    await until(lambda: has_said(waiting, "waiting for a different process, which writes to it"))
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT version_num FROM alembic_version").fetchone() == (RELEASED,), "readers go on"
    killed.kill()

    assert waiting.ends() == f"{RELEASED} -> {HEAD}"
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT count(*) FROM sync_runs WHERE repository = 'many'").fetchone() == (MANY_RUNS,)
        assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)


MANY = f"""
    INSERT INTO sync_runs (id, repository_id, repository, status, "trigger", priority, not_before, queued_at, attempt,
        max_attempts, "full", approved, cancel_requested, files_processed, files_deleted, files_skipped,
        chunks_embedded, chunks_reused)
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MANY_RUNS})
    SELECT 'many-' || n, 'r', 'many', 'completed', 'http', 0, '2026-01-01', '2026-01-01', 1, 3, 0, 0, 0, 0, 0, 0, 0, 0
    FROM numbers"""


async def is_being_written(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
        try:
            another.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        another.execute("ROLLBACK")
        return False
