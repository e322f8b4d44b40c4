"""The connection to the database: SQLite in a file, or PostgreSQL. Everything above speaks to both in the same way."""

from __future__ import annotations

import asyncio
import importlib
import random
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import URL, ColumnElement, Connection, Table, bindparam, event, func, literal, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.errors import StoreUnavailable
from reposync.store.addresses import PostgresqlAddress, SqliteAddress, not_understood, parse_address
from reposync.store.failures import connection_failure, is_locked, is_missing_table, translated
from reposync.store.migrations import HEAD, REVISIONS

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 60.0
LOCK_SECONDS = 10.0
# By SET and not as start-up parameters, which PgBouncer refuses. A process that was frozen inside a transaction would
# hold its row locks for ever, and nobody could take its run over: hence the first one.
POSTGRESQL_SETTINGS = """
    SET idle_in_transaction_session_timeout = '15s';
    SET application_name = 'reposync'"""
# What others may wait to hear of, as PostgreSQL's channels of LISTEN and NOTIFY.
QUEUE, REGISTRATIONS = "reposync_queue", "reposync_registrations"
POOL_SIZE = 5
POOL_OVERFLOW = 10
POOL_SECONDS = 30.0

SQLITE_PRAGMAS = ("foreign_keys=ON", "synchronous=NORMAL")
# Any number that no other user of the same PostgreSQL database is likely to take: "reposync" in ASCII, halved.
MIGRATION_LOCK = 0x7265706F73796E63 >> 1

_WRITES = "reposync_writes"


class Database:
    """One per process and event loop; give it back with `close`. Every method raises StoreUnavailable."""

    def __init__(self, engine: AsyncEngine, where: str, lock_seconds: float = LOCK_SECONDS) -> None:
        self._engine = engine
        self._lock_seconds = lock_seconds
        self._turn = asyncio.Lock()
        self._writer = engine.execution_options(**{_WRITES: True})
        self._announced: dict[AsyncConnection, set[str]] = {}
        self._hearers: list[Callable[[str], None]] = []
        self.connect: Callable[[], Awaitable[Any]] | None = None
        """Opens a connection of asyncpg beside the pool; None on SQLite."""
        self.where = where
        """Which database, in words for a person: no user, no password."""

    @classmethod
    async def open(cls, url: str, *, lock_seconds: float = LOCK_SECONDS) -> Database:
        """Connect. `url` is `sqlite:///path` or `postgresql://...` in libpq's form (sslmode and all). `lock_seconds` is
        how long to wait for another process that writes.

        Does not look at the schema: `upgrade` or `require_current` do. Raises ConfigError for a URL of another kind.
        """
        address = parse_address(url)
        if isinstance(address, SqliteAddress):
            return await _open_sqlite(address, lock_seconds)
        return await _open_postgresql(address, lock_seconds)

    async def close(self) -> None:
        await self._engine.dispose()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that only reads."""
        with translated(self.where):
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction, committed on leaving. On SQLite it is the only writer from its start: a read that grew into a
        write would fail at once, whatever the busy time-out, if another process wrote in between."""
        announced: set[str] = set()
        with translated(self.where):
            async with self._turn_to_write(), self._writer.begin() as connection:
                self._announced[connection] = announced
                try:
                    yield connection
                finally:
                    del self._announced[connection]
        for channel in announced:
            self.hear(channel)

    @asynccontextmanager
    async def _turn_to_write(self) -> AsyncGenerator[None, None]:
        """SQLite's writers ask for its lock again and again, and who asks at the right moment has it: in a crowd some
        ask in vain until they give up. Those of this process get it in the order in which they came."""
        if self.is_postgresql:
            yield
            return
        try:
            async with asyncio.timeout(self._lock_seconds):
                await self._turn.acquire()
        except TimeoutError as error:
            raise connection_failure(self.where, sqlite3.OperationalError("database is locked")) from error
        try:
            yield
        finally:
            self._turn.release()

    async def ping(self) -> None:
        """Raises StoreUnavailable where the database does not answer."""
        async with self.read() as connection:
            await connection.execute(text("SELECT 1"))

    async def announce(self, connection: AsyncConnection, channel: str) -> None:
        """Once this transaction is committed, wake whoever waits for news on the channel: in this process at once, and
        on PostgreSQL in every other one."""
        if self.is_postgresql and channel not in self._announced[connection]:
            await connection.execute(select(func.pg_notify(channel, "")))
        self._announced[connection].add(channel)

    def on_news(self, hearer: Callable[[str], None]) -> None:
        """`hearer` is called with the channel, on the event loop, when `hear` is."""
        self._hearers.append(hearer)

    def hear(self, channel: str) -> None:
        for hearer in self._hearers:
            hearer(channel)

    def moment(self, after_seconds: float = 0.0) -> ColumnElement[datetime]:
        """Now (or so many seconds later) by the one clock that all who share the database have: PostgreSQL's own. The
        users of an SQLite file are on one machine."""
        if not self.is_postgresql:
            return literal(datetime.now(UTC) + timedelta(seconds=after_seconds), UTCDateTime())
        now = func.statement_timestamp(type_=UTCDateTime())
        if not after_seconds:
            return now
        return now + bindparam(None, timedelta(seconds=after_seconds))

    def insert(self, table: Table) -> postgresql.Insert:
        """An INSERT that knows `ON CONFLICT`, which both databases write alike."""
        if self.is_postgresql:
            return postgresql.insert(table)
        return cast("postgresql.Insert", sqlite.insert(table))

    # Schema --------------------------------------------------------------------------------------------------------

    async def current(self) -> str | None:
        """The revision of the schema; None where there is none yet."""
        try:
            async with self._engine.connect() as connection:
                return cast("str | None", await connection.scalar(text("SELECT version_num FROM alembic_version")))
        except DBAPIError as error:
            if is_missing_table(error):
                return None
            raise connection_failure(self.where, error) from error

    async def require_current(self) -> None:
        """Raises StoreUnavailable unless the schema is the one that this version needs."""
        with translated(self.where):
            self._compare(await self.current())

    async def upgrade(self) -> bool:
        """Bring the schema to this version's; tells whether there was something to do. Any number of processes may call
        it at once: one of them changes the schema, the others wait for it."""
        with translated(self.where):
            current = await self.current()
            if current == HEAD:
                return False
            self._refuse_newer(current)
            runner = await asyncio.to_thread(importlib.import_module, "reposync.store.migrations.runner")
            migrate: Callable[[Connection], None] = runner.migrate
            async with self.write() as connection:
                if self.is_postgresql:
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
                await connection.run_sync(migrate)
            return True

    def _compare(self, current: str | None) -> None:
        if current == HEAD:
            return
        self._refuse_newer(current)
        found = f"has schema {current}" if current else "has no tables yet"
        raise StoreUnavailable(
            f"The database {self.where} {found}; this version needs schema {HEAD}.",
            remedy="Run `reposync db upgrade`.",
        )

    def _refuse_newer(self, current: str | None) -> None:
        if current is not None and current not in REVISIONS:
            raise StoreUnavailable(
                f"The database {self.where} has schema {current}, which is newer than this version's {HEAD}.",
                remedy="Use the version of reposync that made it, or a newer one.",
            )


async def _open_sqlite(address: SqliteAddress, lock_seconds: float) -> Database:
    with translated(address.where):
        await asyncio.to_thread(address.path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(address.path)),
        hide_parameters=True,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_SECONDS,
        connect_args={"timeout": lock_seconds},
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return await _checked(
        Database(engine, address.where, lock_seconds), lambda engine: _turn_on_wal(engine, lock_seconds)
    )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions late and not at all for DDL; `_begin_sqlite` does it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


async def _turn_on_wal(engine: AsyncEngine, lock_seconds: float) -> None:
    """Readers and the writer do not wait for each other. Kept by the file; the switch itself ignores the busy time-out,
    hence the loop: two processes may meet at a new file."""
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        if driver is None:  # pragma: no cover  (a connection that was just opened has one)
            return
        deadline = asyncio.get_running_loop().time() + lock_seconds
        while True:
            try:
                async with driver.execute("PRAGMA journal_mode") as cursor:
                    (mode,) = await cursor.fetchone()
                if mode != "wal":
                    await driver.execute("PRAGMA journal_mode=WAL")
                return
            except Exception as error:
                if not is_locked(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.005, 0.05))  # noqa: S311


async def _open_postgresql(address: PostgresqlAddress, lock_seconds: float) -> Database:
    import asyncpg

    async def connect() -> asyncpg.Connection:
        try:
            connection = await asyncpg.connect(
                address.dsn,
                timeout=CONNECT_SECONDS,
                command_timeout=STATEMENT_SECONDS,
                statement_cache_size=address.statement_cache_size,
            )
        except asyncpg.ClientConfigurationError as error:
            raise not_understood(str(error)) from None
        except ValueError:  # about a part of the address that is no number, and may be half of a password
            raise not_understood() from None
        try:
            await connection.execute(f"{POSTGRESQL_SETTINGS}; SET lock_timeout = {int(lock_seconds * 1000)}")
        except BaseException:
            connection.terminate()
            raise
        return connection

    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        connect_args={"prepared_statement_cache_size": address.statement_cache_size},
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_timeout=POOL_SECONDS,
    )
    database = Database(engine, address.where)
    database.connect = connect
    return await _checked(database, _ping)


async def _ping(engine: AsyncEngine) -> None:
    async with engine.connect():
        pass


async def _checked(database: Database, check: Callable[[AsyncEngine], Awaitable[None]]) -> Database:
    """Fail here, with a clear message, and not at the first query."""
    try:
        with translated(database.where):
            await check(database._engine)
    except BaseException:
        await database.close()
        raise
    return database
