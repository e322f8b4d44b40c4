"""The schema: what the migrations make is what the code expects, and starting on a current one is cheap."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from reposync.errors import StoreUnavailable
from reposync.store.database import Database
from reposync.store.indexes import SCHEMA
from reposync.store.migrations import HEAD, OLDEST_PROGRAM, REVISIONS
from reposync.store.migrations.runner import alembic_config

# Of SQLite: SQLAlchemy does not compare them, `definitions` does.
pytestmark = pytest.mark.filterwarnings("ignore:.*expression-based index")

POSTGRESQL_DEFINITIONS = """
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    UNION ALL
    SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
"""
# Not a table's own text: a column that was added later stands elsewhere in it, and is the same column.
SQLITE_DEFINITIONS = """
    SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND type <> 'table'
    UNION ALL
    SELECT printf('%s %d %s %s %d %s %d', t.name, t.wr, c.name, c.type, c."notnull", c.dflt_value, c.pk)
    FROM pragma_table_list t JOIN pragma_table_xinfo(t.name) c WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite_%'
    UNION ALL
    SELECT printf('%s %s %s %s %s', t.name, k."table", k."from", k."to", k.on_delete)
    FROM pragma_table_list t JOIN pragma_foreign_key_list(t.name) k WHERE t.schema = 'main'
"""


@pytest.fixture
async def empty(empty_database_url: str):
    async with await Database.open(empty_database_url) as database:
        yield database


async def definitions(database: Database) -> set[str]:
    """Every index and constraint (on SQLite every column too) as the database itself writes it down."""
    query = POSTGRESQL_DEFINITIONS if database.is_postgresql else SQLITE_DEFINITIONS
    async with database.read() as connection:
        found = (await connection.scalars(text(query))).all()
    found = [each for each in found if "alembic_version" not in each]
    return {" ".join(each.replace('"', "").replace("( ", "(").split()) for each in found}


def test_the_listed_revisions_are_those_of_the_package() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())

    assert tuple(reversed([script.revision for script in scripts.walk_revisions()])) == REVISIONS
    assert scripts.get_heads() == [HEAD]
    assert resources.files("reposync.store.migrations").joinpath("env.py").is_file()


async def test_migrations_make_the_tables_that_the_code_declares(empty: Database) -> None:
    await empty.upgrade()

    async with empty.read() as connection:
        differences = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync, opts={"compare_type": True}), SCHEMA)
        )
    migrated = await definitions(empty)
    async with empty.write() as connection:
        await connection.run_sync(SCHEMA.drop_all)
        await connection.run_sync(SCHEMA.create_all)

    assert differences == []
    assert migrated == await definitions(empty)
    assert any("WHERE" in each and "running" in each for each in migrated)


async def test_an_upgrade_that_is_cut_off_leaves_nothing_behind(empty: Database) -> None:
    async with empty.write() as connection:
        await connection.execute(text("CREATE TABLE run_problems (x INTEGER)"))

    with pytest.raises(StoreUnavailable, match="refused a statement for an unexpected reason"):
        await empty.upgrade()
    assert await empty.current() is None

    async with empty.write() as connection:
        await connection.execute(text("DROP TABLE run_problems"))
    assert await empty.upgrade()
    await empty.require_current()


async def test_a_database_without_tables_says_how_to_make_them(empty: Database) -> None:
    with pytest.raises(StoreUnavailable, match=r"no tables yet.*reposync db upgrade"):
        await empty.require_current()


def later(revision: str, oldest_program: str | None, database: Database) -> list[str]:
    """What a migration of a later version leaves behind."""
    if database.is_postgresql:
        comment = f"'oldest program: {oldest_program}'" if oldest_program else "NULL"
        word = f"COMMENT ON TABLE alembic_version IS {comment}"
    else:
        word = f"PRAGMA user_version = {int(oldest_program or 0)}"
    return [f"UPDATE alembic_version SET version_num = '{revision}'", word]


async def become(database: Database, revision: str, oldest_program: str | None) -> None:
    async with database.write() as connection:
        for statement in later(revision, oldest_program, database):
            await connection.exec_driver_sql(statement)


@pytest.mark.parametrize("operation", ["upgrade", "require_current"])
@pytest.mark.parametrize("oldest_program", ["9000", None])
async def test_a_schema_that_only_newer_versions_can_work_with_is_left_alone(
    empty: Database, operation: str, oldest_program: str | None
) -> None:
    await empty.upgrade()
    await become(empty, "9999", oldest_program)

    with pytest.raises(StoreUnavailable, match=r"9999, which is newer"):
        await getattr(empty, operation)()

    assert (await empty.schema()).state == "incompatible"
    assert await empty.current() == "9999"


async def test_a_schema_of_a_newer_version_that_only_added_to_it_is_worked_with(empty: Database) -> None:
    await empty.upgrade()
    await become(empty, "9999", HEAD)

    assert await empty.upgrade() is False
    await empty.require_current()

    assert (await empty.schema()).state == "ahead"
    assert await empty.current() == "9999"


async def test_a_migration_leaves_word_of_the_oldest_program_that_can_work_with_it(empty: Database) -> None:
    await empty.upgrade()
    async with empty.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    assert (await empty.schema()).oldest_program == OLDEST_PROGRAM


def test_a_current_schema_is_recognised_without_loading_alembic(database_url: str) -> None:
    program = """
import asyncio, sys
from reposync.store.database import Database

async def main():
    async with await Database.open(sys.argv[1]) as database:
        print(await database.upgrade(), "alembic" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program, database_url], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["False", "False"], done.stderr
