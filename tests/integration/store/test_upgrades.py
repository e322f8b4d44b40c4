"""Every schema that was ever released, with rows in it, brought to the newest one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Inspector, inspect

from reposync.config.database_url import sqlite_url
from reposync.store.database import Database
from reposync.store.migrations import HEAD, OLDEST_PROGRAM, REVISIONS
from reposync.store.migrations.runner import migrate
from reposync.store.repository import repository_id
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.released_schemas import Rows, at_revision, execute, make, rows, with_rows
from tests.integration.store.conftest import Store

# SQLAlchemy does not look into those of SQLite.
pytestmark = pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")

EARLIER = REVISIONS[:-1]

# What pods of the version before can do without: see each migration.
GIVEN_UP = {"0005": ["foreign keys of indexed_files"]}

# What a migration knows from other columns.
FILLED = {"repositories": {"last_tick_at", "by_hand"}, "run_attempts": {"times"}}


def test_there_are_rows_of_every_revision() -> None:
    assert with_rows() == REVISIONS, "a new revision brings tests/fixtures/schemas/<revision>.sql with it"


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_rows_of_a_revision_leave_no_table_and_no_column_of_it_empty(tmp_path: Path, revision: str) -> None:
    url = sqlite_url(tmp_path / "reposync.db")
    await make(url, revision)

    found = await rows(url)

    for table, there in found.items():
        assert there, f"{table} is empty"
        empty = {column for column in there[0] if all(row[column] is None for row in there)}
        assert not empty, f"nothing is in {table}.{sorted(empty)}"


@pytest.mark.parametrize("revision", EARLIER)
async def test_nothing_is_lost_and_what_is_new_has_its_default(empty_database_url: str, revision: str) -> None:
    await make(empty_database_url, revision)

    before = await rows(empty_database_url)

    async with await Database.open(empty_database_url) as database:
        assert await database.upgrade() is True
        after = await rows(empty_database_url)

        assert await database.current() == HEAD
        assert await database.upgrade() is False
        assert await rows(empty_database_url) == after
    assert only_what_was_there(after, before) == before
    assert {table: there for table, there in after.items() if table not in before and there} == {}
    for table, there in before.items():
        for column in set(after[table][0]) - set(there[0]) - FILLED.get(table, set()):
            assert {row[column] for row in after[table]} <= {None, 0}


def only_what_was_there(after: Rows, before: Rows) -> Rows:
    """The tables and columns that `before` has."""
    return {
        table: sorted(({column: row[column] for column in there[0]} for row in after[table]), key=str)
        for table, there in before.items()
    }


@pytest.mark.parametrize("revision", REVISIONS)
async def test_the_program_works_on_what_it_took_over(empty_database_url: str, revision: str) -> None:
    await make(empty_database_url, revision)

    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        store = Store(database)
        history = await store.runs.history(limit=100)
        waiting = {run.id for run in history if run.status in ("queued", "retrying")}
        (left_behind,) = (run for run in history if run.status is RunStatus.RUNNING)
        claimed = [await store.runs.claim("survivor", 60.0) for _ in range(len(waiting) + 1)]
        again = await store.runs.attempts(left_behind.id)
        queued, is_new = await store.runs.enqueue("old-service", RunTrigger.HTTP)
        payments = await store.repositories.get("payments-api")
        manifest = await store.manifests.load(payments.id)
        handbook = await store.repositories.get("handbook")

    assert len(history) >= 8
    assert {run.id for run in claimed if run} == waiting | {left_behind.id}, "the lease of the killed pod is long over"
    assert [(each.attempt, each.outcome) for each in again if each.ended_at is None] == [(2, None)]
    assert (queued.status, is_new) == (RunStatus.QUEUED, True)
    assert (payments.id, payments.project_id, payments.epoch) == (repository_id("payments-api"), 4711, 7)
    assert payments.last_sync_at is not None
    assert payments.last_sync_at.isoformat() == "2026-03-01T12:30:02.417311+00:00"
    assert {path for path in manifest if len(path) < 100} == {
        *("billing/charge.py", "logo.png", "src/日本/ümlaut é.bin", "current", "run.sh")
    }
    assert max(map(len, manifest)) > 800, "a long path is told whole"
    assert handbook.paused_reason == 'Umzug des Servers – until "Friday"'


@pytest.mark.parametrize("revision", [each for each in REVISIONS if each >= OLDEST_PROGRAM])
async def test_a_pod_of_an_earlier_version_may_go_on_writing_to_the_newest_schema(
    empty_database_url: str, revision: str
) -> None:
    await make(empty_database_url, HEAD, rows_of=revision)

    written = await rows(empty_database_url)
    async with await Database.open(empty_database_url) as database:
        history = await Store(database).runs.history(limit=100)

    assert len(written["sync_runs"]) == len(history) >= 8
    if revision < "0004":
        assert {bool(row["repair"]) for row in written["sync_runs"]} == {False}


@pytest.mark.parametrize("revision", REVISIONS[1:])
async def test_a_migration_only_adds(empty_database_url: str, revision: str) -> None:
    before_it = REVISIONS[REVISIONS.index(revision) - 1]
    async with await Database.open(empty_database_url) as database:
        before = await changed(database, lambda connection: migrate(connection, before_it))
        after = await changed(database, lambda connection: migrate(connection, revision))

    assert what_older_pods_would_miss(before, after) == GIVEN_UP.get(revision, [])


@pytest.mark.parametrize(
    "statements",
    [
        "DROP TABLE run_problems",
        "ALTER TABLE run_problems RENAME TO problems",
        "ALTER TABLE sync_runs DROP COLUMN progress",
        "ALTER TABLE sync_runs RENAME COLUMN progress TO figures",
        "ALTER TABLE sync_runs ADD COLUMN shard INTEGER NOT NULL DEFAULT 0 REFERENCES repositories (id)",
        "CREATE UNIQUE INDEX ix ON sync_runs (worker)",
        "DROP INDEX uq_sync_runs_tick",
        "DROP INDEX uq_sync_runs_running; CREATE UNIQUE INDEX uq_sync_runs_running ON sync_runs (repository_id)",
        "DROP TABLE run_problems; CREATE TABLE run_problems (run_id TEXT NOT NULL, path TEXT NOT NULL, "
        "reason TEXT NOT NULL, detail TEXT NOT NULL, line INTEGER NOT NULL, PRIMARY KEY (run_id, path), "
        "FOREIGN KEY (run_id) REFERENCES sync_runs (id) ON DELETE CASCADE)",
        "DROP TABLE run_problems; CREATE TABLE run_problems (run_id TEXT NOT NULL, path TEXT NOT NULL, "
        "reason TEXT NOT NULL, detail INTEGER NOT NULL, PRIMARY KEY (run_id, path), "
        "FOREIGN KEY (run_id) REFERENCES sync_runs (id) ON DELETE CASCADE)",
    ],
)
async def test_what_older_pods_would_miss_is_noticed(
    tmp_path: Path, upgraded_sqlite_file: Path, statements: str
) -> None:
    path = shutil.copyfile(upgraded_sqlite_file, tmp_path / "reposync.db")
    async with await Database.open(sqlite_url(path)) as database:
        before = await changed(database, lambda _: None)
        await execute(sqlite_url(path), statements)
        after = await changed(database, lambda _: None)

    assert what_older_pods_would_miss(before, after) != []


Tables = dict[str, dict[str, Any]]


async def changed(database: Database, work: Callable[[Connection], object]) -> Tables:
    """The tables of the database after `work`."""
    found: Tables = {}

    def look(connection: Connection) -> None:
        inspector = inspect(connection)
        found.update({name: described(inspector, name) for name in inspector.get_table_names()})

    await at_revision(database, work)
    await at_revision(database, look)
    return found


def what_older_pods_would_miss(before: Tables, after: Tables) -> list[str]:
    """Of a table that is there a migration keeps every column, of the same type and as open to NULL; what it adds can
    be left out by whoever does not know it; what must be unique stays exactly that. Indexes may come and go."""
    missed = [f"table {table}" for table in before.keys() - after.keys()]
    for table in before.keys() & after.keys():
        was, now = before[table], after[table]
        missed += [f"{what} of {table}" for what in was if what != "columns" and was[what] != now[what]]
        for name in was["columns"].keys() | now["columns"].keys():
            column = now["columns"].get(name)
            if name not in was["columns"]:
                may_be_left_out = column["nullable"] or column["default"] is not None
                missed += [] if may_be_left_out else [f"{table}.{name} has to be given"]
            elif column != was["columns"][name]:
                missed.append(f"{table}.{name} is another one")
    return missed


def described(inspector: Inspector, table: str) -> dict[str, Any]:
    columns = {column["name"]: column for column in inspector.get_columns(table)}
    unique = [index for index in inspector.get_indexes(table) if index["unique"]]
    foreign = inspector.get_foreign_keys(table)
    return {
        "columns": {
            name: {"type": str(each["type"]), "nullable": each["nullable"], "default": each["default"]}
            for name, each in columns.items()
        },
        "key": inspector.get_pk_constraint(table)["constrained_columns"],
        "unique indexes": {
            (index["name"], *index["column_names"], *sorted(map(str, index["dialect_options"].values())))
            for index in unique
        },
        "unique constraints": {str(each["column_names"]) for each in inspector.get_unique_constraints(table)},
        "checks": {str(each["sqltext"]) for each in inspector.get_check_constraints(table)},
        "foreign keys": {str((each["constrained_columns"], each["referred_table"])) for each in foreign},
    }
