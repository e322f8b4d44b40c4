"""The schema's revision: what it means to this version of the program, and how it is upgraded.

Programs of several versions share a database during a rolling update, so migrations only add tables, indexes, and
columns that are nullable or have a default: older programs go on working. Such a revision names the oldest of them,
`0012_for_0011`, which they read in the database. One that removes what is no longer used is a number alone.

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
from reposync.next_steps import UpgradeDatabase
from reposync.store.database_errors import LOCK_TIMEOUT, error_code, is_locked

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0007", "0010", "0011")
"""Oldest first: of 0.2.0, of 0.2.1, of this version."""

HEAD = REVISIONS[-1]

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

VERSION_TABLE = "reposync_alembic_version"
FORMER_VERSION_TABLE = "alembic_version"
"""The table of 0.2.0, and of any other program that uses Alembic."""

_TABLES_OF_0_2_0 = frozenset({"repositories", "sync_runs", "indexed_files"})
_NAMED_TABLES = 3
# Such as PostGIS: they belong to no program.
_TABLES_OF_EXTENSIONS = """
    SELECT relname FROM pg_class JOIN pg_depend ON objid = pg_class.oid
    WHERE classid = 'pg_class'::regclass AND deptype = 'e' AND pg_table_is_visible(pg_class.oid)"""


def oldest_program(revision: str) -> str:
    """The revision of the oldest program that can work with a schema of this revision."""
    return revision.partition("_for_")[2] or revision


@dataclass(frozen=True, slots=True)
class Schema:
    """The revision of the database (None: no tables). `others`: tables of a different program, if there are none of
    this one."""

    revision: str | None
    others: tuple[str, ...] = ()

    @property
    def state(self) -> SchemaState:
        if self.others:
            return "foreign"
        if self.revision is None:
            return "empty"
        if self.revision in REVISIONS:
            return "current" if self.revision == HEAD else "behind"
        return "ahead" if oldest_program(self.revision) <= HEAD < self.revision else "incompatible"

    def require(self, where: str, *, complete: bool = True) -> None:
        """Raises StoreUnavailable unless this version can work with it, or if not `complete`, upgrade it; and
        DatabaseForeign."""
        if self.others:
            more = ", ..." if len(self.others) > _NAMED_TABLES else ""
            raise DatabaseForeign(
                f"The database {where} belongs to a different program: it has the tables "
                f"{', '.join(self.others[:_NAMED_TABLES])}{more}, and none of reposync. Nothing was written.",
                remedy="Name an empty database in REPOSYNC_DATABASE_URL, which counts before DATABASE_URL.",
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
            raise StoreUnavailable(f"{found}; this version needs schema {HEAD}.", next_steps=[UpgradeDatabase()])


def read_schema(connection: Connection) -> Schema:
    tables = set(inspect(connection).get_table_names())
    if connection.dialect.name == "postgresql":
        tables -= set(connection.scalars(text(_TABLES_OF_EXTENSIONS)))
    table = VERSION_TABLE if VERSION_TABLE in tables else FORMER_VERSION_TABLE
    if table != VERSION_TABLE and not _TABLES_OF_0_2_0.union([table]).issubset(tables):
        return Schema(None, others=tuple(sorted(tables)))
    return Schema(connection.scalar(text(f"SELECT version_num FROM {table}")))  # noqa: S608


async def upgrade_schema(
    attempt: Callable[[], Awaitable[bool | str]], where: str, report: Callable[[str], None], wait_seconds: float
) -> bool:
    """Bring the schema to HEAD; whether this process changed it, and not a different one meanwhile. `attempt`: see
    `migrate_once`. `report` is called with what is waited for, in a sentence. Raises StoreUnavailable after a wait of
    `wait_seconds`."""
    loop = asyncio.get_running_loop()
    deadline, reported = loop.time() + wait_seconds, ""
    while isinstance(outcome := await attempt(), str):
        if loop.time() > deadline:
            raise StoreUnavailable(
                f"The database {where} could not be upgraded to schema {HEAD} "
                f"within {wait_seconds:g} s: waiting for {outcome}.",
                remedy="End that process or transaction, or try again later.",
            )
        if outcome != reported:
            report(f"The database {where} needs schema {HEAD}; waiting for {outcome}.")
            reported = outcome
        await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311
    return outcome


async def migrate_once(writer: AsyncEngine) -> bool | str:
    """Bring the schema to HEAD in one transaction. Returns whether there was something to migrate, or in words what
    prevented it. `writer` has writing transactions without a timeout for statements."""
    try:
        async with writer.begin() as connection:
            if writer.dialect.name == "postgresql":
                for setting in _POSTGRESQL_SETTINGS:
                    await connection.exec_driver_sql(setting)
                # For the transaction and not the session: PgBouncer may pool transactions.
                if not await connection.scalar(text(f"SELECT pg_try_advisory_xact_lock({MIGRATION_LOCK})")):
                    return "a different process, which upgrades it"
            return await connection.run_sync(migrate)
    except DBAPIError as error:
        if is_locked(error):
            return "a different process, which writes to it"
        if error_code(error) != LOCK_TIMEOUT:
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
    from sqlalchemy.schema import CreateIndex, CreateTable

    from reposync.store.indexes import INDEXES, SCHEMA

    state = read_schema(connection).state
    if state == "empty":
        for table in SCHEMA.sorted_tables:
            connection.execute(CreateTable(table))
        for index in INDEXES:  # `create_all` has no order
            connection.execute(CreateIndex(index))
        command.stamp(alembic_config(connection), HEAD)
    elif state == "behind":
        command.upgrade(alembic_config(connection), HEAD)
    return state in ("empty", "behind")
