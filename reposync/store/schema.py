"""The schema's revision: what it means to this version of the program, and how it is brought up to date.

Programs of several versions meet at one database during a rolling update. Migrations only add, so the older ones go on
working: the newest migration leaves in the database which programs still can, and an older one reads it there.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reposync.errors import StoreUnavailable
from reposync.store.failures import UPGRADE, connection_failure, is_lock_timeout, is_locked, is_missing_table
from reposync.store.migrations import HEAD, OLDEST_PROGRAM, REVISIONS

log = logging.getLogger(__name__)

SchemaState: TypeAlias = Literal["empty", "behind", "current", "ahead", "incompatible"]
"""`ahead`: a newer version made it, and this one can work with it. `incompatible`: this one cannot."""

WAIT_SECONDS = 600.0
# Any number that no other user of the same PostgreSQL database is likely to take: "reposync" in ASCII, halved.
MIGRATION_LOCK = 0x7265706F73796E63 >> 1
# While a migration waits for a table, everybody who comes after it waits as well: it asks for two seconds, lets the
# others go, and asks again. Rows of other programs would wait as long as somebody's report in psql takes.
TABLE_LOCK_SECONDS = 2.0
_POSTGRESQL_SETTINGS = (
    f"SET LOCAL lock_timeout = '{TABLE_LOCK_SECONDS:g}s'",
    # An index over a million rows takes its time. Whoever administers the server may have set a limit for others.
    "SET LOCAL statement_timeout = 0",
)
_PAUSE_SECONDS = 0.5
_TELL_SECONDS = 15.0

_OLDEST = {
    "sqlite": "SELECT user_version FROM pragma_user_version",
    "postgresql": "SELECT obj_description(to_regclass('alembic_version'), 'pg_class')",
}
_COMMENT = "oldest program: "

# Who holds the advisory lock, or else whose transaction has been holding one of the tables for the longest time.
_HOLDER = text("""
    SELECT activity.pid, host(activity.client_addr) AS address, activity.application_name AS program,
        extract(epoch FROM clock_timestamp() - activity.xact_start)::float AS seconds,
        bool_or(locks.locktype = 'advisory') AS migrates
    FROM pg_locks locks JOIN pg_stat_activity activity USING (pid)
    WHERE locks.granted AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND activity.pid <> pg_backend_pid()
        AND (locks.locktype = 'advisory' AND locks.classid = :high AND locks.objid = :low AND locks.objsubid = 1
            OR locks.locktype = 'relation' AND locks.relation = ANY (
                SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'))
    GROUP BY activity.pid, activity.client_addr, activity.application_name, activity.xact_start
    ORDER BY migrates DESC, activity.xact_start
    LIMIT 1""").bindparams(high=MIGRATION_LOCK >> 32, low=MIGRATION_LOCK & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Schema:
    """What the database says of itself: its revision (None: no tables yet), and the revision of the oldest program that
    can work with it (None: not told)."""

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
        """Raises StoreUnavailable unless this version can work with it as it is."""
        if self.state in ("current", "ahead"):
            return
        self.refuse_incompatible(where)
        found = "has no tables yet" if self.revision is None else f"has schema {self.revision}"
        raise StoreUnavailable(f"The database {where} {found}; this version needs schema {HEAD}.", remedy=UPGRADE)

    def refuse_incompatible(self, where: str) -> None:
        """Raises StoreUnavailable where a newer version changed what this one rests on."""
        if self.state == "incompatible":
            raise StoreUnavailable(
                f"The database {where} has schema {self.revision}, which is newer than this version's {HEAD}.",
                remedy="Use the version of reposync that made it, or a newer one.",
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


def _as_revision(told: object) -> str | None:
    if isinstance(told, int):
        return f"{told:04}" if told else None
    return str(told).removeprefix(_COMMENT) if str(told).startswith(_COMMENT) else None


class Upgrade:
    """Brings a schema to HEAD, through an engine that is for nothing else: no time-out of its statements, a short one
    for its locks. `writer` is the same engine, whose transactions are those of writers from their start.

    All of it is one transaction, so a process that dies in the middle leaves nothing behind, and the next one begins
    anew. `told` hears what is waited for, in a sentence.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        writer: AsyncEngine,
        where: str,
        told: Callable[[str], None],
        wait_seconds: float,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._where = where
        self._told = told
        self._wait_seconds = wait_seconds

    async def run(self) -> bool:
        """Whether this process changed the schema, and not another one meanwhile. Raises StoreUnavailable, also where
        it had to wait for longer than `wait_seconds`."""
        loop = asyncio.get_running_loop()
        began, tell_at = loop.time(), 0.0
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
                    f"The schema of the database {self._where} could not be brought to {HEAD} "
                    f"within {self._wait_seconds:g} s: waiting for {obstacle}.",
                    remedy="End what holds it, or try again later.",
                )
            if now >= tell_at:
                self._told(f"The database {self._where} needs schema {HEAD}; waiting for {obstacle}.")
                tell_at = now + _TELL_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311

    async def _attempt(self) -> bool | str:
        """Migrate, and tell whether there was still something to do; or what stands in the way, in words."""
        # Alembic is imported only where the schema has to change: its import alone takes 0.3 s.
        runner = await asyncio.to_thread(importlib.import_module, "reposync.store.migrations.runner")
        migrate: Callable[[Connection], bool] = runner.migrate
        try:
            async with self._writer.begin() as connection:
                if self._engine.dialect.name == "postgresql" and not await _take_the_lock(connection):
                    return await self._holder(connection)
                if not await connection.run_sync(migrate):
                    return False
                await _leave_word(connection)
                return True
        except DBAPIError as error:
            if is_locked(error):
                return "another process that writes to it, perhaps one that brings the schema up to date"
            if not is_lock_timeout(error):
                raise
        async with self._engine.connect() as connection:
            return await self._holder(connection)

    async def _holder(self, connection: AsyncConnection) -> str:
        row = (await connection.execute(_HOLDER)).one_or_none()
        if row is None:
            return "another process that was using it until just now"
        address = f" at {row.address}" if row.address else ""
        since = f", for {row.seconds:.0f} s" if row.seconds is not None else ""
        what = "which brings the schema up to date" if row.migrates else "whose transaction uses its tables"
        return f"{row.program or 'a program'}{address} (server process {row.pid}{since}), {what}"


async def _take_the_lock(connection: AsyncConnection) -> bool:
    # Of the transaction and not of the session: it goes with the process, and PgBouncer may pool transactions.
    for setting in _POSTGRESQL_SETTINGS:
        await connection.exec_driver_sql(setting)
    asked = text("SELECT pg_try_advisory_xact_lock(:key)").bindparams(key=MIGRATION_LOCK)
    return bool(await connection.scalar(asked))


async def _leave_word(connection: AsyncConnection) -> None:
    """Which programs can work with the schema as it is now, for those that do not know its revision. Beside the
    revision and not in a table of its own, which the programs before it would not have."""
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{_COMMENT}{OLDEST_PROGRAM}'")
    else:
        await connection.exec_driver_sql(f"PRAGMA user_version = {int(OLDEST_PROGRAM)}")
