"""The schema: a new one, and one of a released version with rows in it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from reposync.catalog.apply import Applying, registry_in_force
from reposync.catalog.targets import registration_of
from reposync.config.loading import LoadedRegistry, load_registry
from reposync.errors import DatabaseForeign, StoreUnavailable
from reposync.next_steps import UpgradeDatabase
from reposync.store.database import Database
from reposync.store.indexes import SCHEMA
from reposync.store.registry import ProjectGroups
from reposync.store.repositories import Repositories
from reposync.store.repository import MissedTick, repository_id
from reposync.store.run import Ask
from reposync.store.run_state import total_seconds
from reposync.store.schema import HEAD, REVISIONS, VERSION_TABLE, alembic_config, oldest_program
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import VersionState
from tests.fixtures.released_schemas import RELEASED, ROWS, Rows, execute, make, make_tables, rows
from tests.integration.store.conftest import ON_POSTGRESQL, Store

# SQLAlchemy does not compare those of SQLite, `definitions` does.
pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")

POSTGRESQL_DEFINITIONS = """
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    UNION ALL
    SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
    UNION ALL
    SELECT concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default)
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""
# Not a table's own text: in it a column that was added later has a different position.
SQLITE_DEFINITIONS = """
    SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type <> 'table'
    UNION ALL
    SELECT printf('%s %d %s %s %d %s %d', t.name, t.wr, c.name, c.type, c."notnull", c.dflt_value, c.pk)
    FROM pragma_table_list t JOIN pragma_table_xinfo(t.name) c WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite_%'
    UNION ALL
    SELECT printf('%s %s %s %s %s', t.name, k."table", k."from", k."to", k.on_delete)
    FROM pragma_table_list t JOIN pragma_foreign_key_list(t.name) k WHERE t.schema = 'main'
"""

# Columns that the migration fills from others.
FILLED = {
    "project_groups": {"origin"},
    "repositories": {"next_due_at", "missed_ticks"},
    "sync_runs": {"asked", "attempts", "idle"},
}
# Who asked for a run, and what was approved, is in other columns; requests have no keys any more; several registry
# files are one document; the result of a listing is in the log; attempts and missed ticks are lists in the rows that
# they belong to.
GONE = {
    *("run_requests", "idempotency_keys", "registry_files", "superseded_digests", "run_attempts", "missed_ticks"),
    *(
        "sync_runs.approved",
        "sync_runs.first_started_at",
        "sync_runs.earlier_seconds",
        "repositories.scheduled_since",
        "repositories.attributes",
    ),
    *("repositories.indexed_collection", "repositories.index_identity", "repositories.resolved_from"),
    *("repositories.content_fingerprint", "repositories.index_hold"),
    *("project_groups.worker", "project_groups.lease_until", "project_groups.attempt", "project_groups.checked_at"),
    *("project_groups.projects", "project_groups.error_code", "project_groups.error_message"),
}
# Tables to which it adds rows: of indexes that a program before 0.2.0 had left.
ADDED = ("index_versions",)
# Such an index gets a version. Ticks before a schedule was set are settled. A run lasted as long as all its attempts.
CHANGED = {"last_tick_at", "duration_seconds", "live_version"}


async def definitions(database: Database) -> set[str]:
    """Every column, index and constraint as the database itself writes it down."""
    query = POSTGRESQL_DEFINITIONS if database.is_postgresql else SQLITE_DEFINITIONS
    async with database.read() as connection:
        found = await connection.scalars(text(query))
    found = [each for each in found if "alembic_version" not in each]
    return {" ".join(each.replace('"', "").replace("( ", "(").split()) for each in found}


def test_the_listed_revisions_are_those_of_the_package() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())

    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS
    assert scripts.get_heads() == [HEAD]


async def test_migrations_make_the_tables_of_a_new_database(empty: Database, empty_database_url: str) -> None:
    options = {"compare_type": True, "version_table": VERSION_TABLE}
    assert await empty.upgrade()
    async with empty.read() as connection:
        differences = await connection.sqlalchemy.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync, opts=options), SCHEMA)
        )
    new = await definitions(empty)
    async with empty.write() as connection:
        await connection.sqlalchemy.run_sync(SCHEMA.drop_all)
        await connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))

    await make_tables(empty_database_url, RELEASED, is_postgresql=empty.is_postgresql)
    assert await empty.upgrade()

    assert differences == []
    assert new == await definitions(empty)
    assert any("WHERE" in each and "running" in each for each in new)


async def test_an_upgrade_that_fails_leaves_nothing_behind(empty: Database, empty_database_url: str) -> None:
    await make_tables(empty_database_url, RELEASED, is_postgresql=empty.is_postgresql)
    await empty.change(text("CREATE TABLE registry_documents (x INTEGER)"))
    before = await definitions(empty)

    with pytest.raises(StoreUnavailable, match="refused a statement for an unexpected reason"):
        await empty.upgrade()
    with pytest.raises(StoreUnavailable, match=f"schema {RELEASED}") as refused:
        (await empty.schema()).require("here")
    assert refused.value.next_steps == (UpgradeDatabase(),)

    assert await definitions(empty) == before
    await empty.change(text("DROP TABLE registry_documents"))
    assert await empty.upgrade()
    (await empty.schema()).require("here")


# Released schemas --------------------------------------------------------------------------------------------------


async def test_an_upgrade_loses_no_row_and_new_columns_have_their_default(empty_database_url: str) -> None:
    await make(empty_database_url, RELEASED)
    before = await rows(empty_database_url)

    async with await Database.open(empty_database_url) as database:
        assert await database.upgrade() is True
        after = await rows(empty_database_url)
        assert (await database.schema()).revision == HEAD
        assert await database.upgrade() is False

    assert await rows(empty_database_url) == after
    kept = restricted(after, before)
    for table, present in restricted(before, before).items():
        assert [row for row in present if row not in kept[table]] == [], table
        assert (len(kept[table]) > len(present)) == (table in ADDED), table
    assert {table for table, present in after.items() if table not in before and present} == {"registry_documents"}
    for table, present in before.items():
        if table in GONE:
            continue
        for column in set(after[table][0]) - set(present[0]) - FILLED.get(table, set()):
            assert {row[column] for row in after[table]} <= {None, 0}


def restricted(after: Rows, before: Rows) -> Rows:
    """The tables and columns that `before` has, without those that are gone or changed on purpose."""
    return {
        table: [
            {name: row[name] for name in present[0] if name not in CHANGED and f"{table}.{name}" not in GONE}
            for row in after[table]
        ]
        for table, present in before.items()
        if table not in GONE
    }


@pytest.mark.parametrize("revision", ROWS)
async def test_the_program_works_on_the_rows_of_a_released_version(empty_database_url: str, revision: str) -> None:
    await make(empty_database_url, revision)
    for table, present in (await rows(empty_database_url)).items():
        assert present, f"{table} is empty"
        unused = {column for column in present[0] if all(row[column] is None for row in present)}
        assert not unused, f"nothing is in {table}.{sorted(unused)}"

    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        store = Store(database)
        history = await store.history.runs(limit=100)
        waiting = {run.id for run in history if run.status in ("queued", "retrying")}
        (abandoned,) = (run for run in history if run.status is RunStatus.RUNNING)
        claimed = [await store.runs.claim("survivor", 60.0) for _ in range(len(waiting) + 1)]
        attempts = await store.attempts(abandoned)
        queued, is_new = await store.runs.enqueue("old-service", Ask(RunTrigger.HTTP))
        payments = await store.repositories.get("payments-api")
        manifest = await store.manifests.load(payments.id)
        handbook = await store.repositories.get("handbook")
        indexed = [row for row in await store.repositories.list() if row.last_sync_at is not None]
        live = {each.id: each for every in (await store.versions.all()).values() for each in every}

    assert len(history) >= 8
    assert {run.id for run in claimed if run} == waiting | {abandoned.id}, "the lease of the killed pod has ended"
    assert [(each.attempt, each.outcome) for each in attempts if each.ended_at is None] == [(2, None)]
    assert (queued.status, is_new) == (RunStatus.QUEUED, True)
    assert (payments.id, payments.project_id, payments.epoch) == (repository_id("payments-api"), 4711, 7)
    assert payments.last_sync_at is not None
    if revision == RELEASED:
        for row in indexed:
            assert row.live_version in live
    assert payments.last_sync_at.isoformat() == "2026-03-01T12:30:02.417311+00:00"
    assert {path for path in manifest if len(path) < 100} == {
        *("billing/charge.py", "logo.png", "src/日本/ümlaut é.bin", "current", "run.sh")
    }
    assert max(map(len, manifest)) > 800, "a long path is complete"
    assert handbook.paused_reason == 'Umzug des Servers – until "Friday"'


async def test_runs_of_an_earlier_version_last_from_their_first_attempt_to_their_last(empty_database_url: str) -> None:
    await make(empty_database_url, RELEASED)
    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        run = await Store(database).history.get("e1a5589b")
        waits = await Store(database).history.get("22aeb722")
    shown = run.document

    assert shown["started_at"].isoformat() == "2026-03-01T12:30:00.100000+00:00"
    assert shown["duration_seconds"] == pytest.approx(0.1 + 2.167311, abs=0.001)
    assert shown["elapsed_seconds"] == pytest.approx(2.317311, abs=0.001)
    assert waits.document["duration_seconds"] is None
    assert total_seconds(waits.attempts) == pytest.approx(0.5, abs=0.001)


async def test_what_was_asked_of_a_program_with_requests_is_in_the_row_of_the_run(empty_database_url: str) -> None:
    await make(empty_database_url, "0010")
    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        store = Store(database)
        (queued,) = await store.history.runs(status=RunStatus.QUEUED)

    assert [(request.asked_by, request.full) for request in queued.requests] == [
        ("schedule", False),
        ("ann@laptop", True),
    ], "eve@laptop withdrew hers"
    assert queued.requests[1].asked_at == datetime(2026, 3, 1, 13, 0, 1, 500_000, tzinfo=UTC)
    assert (queued.full, queued.repair, queued.approval) == (True, False, queued.brake)


async def test_attempts_and_missed_ticks_are_in_the_rows_that_they_belong_to(empty_database_url: str) -> None:
    await make(empty_database_url, "0010")
    before = await rows(empty_database_url)
    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        store = Store(database)
        runs = {run.id: run for run in await store.history.runs(limit=100)}
        repositories = {row.id: row for row in await store.repositories.list()}

    ended = [row for row in before["run_attempts"] if row["ended_at"] is not None]
    assert sum(len(run.attempts) for run in runs.values()) == len(ended) > 0
    for row in ended:
        (attempt,) = [each for each in runs[row["run_id"]].all_attempts if each.attempt == row["attempt"]]
        assert {name: getattr(attempt, name) for name in row if name in IN_THE_ROW} == {
            name: value for name, value in row.items() if name in IN_THE_ROW
        }
        assert attempt.started_at.replace(tzinfo=None).isoformat(" ", "microseconds") in str(row["started_at"])
    for row in before["missed_ticks"]:
        (tick,) = repositories[row["repository_id"]].missed_ticks
        assert tick["late_seconds"] == row["late_seconds"]
        assert MissedTick.model_validate(tick).scheduled_for.tzinfo is not None


IN_THE_ROW = {"worker", "outcome", "error_code", "error_message", "files_processed", "files_failed", "chunks_embedded"}


@pytest.mark.parametrize("status", ["queued", "retrying"])
async def test_a_pause_of_ten_years_that_an_earlier_program_wrote_is_over(empty_database_url: str, status: str) -> None:
    await make(empty_database_url, RELEASED)
    wait = f"UPDATE sync_runs SET not_before = '2036-03-01 12:00:00.000000' WHERE status = '{status}'"
    await execute(empty_database_url, wait)

    async with await Database.open(empty_database_url) as database:
        await database.upgrade()
        runs = await Store(database).history.runs(status=RunStatus(status))

    assert runs != []
    assert [run.next_attempt_at for run in runs] == [None] * len(runs)


# A column that has to be filled, as `definitions` shows it.
REQUIRED = re.compile(r"\w+ (\d \w+ [A-Z]+ 1 \d|\w+ [a-z ]+ NO)")


async def test_a_migration_only_adds_to_what_the_oldest_program_beside_it_uses(
    empty: Database, empty_database_url: str
) -> None:
    if oldest_program(HEAD) == HEAD:
        await empty.upgrade()
    else:
        await make_tables(empty_database_url, oldest_program(HEAD), is_postgresql=empty.is_postgresql)
    before = await definitions(empty)
    await empty.upgrade()
    after = await definitions(empty)

    assert not [each for each in before - after if not each.startswith("CREATE INDEX")], "one that is not unique may go"
    tables = {each.split()[0] for each in before}
    assert [each for each in after - before if each.split()[0] in tables and REQUIRED.fullmatch(each)] == []
    assert [each for each in before if REQUIRED.fullmatch(each)], "those of the first release are recognized"


async def test_the_one_registry_file_of_an_earlier_version_is_the_current_document(
    empty: Database, empty_database_url: str, tmp_path: Path
) -> None:
    await make_tables(empty_database_url, "0010", is_postgresql=empty.is_postgresql)
    loaded = await registry_file(empty_database_url, tmp_path / "a.yaml", "main")
    await execute(
        empty_database_url,
        f"INSERT INTO superseded_digests VALUES ('{loaded.path}', 'older', '2026-03-01 08:00:00.000000')",
    )

    await empty.upgrade()

    plan = await Applying(empty, loaded, by="pod").apply()
    assert (plan.standing, plan.applied, [change.what for change in plan.changes]) == (
        "current",
        True,
        ["repository main"],
    )
    assert plan.before is not None and plan.before.superseded == ["older"]


async def test_the_groups_of_the_registry_file_are_rows_and_are_listed_without_the_file(
    empty: Database, empty_database_url: str, tmp_path: Path
) -> None:
    await make_tables(empty_database_url, "0010", is_postgresql=empty.is_postgresql)
    groups = "groups: [{gitlab: main, group: platform, schedule: never}, {gitlab: main, group: labs}]\n"
    loaded = await registry_file(empty_database_url, tmp_path / "a.yaml", "main", groups)
    key = "https://main.example.com/platform"
    await execute(
        empty_database_url,
        f"INSERT INTO project_groups (key, due_at, projects) VALUES ('{key}', '2026-03-01 08:00:00.000000', 4)",
    )

    await empty.upgrade()

    rows = await ProjectGroups(empty).all()
    assert [(row.title, row.origin) for row in rows] == [
        ("group main/labs", "config"),
        ("group main/platform", "config"),
    ]
    assert rows[1].definition == {"gitlab": "main", "group": "platform", "schedule": "never"}
    plan = await Applying(empty, loaded, by="pod").apply()
    assert plan.standing == "current"
    assert await ProjectGroups(empty).all() == rows
    assert plan.before is not None and "groups" not in plan.before.document


async def test_several_registry_files_become_one_document_that_a_person_replaces(
    empty: Database, empty_database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_tables(empty_database_url, "0010", is_postgresql=empty.is_postgresql)
    files = [await registry_file(empty_database_url, tmp_path / f"{name}.yaml", name) for name in ("a", "b")]
    await empty.upgrade()
    for file in files:
        for repository in file.registry.resolved():
            await Repositories(empty).register(registration_of(repository, "config", origin_file=str(file.path)))
    before = await Repositories(empty).list()

    for file in files:
        plan = await Applying(empty, file, by="pod").apply()
        assert (plan.standing, plan.applied) == ("superseded", False), "a file that was in force does not replace both"
        assert str(file.path) in caplog.text
    assert await Repositories(empty).list() == before
    assert [server.name for server in (await registry_in_force(empty)).gitlab] == ["a", "b"]

    plan = await Applying(empty, files[0], by="person").apply(on_request=True)
    assert [(row.name, row.is_active) for row in await Repositories(empty).list()] == [("a", True), ("b", False)]
    assert not (await Applying(empty, files[1], by="pod").apply()).applied


async def registry_file(url: str, path: Path, name: str, more: str = "") -> LoadedRegistry:
    """One that a program of 0.2.1 applied."""
    path.write_text(
        f"gitlab: [{{name: {name}, url: 'https://{name}.example.com'}}]\n"
        f"repositories: [{{name: {name}, gitlab: {name}, project: group/{name}}}]\n{more}"
    )
    loaded = load_registry(path)
    written = loaded.registry.model_dump(mode="json", exclude_unset=True, exclude={"repositories"})
    await execute(
        url,
        f"""INSERT INTO registry_files (path, digest, document, host, applied_by, applied_at, created_at)
        VALUES ('{path}', '{loaded.digest}', '{json.dumps(written)}', 'node-1', 'pod-1',
            '2026-03-01 08:00:00.000000', '2026-02-01 08:00:00.000000')""",
    )
    return loaded


# Databases of other programs -----------------------------------------------------------------------------------------

FOREIGN = {
    "a table": "CREATE TABLE users (id INTEGER PRIMARY KEY)",
    "Alembic": "CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version VALUES ('abc123')",
    "our number": f"CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version "
    f"VALUES ('{HEAD}'); CREATE TABLE users (id INTEGER)",
    "our names": "CREATE TABLE repositories (id INTEGER); CREATE TABLE workers (id INTEGER)",
}


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
async def test_the_database_of_a_different_program_is_refused_and_unchanged(
    empty: Database, empty_database_url: str, statements: str
) -> None:
    await execute(empty_database_url, statements)
    before = await rows(empty_database_url)

    with pytest.raises(DatabaseForeign, match=r"belongs to a different program: it has the tables \w+"):
        await empty.upgrade()
    with pytest.raises(DatabaseForeign):
        (await empty.schema()).require("here")

    assert await rows(empty_database_url) == before


@ON_POSTGRESQL
async def test_a_database_that_has_only_tables_of_an_extension_is_empty_and_gets_the_schema(
    empty: Database, empty_database_url: str
) -> None:
    extension = "CREATE TABLE spatial_ref_sys (srid INTEGER); ALTER EXTENSION plpgsql ADD TABLE spatial_ref_sys"
    await execute(empty_database_url, extension)
    try:
        assert (await empty.schema()).state == "empty"
        assert await empty.upgrade() is True

        # Only tables of the extension are ignored.
        await execute(empty_database_url, f"DROP TABLE {VERSION_TABLE}")
        assert "spatial_ref_sys" not in (others := (await empty.schema()).others) and "repositories" in others
    finally:
        # Whoever empties the database would drop the extension with its table.
        await execute(empty_database_url, "ALTER EXTENSION plpgsql DROP TABLE spatial_ref_sys")


async def test_a_database_of_an_earlier_version_is_taken_over_and_its_programs_see_the_new_schema(
    empty: Database, empty_database_url: str
) -> None:
    await make(empty_database_url, RELEASED)

    await empty.upgrade()

    async with empty.read() as connection:
        for table in (VERSION_TABLE, "alembic_version"):
            assert await connection.scalars(text(f"SELECT version_num FROM {table}")) == [HEAD]


async def test_a_new_database_leaves_the_table_of_alembic_to_other_programs(
    empty: Database, empty_database_url: str
) -> None:
    await empty.upgrade()

    await execute(empty_database_url, FOREIGN["Alembic"])
    assert (await empty.schema()).state == "current"
    assert await empty.upgrade() is False


async def test_a_version_of_words_only_gets_the_vectors_of_the_one_that_was_built_beside_it(
    empty: Database, empty_database_url: str
) -> None:
    await make(empty_database_url, "0010")
    columns = "id, repository_id, number, state, settings_key, settings, generation, collection, physical, attributes"
    common = "0, 'docs', 'docs', '{}', 1, '2026-03-01 10:00:00.000000'"
    await execute(
        empty_database_url,
        f"""
        UPDATE index_versions SET state = 'retired', retired_at = live_at WHERE collection = 'docs';
        INSERT INTO index_versions ({columns}, epoch, created_at)
            SELECT 'words', repository_id, 2, 'live', 'key of words', '{{"words_only": true}}', {common}
            FROM index_versions WHERE collection = 'docs' AND number = 1;
        INSERT INTO index_versions ({columns}, epoch, created_at)
            SELECT 'meaning', repository_id, 3, 'building', 'key', '{{"words_only": false}}', {common}
            FROM index_versions WHERE collection = 'docs' AND number = 1;
        INSERT INTO indexed_files (repository_id, path, blob_sha, mode, chunks, epoch)
            VALUES ('words', 'a.md', 'a', 33188, 3, 1), ('words', 'b.md', 'b', 33188, 4, 1)""",
    )

    await empty.upgrade()

    versions = {each.id: each for found in (await Store(empty).versions.all()).values() for each in found}
    words, meaning = versions["words"], versions["meaning"]
    assert (words.state, words.settings_key, words.meaning_pending) == (VersionState.LIVE, "key", 7)
    assert meaning.state is VersionState.RETIRED and meaning.retired_at is not None
    assert {each.meaning_pending for each in versions.values()} == {7, None}
