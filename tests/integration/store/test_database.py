"""A database that cannot be used says why, what to do, and no secret; its connections are replaced unnoticed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import traceback
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from reposync.config.database_url import sqlite_url
from reposync.errors import ConfigError, StoreUnavailable
from reposync.next_steps import UpgradeDatabase
from reposync.store import database as database_module
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.run import Ask
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from tests.fixtures.databases import STRANGER, PostgresqlDatabases
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.supervised import free_port
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.store.conftest import ON_POSTGRESQL, Store

SECRET = "s3cr3t-pa55word"


async def refused(url: str, **options: float) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        database = await Database.open(url, **options)
        await database.close()
    assert caught.value.retryable
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


# PostgreSQL --------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    port = free_port()

    error = await refused(f"postgresql://sync:{SECRET}@127.0.0.1:{port}/reposync")

    assert f"reposync on 127.0.0.1:{port}" in error.message
    assert "refused" in error.message
    assert "DATABASE_URL" in error.remedy


async def test_a_wrong_password_is_reported_as_such(postgresql: PostgresqlDatabases) -> None:
    await _execute(
        postgresql.server_url, f"DROP ROLE IF EXISTS {STRANGER}", f"CREATE ROLE {STRANGER} LOGIN PASSWORD 'another'"
    )
    try:
        error = await refused(postgresql.server_url.replace("postgres@", f"{STRANGER}:{SECRET}@"))
    finally:
        await _execute(postgresql.server_url, f"DROP ROLE {STRANGER}")

    assert "user or the password" in error.message


async def test_a_database_that_is_missing_is_reported_with_what_to_do(postgresql: PostgresqlDatabases) -> None:
    error = await refused(postgresql.url("no_such_database"))

    assert "no_such_database" in error.message
    assert "there is no database of that name" in error.message
    assert "Create it" in str(error.remedy)


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


# SQLite ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with space.db", "50%25 #1?.db", "日本.db"])
async def test_a_database_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new folder" / name

    async with await Database.open(sqlite_url(path)) as database:
        await database.upgrade()

    assert path.is_file()


async def test_a_new_file_that_another_process_is_just_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")  # SQLite then refuses the switch to WAL at once, whatever the busy time-out

    await refused(sqlite_url(path), lock_seconds=0.0)
    asyncio.get_running_loop().call_later(0.1, other.execute, "COMMIT")
    database = await Database.open(sqlite_url(path))

    await database.close()
    other.close()


async def test_another_process_that_writes_for_too_long_is_a_reason_to_try_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with await Database.open(sqlite_url(path), lock_seconds=0.05) as database:
        await database.upgrade()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="write lock") as caught:
            await Runs(database).cancel("x")
        assert caught.value.retryable
        assert await RunHistory(database).runs() == [], "reading needs no lock"

        other.execute("ROLLBACK")
        other.close()


async def test_many_writers_of_one_process_take_turns(tmp_path: Path) -> None:
    order: list[int] = []
    async with await Database.open(sqlite_url(tmp_path / "x.db"), lock_seconds=0.0) as database:

        async def write(number: int) -> None:
            async with database.write() as connection:
                await connection.execute(text("CREATE TABLE IF NOT EXISTS mine (x)"))
                order.append(number)

        with pytest.raises(StoreUnavailable, match="connections to it are in use"):
            async with database.write():
                await write(-1)

    async with await Database.open(sqlite_url(tmp_path / "x.db")) as database:
        await asyncio.gather(*(write(number) for number in range(30)))

    assert order == list(range(30))


async def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, and dear to somebody.\n" * 100)

    error = await refused(sqlite_url(path))

    assert "not an SQLite database" in error.message
    assert str(path) in error.message
    assert path.read_text().startswith("Not a database")


async def test_a_folder_that_cannot_be_created_or_is_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    error = await refused(sqlite_url(tmp_path / "file" / "x.db"))

    assert str(tmp_path / "file") in error.message
    assert "cannot be opened" in (await refused(sqlite_url(tmp_path))).message


async def test_a_file_that_another_process_holds_locked_is_not_healthy_until_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PING_LOCK_SECONDS", 0.05)
    async with await Database.open(sqlite_url(tmp_path / "x.db")) as database:
        await database.upgrade()
        schema = await database.schema()
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="a different process holds the write lock"):
            await database.ping()
        other.execute("ROLLBACK")
        await database.ping()

        other.close()
        assert await database.schema() == schema, "the check changes nothing"


async def test_a_file_whose_writers_take_turns_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "PING_LOCK_SECONDS", 0.2)
    async with await Database.open(sqlite_url(tmp_path / "x.db")) as database:
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                await database.change(text("CREATE TABLE IF NOT EXISTS mine (x)"))

        writers = [asyncio.create_task(write()) for _ in range(200)]
        for _ in range(3):
            await database.ping()
        over.set()
        await asyncio.gather(*writers)


# Both --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["db:port/x", f"sync:{SECRET}@db/x?sslmode=perhaps", f"sync:{SECRET}@db:x/x"])
async def test_an_address_that_postgresql_does_not_understand_is_a_mistake_in_the_configuration(address: str) -> None:
    with pytest.raises(ConfigError, match="address of the database") as caught:
        await Database.open(f"postgresql://{address}")

    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_missing_tables_are_reported(empty_database_url: str) -> None:
    async with await Database.open(empty_database_url) as database:
        with pytest.raises(StoreUnavailable, match="tables are missing") as caught:
            await RunHistory(database).runs(SECRET)

    assert caught.value.next_steps == (UpgradeDatabase(),)
    assert SECRET not in "".join(traceback.format_exception(caught.value)), "logs get what a query was about"


async def test_what_only_reads_holds_no_transaction_and_sees_what_is_committed_meanwhile(store: Store) -> None:
    await store.repository("one")
    count = text("SELECT count(*) FROM repositories")

    async with store.database.read() as connection:
        assert await connection.scalar(count) == 1
        await store.repository("two")
        assert await connection.scalar(count) == 2


async def test_a_cancelled_task_leaves_the_database_usable(store: Store) -> None:
    await store.repository()
    inside = asyncio.Event()

    async def interrupted() -> None:
        async with store.database.write() as connection:
            await connection.execute(text("DELETE FROM repositories"))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(interrupted())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND)))[1]


# Nobody waits for so long: a wait that ends has a different reason.
FOR_EVER_SECONDS = 3_600.0


async def _count(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM notes")) or 0)


async def _note(database: Database, word: str, began: asyncio.Event | None = None) -> None:
    if began is not None:
        began.set()
    await database.change(text("INSERT INTO notes VALUES (:word)"), {"word": word})


async def test_a_write_that_waits_for_the_lock_ends_when_it_is_cancelled_while_the_lock_is_held(tmp_path: Path) -> None:
    file = tmp_path / "reposync.db"
    async with await Database.open(sqlite_url(file), lock_seconds=FOR_EVER_SECONDS) as database:
        await database.change(text("CREATE TABLE notes (word TEXT)"))
        other = sqlite3.connect(file, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            for round_trips in range(12):
                began = asyncio.Event()
                waiting = asyncio.create_task(_note(database, "never", began))
                behind = asyncio.create_task(_note(database, "neither"))
                await began.wait()
                # Wherever it is by then: at its first attempt, in SQLite, or between two of them.
                for _ in range(round_trips):
                    await _count(database)
                waiting.cancel()
                behind.cancel()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    results = await asyncio.gather(waiting, behind, return_exceptions=True)
                assert [type(each) for each in results] == [asyncio.CancelledError] * 2
                assert other.in_transaction
            later = asyncio.create_task(_note(database, "later"))
            await _count(database)
            other.execute("COMMIT")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await later
        finally:
            other.close()
        assert await _count(database) == 1


# Connections ----------------------------------------------------------------------------------------------------------


async def end_all_connections(url: str) -> int:
    """Those of this database's users but for our own, as a restart of the server would, and wait until they are gone;
    tells how many there were."""
    server = await asyncpg.connect(url)
    try:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        others = "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        return len(await server.fetch(f"{ended} {others}"))
    finally:
        await server.close()


@ON_POSTGRESQL
async def test_connections_that_the_server_closed_are_replaced_without_an_error(
    database: Database, database_url: str
) -> None:
    store = Store(database)
    await asyncio.gather(*(store.repository(f"repository-{number}") for number in range(6)))

    for _ in range(3):
        assert await end_all_connections(database_url)
        names = [f"repository-{number}" for number in range(6)]
        runs = await asyncio.gather(*(store.runs.enqueue(name, Ask(RunTrigger.HTTP)) for name in names))
        assert {run.repository for run, _ in runs} == set(names)
        assert len(await store.history.runs()) == 6


@ON_POSTGRESQL
async def test_a_connection_that_breaks_in_a_transaction_can_be_tried_again(store: Store, database_url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        async with store.database.write() as connection:
            assert await end_all_connections(database_url)
            await connection.execute(text("SELECT 1"))

    assert caught.value.retryable
    assert await store.history.runs() == []


@ON_POSTGRESQL
async def test_connections_that_a_silent_server_does_not_let_end_are_cut(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CLOSE_SECONDS", 0.1)
    with TcpProxy(database_url) as proxy:
        async with await Database.open(proxy.url) as behind:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(behind.ping())
            opened = list(behind._connections)
            assert opened
            proxy.stall("requests", "answers")
        assert all(connection.is_closed() for connection in opened)


async def test_a_refused_statement_is_retried_like_an_outage_and_reported_without_the_statement(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await store.database.change(text("SELECT no_such_function_of_ours()"))

    assert "refused a statement for an unexpected reason" in str(caught.value)
    assert "no_such_function_of_ours" not in str(caught.value)
    assert "no_such_function_of_ours" in caplog.text, "the log has it"


async def test_nobody_else_on_the_machine_can_read_the_database(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "state").mkdir(mode=0o755)
        path = tmp_path / "state" / "reposync.db"
        for expected in (0o600, 0o640):
            async with await Database.open(f"sqlite:///{path}") as database:
                await database.upgrade()
                modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.glob("reposync.db*")}
            assert set(modes.values()) == {expected}, modes
            # As an earlier version left it, for a group that makes backups.
            path.chmod(0o644)
    finally:
        os.umask(before)
