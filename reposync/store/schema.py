"""The schema's revision: what it means to this version of the program, and how it is upgraded.

Programs of several versions share a database during a rolling update, so migrations only add tables, indexes, and
columns that are nullable or have a default: older programs go on working. A later version removes what is no longer
used, and names in OLDEST_PROGRAM the first version that works without it; older programs read that in the database.

Alembic runs from the package without an `alembic.ini`, and is imported only if the schema has to change: that takes
0.3 s. A new database gets today's tables and indexes at once: a test compares these with what the migrations make of
the oldest schema.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from reposync.errors import DatabaseForeign, StoreUnavailable
from reposync.store.database_errors import LOCK_TIMEOUT, UPGRADE, is_locked, is_missing_table, sqlstate

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0007", "0010", "0011")
"""Oldest first: of 0.2.0, of 0.2.1, of this version."""

HEAD = REVISIONS[-1]

OLDEST_PROGRAM = "0011"
"""Programs of this revision and newer can work on HEAD's schema."""

SchemaState: TypeAlias = Literal["empty", "behind", "current", "ahead", "incompatible", "foreign"]
"""`ahead`: a newer version made it, and this one can work with it. `incompatible`: this one cannot. `foreign`: it is
the database of a different program."""

WAIT_SECONDS = 600.0
# Unlikely to be used by other programs in the same PostgreSQL database: "reposync" in ASCII, halved.
MIGRATION_LOCK = 0x7265706F73796E63 >> 1
# While a migration waits for a table, all later statements wait behind it. So it waits for two seconds, lets the others
# go, and tries again: a long report in psql would otherwise block all programs. The administrator may have set a limit
# for statements of other programs, and an index over a million rows takes long.
_POSTGRESQL_SETTINGS = ("SET LOCAL lock_timeout = '2s'", "SET LOCAL statement_timeout = 0")
_PAUSE_SECONDS = 0.5
_REPORT_SECONDS = 15.0

VERSION_TABLE = "reposync_alembic_version"
FORMER_VERSION_TABLE = "alembic_version"
"""Of 0.2.0, whose programs read it, and of any other program that uses Alembic. It is taken over if the
database has our tables, and its revision then follows that of VERSION_TABLE."""

_OLDEST = {
    "sqlite": "SELECT user_version FROM pragma_user_version",
    "postgresql": "SELECT obj_description(to_regclass('{}'), 'pg_class')",
}
# Those of an extension, such as PostGIS, belong to nobody.
_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
    "postgresql": """
        SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relkind IN ('r', 'p') AND pg_table_is_visible(pg_class.oid)
            AND nspname <> 'information_schema' AND nspname NOT IN ('pg_catalog', 'pg_toast')
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e')
        ORDER BY relname""",
}
_OUR_TABLES = frozenset({"repositories", "sync_runs", "indexed_files"})
_NAMED_TABLES = 3
_COMMENT = "oldest program: "


@dataclass(frozen=True, slots=True)
class Schema:
    """Revisions of the database (None: no tables), and of the oldest program that can use it (None: unknown).
    `others`: tables of a different program, if there are none of this one."""

    revision: str | None
    oldest_program: str | None = None
    others: tuple[str, ...] = ()

    @property
    def state(self) -> SchemaState:
        if self.others:
            return "foreign"
        if self.revision is None:
            return "empty"
        if self.revision in REVISIONS:
            return "current" if self.revision == HEAD else "behind"
        is_newer = self.revision > HEAD and self.oldest_program is not None
        return "ahead" if is_newer and str(self.oldest_program) <= HEAD else "incompatible"

    def require(self, where: str, *, complete: bool = True) -> None:
        """Raises StoreUnavailable unless this version can work with it, or if not `complete`, upgrade it; and
        DatabaseForeign."""
        if self.others:
            more = ", ..." if len(self.others) > _NAMED_TABLES else ""
            raise DatabaseForeign(
                f"The database {where} belongs to a different program: it has the tables "
                f"{', '.join(self.others[:_NAMED_TABLES])}{more}, and none of reposync. Nothing was written.",
                remedy="Name an empty database in DATABASE_URL, or unset it.",
            )
        found = f"The database {where} has schema {self.revision}"
        if self.state == "incompatible" and str(self.revision) < HEAD:
            raise StoreUnavailable(
                f"{found}, which is older than that of 0.2.0, the oldest version that can be upgraded.",
                remedy="Upgrade it with version 0.2.1 first, or start with a new database.",
            )
        if self.state == "incompatible":
            remedy = "Use the version of reposync that upgraded it, or a newer one."
            raise StoreUnavailable(f"{found}, which is newer than this version's {HEAD}.", remedy=remedy)
        if complete and self.state in ("empty", "behind"):
            found = found if self.revision else f"The database {where} has no tables yet"
            raise StoreUnavailable(f"{found}; this version needs schema {HEAD}.", remedy=UPGRADE)


async def read_schema(engine: AsyncEngine) -> Schema:
    try:
        return await _read_schema(engine, VERSION_TABLE)
    except DBAPIError as error:
        if not is_missing_table(error):
            raise
    async with engine.connect() as connection:
        tables = list(await connection.scalars(text(_TABLES[engine.dialect.name])))
    if FORMER_VERSION_TABLE in tables and _OUR_TABLES.issubset(tables):
        return await _read_schema(engine, FORMER_VERSION_TABLE)
    return Schema(None, others=tuple(tables))


async def _read_schema(engine: AsyncEngine, version_table: str) -> Schema:
    async with engine.connect() as connection:
        revision = await connection.scalar(text(f"SELECT version_num FROM {version_table}"))  # noqa: S608
        if revision in (None, *REVISIONS):
            return Schema(revision)
        oldest = text(_OLDEST[engine.dialect.name].format(version_table))
        return Schema(revision, _as_revision(await connection.scalar(oldest)))


def _as_revision(stored: object) -> str | None:
    if isinstance(stored, int):
        return f"{stored:04}" if stored else None
    return str(stored).removeprefix(_COMMENT) if str(stored).startswith(_COMMENT) else None


async def upgrade_schema(
    attempt: Callable[[], Awaitable[bool | str]], where: str, report: Callable[[str], None], wait_seconds: float
) -> bool:
    """Bring the schema to HEAD; whether this process changed it, and not a different one meanwhile. `attempt`: see
    `migrate_once`. `report` is called with what is waited for, in a sentence. Raises StoreUnavailable after a wait of
    `wait_seconds`."""
    loop = asyncio.get_running_loop()
    began, report_at = loop.time(), 0.0
    while isinstance(outcome := await attempt(), str):
        now = loop.time()
        if now - began > wait_seconds:
            raise StoreUnavailable(
                f"The database {where} could not be upgraded to schema {HEAD} "
                f"within {wait_seconds:g} s: waiting for {outcome}.",
                remedy="End that process or transaction, or try again later.",
            )
        if now >= report_at:
            report(f"The database {where} needs schema {HEAD}; waiting for {outcome}.")
            report_at = now + _REPORT_SECONDS
        await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311
    return outcome


async def migrate_once(writer: AsyncEngine) -> bool | str:
    """Bring the schema to HEAD in one transaction. Returns whether there was something to migrate, or in words what
    prevented it. `writer` has writing transactions without a timeout for statements."""
    is_postgresql = writer.dialect.name == "postgresql"
    try:
        async with writer.begin() as connection:
            if is_postgresql:
                for setting in _POSTGRESQL_SETTINGS:
                    await connection.exec_driver_sql(setting)
                # For the transaction and not the session: PgBouncer may pool transactions.
                if not await connection.scalar(text(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})")):
                    return "a different process, which upgrades it"
            if not await connection.run_sync(migrate):
                return False
            # For programs that do not know the revision.
            if is_postgresql:
                for table in await connection.run_sync(_version_tables, HEAD):
                    await connection.exec_driver_sql(f"COMMENT ON TABLE {table} IS '{_COMMENT}{OLDEST_PROGRAM}'")
            else:
                await connection.exec_driver_sql(f"PRAGMA user_version = {int(OLDEST_PROGRAM)}")
            return True
    except DBAPIError as error:
        if is_locked(error):
            return "a different process, which writes to it"
        if sqlstate(error) != LOCK_TIMEOUT:
            raise
        return "a transaction that uses its tables (see pg_stat_activity)"


def alembic_config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection) -> bool:
    """Bring the schema to HEAD in the connection's transaction. Returns whether that changed it: a different process,
    even of a newer version, may have done it just before."""
    from alembic import command
    from alembic.migration import MigrationContext
    from sqlalchemy.schema import CreateIndex, CreateTable

    from reposync.store.indexes import INDEXES, SCHEMA

    tables = _version_tables(connection)
    if tables == [FORMER_VERSION_TABLE]:
        columns = "(version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
        connection.exec_driver_sql(f"CREATE TABLE {VERSION_TABLE} {columns}")
        copy = f"INSERT INTO {VERSION_TABLE} SELECT version_num FROM {FORMER_VERSION_TABLE}"  # noqa: S608
        connection.exec_driver_sql(copy)
    before = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if before is None:
        for table in SCHEMA.sorted_tables:
            connection.execute(CreateTable(table))
        for index in INDEXES:  # `create_all` has no order
            connection.execute(CreateIndex(index))
        command.stamp(alembic_config(connection), HEAD)
    elif before in REVISIONS[:-1]:
        command.upgrade(alembic_config(connection), HEAD)
        if FORMER_VERSION_TABLE in tables:  # unless a different program made it since
            change = f"UPDATE {FORMER_VERSION_TABLE} SET version_num = '{HEAD}' WHERE version_num = '{before}'"  # noqa: S608
            connection.exec_driver_sql(change)
    return before is None or before in REVISIONS[:-1]


def _version_tables(connection: Connection, revision: str | None = None) -> list[str]:
    """Those that exist, and have this `revision`, if one is given."""
    existing = inspect(connection).get_table_names()
    tables = [each for each in (VERSION_TABLE, FORMER_VERSION_TABLE) if each in existing]
    if revision is None:
        return tables
    query = "SELECT version_num FROM {}"
    return [each for each in tables if connection.scalar(text(query.format(each))) == revision]
