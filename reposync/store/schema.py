"""The schema's revision: what it means to this version of the program, and how it is upgraded.

Programs of several versions share a database during a rolling update. Migrations only add, so older programs go on
working: an upgrade records in the database which programs can, and older programs read it there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reposync.errors import StoreUnavailable
from reposync.store.database_errors import UPGRADE, connection_failure, is_lock_timeout, is_locked, is_missing_table
from reposync.store.migrations import HEAD, OLDEST_PROGRAM, REVISIONS

log = logging.getLogger(__name__)

SchemaState: TypeAlias = Literal["empty", "behind", "current", "ahead", "incompatible"]
"""`ahead`: a newer version made it, and this one can work with it. `incompatible`: this one cannot."""

WAIT_SECONDS = 600.0
# Unlikely to be used by other programs in the same PostgreSQL database: "reposync" in ASCII, halved.
MIGRATION_LOCK = 0x7265706F73796E63 >> 1
# While a migration waits for a table, all later statements wait behind it. So it waits for two seconds, lets the others
# go, and tries again: a long report in psql would otherwise block all programs.
TABLE_LOCK_SECONDS = 2.0
_POSTGRESQL_SETTINGS = (
    f"SET LOCAL lock_timeout = '{TABLE_LOCK_SECONDS:g}s'",
    # An index over a million rows takes long, and the administrator may have set a limit for other programs.
    "SET LOCAL statement_timeout = 0",
)
_PAUSE_SECONDS = 0.5
_REPORT_SECONDS = 15.0

_OLDEST = {
    "sqlite": "SELECT user_version FROM pragma_user_version",
    "postgresql": "SELECT obj_description(to_regclass('alembic_version'), 'pg_class')",
}
_COMMENT = "oldest program: "


@dataclass(frozen=True, slots=True)
class Schema:
    """The revision of the database (None: no tables yet), and the revision of the oldest program that can work with it
    (None: unknown)."""

    revision: str | None
    oldest_program: str | None = None

    @property
    def state(self) -> SchemaState:
        if self.revision is None:
            return "empty"
        if self.revision == HEAD:
            return "current"
        if self.revision in REVISIONS:
            return "behind"
        return "ahead" if self.oldest_program is not None and self.oldest_program <= HEAD else "incompatible"

    def require(self, where: str) -> None:
        """Raises StoreUnavailable unless this version can work with it."""
        if self.state in ("current", "ahead"):
            return
        self.refuse_incompatible(where)
        found = "has no tables yet" if self.revision is None else f"has schema {self.revision}"
        raise StoreUnavailable(f"The database {where} {found}; this version needs schema {HEAD}.", remedy=UPGRADE)

    def refuse_incompatible(self, where: str) -> None:
        """Raises StoreUnavailable if a newer version changed what this one needs."""
        if self.state == "incompatible":
            raise StoreUnavailable(
                f"The database {where} has schema {self.revision}, which is newer than this version's {HEAD}.",
                remedy="Use the version of reposync that upgraded it, or a newer one.",
            )


async def read_schema(engine: AsyncEngine, where: str) -> Schema:
    """Raises StoreUnavailable."""
    try:
        async with engine.connect() as connection:
            revision = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            if revision in (None, *REVISIONS):
                return Schema(cast("str | None", revision))
            return Schema(revision, _as_revision(await connection.scalar(text(_OLDEST[engine.dialect.name]))))
    except DBAPIError as error:
        if is_missing_table(error):
            return Schema(None)
        raise connection_failure(where, error) from error


def _as_revision(stored: object) -> str | None:
    if isinstance(stored, int):
        return f"{stored:04}" if stored else None
    return str(stored).removeprefix(_COMMENT) if str(stored).startswith(_COMMENT) else None


class Upgrade:
    """Upgrades a schema to HEAD, in one transaction, through an engine of its own: without a timeout for statements,
    with a short one for locks. `writer` is the same engine with writing transactions. `report` is called with what is
    waited for, in a sentence."""

    def __init__(
        self,
        engine: AsyncEngine,
        writer: AsyncEngine,
        where: str,
        report: Callable[[str], None],
        wait_seconds: float,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._where = where
        self._report = report
        self._wait_seconds = wait_seconds

    async def run(self) -> bool:
        """Whether this process changed the schema, and not a different one meanwhile. Raises StoreUnavailable, also
        after a wait of `wait_seconds`."""
        loop = asyncio.get_running_loop()
        began, report_at = loop.time(), 0.0
        while True:
            schema = await read_schema(self._engine, self._where)
            schema.refuse_incompatible(self._where)
            if schema.state in ("current", "ahead"):
                return False
            obstacle = await self._attempt()
            if isinstance(obstacle, bool):
                return obstacle
            now = loop.time()
            if now - began > self._wait_seconds:
                raise StoreUnavailable(
                    f"The database {self._where} could not be upgraded to schema {HEAD} "
                    f"within {self._wait_seconds:g} s: waiting for {obstacle}.",
                    remedy="End that process or transaction, or try again later.",
                )
            if now >= report_at:
                self._report(f"The database {self._where} needs schema {HEAD}; waiting for {obstacle}.")
                report_at = now + _REPORT_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311

    async def _attempt(self) -> bool | str:
        """Migrate; whether there was something to do, or in words what prevented it."""
        try:
            async with self._writer.begin() as connection:
                if self._engine.dialect.name == "postgresql" and not await _lock_upgrades(connection):
                    return "a different process, which upgrades it"
                if not await connection.run_sync(await asyncio.to_thread(_load_migrate)):
                    return False
                await _write_oldest_program(connection)
                return True
        except DBAPIError as error:
            if is_locked(error):
                return "a different process, which writes to it"
            if not is_lock_timeout(error):
                raise
            return "a transaction that uses its tables (see pg_stat_activity)"


def _load_migrate() -> Callable[[Connection], bool]:
    # Only if the schema has to change: the import of Alembic takes 0.3 s.
    from reposync.store.migrations.runner import migrate

    return migrate


async def _lock_upgrades(connection: AsyncConnection) -> bool:
    # For the transaction and not the session: it ends with the process, and PgBouncer may pool transactions.
    for setting in _POSTGRESQL_SETTINGS:
        await connection.exec_driver_sql(setting)
    lock = text("SELECT pg_try_advisory_xact_lock(:key)").bindparams(key=MIGRATION_LOCK)
    return bool(await connection.scalar(lock))


async def _write_oldest_program(connection: AsyncConnection) -> None:
    """Record which programs can work with the schema, for those that do not know its revision. Beside the revision and
    not in a new table, which earlier programs would not have."""
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{_COMMENT}{OLDEST_PROGRAM}'")
    else:
        await connection.exec_driver_sql(f"PRAGMA user_version = {int(OLDEST_PROGRAM)}")
