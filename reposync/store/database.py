"""The connection to the database: SQLite in a file, or PostgreSQL. Everything above speaks to both in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import URL, ColumnElement, Connection, Table, bindparam, event, func, literal, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.clock import Clock
from reposync.store.addresses import PostgresqlAddress, SqliteAddress, parse_address
from reposync.store.database_clock import DatabaseClock
from reposync.store.failures import connection_failure, is_locked, translated
from reposync.store.migrations import HEAD
from reposync.store.pooling import check_idle_connections
from reposync.store.schema import WAIT_SECONDS, Schema, Upgrade, read_schema

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
LOCK_SECONDS = 10.0
# Fails like a write on a server that cannot be written to. An empty write would do so too, but wait for a migration's
# lock on its table.
PROBE = """
    DO $$ BEGIN
        IF current_setting('transaction_read_only') = 'on' THEN
            RAISE read_only_sql_transaction USING MESSAGE = 'cannot write in a read-only transaction';
        END IF;
    END $$"""
# What others may wait to hear of, as PostgreSQL's channels of LISTEN and NOTIFY.
QUEUE, REGISTRATIONS = "reposync_queue", "reposync_registrations"
POOL_SIZE = 8
POOL_OVERFLOW = 7
POOL_SECONDS = 30.0

SQLITE_PRAGMAS = ("foreign_keys=ON", "synchronous=NORMAL")
# A migration asks for the write lock again and again, and tells of it meanwhile.
_MIGRATION_LOCK_SECONDS = 1.0

# How long a writer's connection waits inside SQLite, and with it whoever is cancelled meanwhile.
_TRY_SECONDS = 0.02

_WRITES = "reposync_writes"


class Database:
    """One per process and event loop; give it back with `close`. Every method raises StoreUnavailable."""

    def __init__(
        self,
        engine: AsyncEngine,
        where: str,
        make_engine: Callable[[], AsyncEngine],
        lock_seconds: float = LOCK_SECONDS,
        writer: AsyncEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._make_engine = make_engine  # for a migration, which has other time-outs than everything else
        self._lock_seconds = lock_seconds
        self._turn = asyncio.Lock()
        self._writer = (writer or engine).execution_options(**{_WRITES: True})
        self._reader = engine
        self._announced: dict[AsyncConnection, set[str]] = {}
        self._hearers: list[Callable[[str], None]] = []
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self.connect: Callable[[], Awaitable[Any]] | None = None
        """Opens a connection of asyncpg beside the pool; None on SQLite."""
        self.where = where
        """Which database, in words for a person: no user, no password."""
        self.clock = DatabaseClock(clock or Clock(), self._ask_time if self.is_postgresql else None)

    @classmethod
    async def open(cls, url: str, *, lock_seconds: float = LOCK_SECONDS, clock: Clock | None = None) -> Database:
        """Connect. `url` is `sqlite:///path` or `postgresql://...` in libpq's form (sslmode and all). `lock_seconds` is
        how long to wait for another process that writes; `clock` is this machine's.

        Does not look at the schema: `upgrade` or `require_current` do. Raises ConfigError for a URL of another kind.
        """
        address = parse_address(url)
        if isinstance(address, SqliteAddress):
            return await _open_sqlite(address, lock_seconds, clock)
        return await _open_postgresql(address, lock_seconds, clock)

    async def close(self) -> None:
        """PostgreSQL's driver waits for the server to close each connection; what has not ended after 5 s is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._engine.dispose()
                await self._writer.dispose()
        for connection in list(self._connections):
            connection.terminate()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def read_alone(self) -> None:
        """No transaction around statements that only read: two exchanges fewer. Not for a pool between us and the
        server that gives each transaction another connection (PgBouncer), where a statement is prepared on one and
        executed on another."""
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    @asynccontextmanager
    async def read(self, *, streams: bool = False) -> AsyncGenerator[AsyncConnection, None]:
        """For statements that only read. On PostgreSQL each is a transaction of its own, as it would see what others
        committed before it in any case; `streams`: one around them, which a cursor needs."""
        with translated(self.where):
            async with (self._engine if streams else self._reader).connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction, committed on leaving. On SQLite it is the only writer from its start: a read that grew into a
        write would fail at once, whatever the busy time-out, if another process wrote in between."""
        announced: set[str] = set()
        with translated(self.where):
            async with self._turn_to_write(), self._begun() as connection:
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

    @asynccontextmanager
    async def _begun(self) -> AsyncGenerator[AsyncConnection, None]:
        """While SQLite waits for its lock, it has the driver's thread, and who is cancelled waits for its end. So it is
        asked to for a moment at a time, and the waiting is done here."""
        if self.is_postgresql:
            async with self._writer.begin() as connection:
                yield connection
            return
        now = asyncio.get_running_loop().time
        deadline = now() + self._lock_seconds
        async with self._writer.connect() as connection:
            while True:
                try:
                    await connection.begin()
                    break
                except DBAPIError as error:
                    if not is_locked(error) or now() > deadline:
                        raise
                await asyncio.sleep(random.uniform(0.001, 0.01))  # noqa: S311
            yield connection
            await connection.commit()

    async def ping(self) -> None:
        """Raises StoreUnavailable if the database does not answer, or answers and cannot be written to."""
        async with self.read() as connection:
            await connection.execute(text(PROBE if self.is_postgresql else "SELECT 1"))

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
            return literal(self.clock.now() + timedelta(seconds=after_seconds), UTCDateTime())
        now = func.statement_timestamp(type_=UTCDateTime())
        if not after_seconds:
            return now
        return now + bindparam(None, timedelta(seconds=after_seconds))

    async def _ask_time(self) -> datetime:
        async with self.read() as connection:
            return (await connection.execute(select(self.moment()))).scalar_one()

    def insert(self, table: Table) -> postgresql.Insert:
        """An INSERT that knows `ON CONFLICT`, which both databases write alike."""
        if self.is_postgresql:
            return postgresql.insert(table)
        return cast("postgresql.Insert", sqlite.insert(table))

    # Schema --------------------------------------------------------------------------------------------------------

    async def schema(self) -> Schema:
        with translated(self.where):
            return await read_schema(self._engine, self.where)

    async def current(self) -> str | None:
        """The revision of the schema; None where there is none yet."""
        return (await self.schema()).revision

    async def require_current(self) -> None:
        """Raises StoreUnavailable unless the schema is one that this version can work with."""
        (await self.schema()).require(self.where)

    async def upgrade(self, *, told: Callable[[str], None] | None = None, wait_seconds: float = WAIT_SECONDS) -> bool:
        """Bring the schema to this version's; tells whether there was something to do here. Any number of processes may
        call it at once: one of them changes the schema, the others wait for it, and `told` hears what they wait for
        (a warning in the log where it is None). One that a newer version made stays as it is."""
        schema = await self.schema()
        schema.refuse_incompatible(self.where)
        if schema.state == "ahead":
            log.info("the schema %s is newer than this version's %s, which can work with it", schema.revision, HEAD)
        if schema.state in ("current", "ahead"):
            return False
        engine = self._make_engine()
        with translated(self.where):
            try:
                writer = engine.execution_options(**{_WRITES: True})
                return await Upgrade(engine, writer, self.where, told or log.warning, wait_seconds).run()
            finally:
                await engine.dispose()


async def _open_sqlite(address: SqliteAddress, lock_seconds: float, clock: Clock | None) -> Database:
    with translated(address.where):
        await asyncio.to_thread(address.path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
    url = URL.create("sqlite+aiosqlite", database=str(address.path))

    def make_engine(timeout_seconds: float = _MIGRATION_LOCK_SECONDS, **options: Any) -> AsyncEngine:
        connect_args = {"timeout": timeout_seconds}
        engine = create_async_engine(url, hide_parameters=True, connect_args=connect_args, **options)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine

    engine = make_engine(lock_seconds, pool_size=POOL_SIZE, max_overflow=POOL_OVERFLOW, pool_timeout=POOL_SECONDS)
    writer = make_engine(_TRY_SECONDS, pool_size=1, max_overflow=POOL_OVERFLOW, pool_timeout=POOL_SECONDS)
    database = Database(engine, address.where, make_engine, lock_seconds, writer, clock)
    return await _checked(database, lambda engine: _turn_on_wal(engine, lock_seconds))


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


async def _open_postgresql(address: PostgresqlAddress, lock_seconds: float, clock: Clock | None) -> Database:
    # Imported where it is needed: SQLite needs no asyncpg.
    from reposync.store.connecting import STATEMENT_SECONDS, Connector, leave_read_only_servers

    connector = Connector(address, lock_seconds)

    def make_engine(statement_seconds: float | None, **options: Any) -> AsyncEngine:
        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: connector.connect(statement_seconds),
            connect_args={"prepared_statement_cache_size": address.statement_cache_size},
            hide_parameters=True,
            **options,
        )

    pool = {"pool_size": POOL_SIZE, "max_overflow": POOL_OVERFLOW, "pool_timeout": POOL_SECONDS}
    engine = make_engine(STATEMENT_SECONDS, **pool)
    check_idle_connections(engine)
    leave_read_only_servers(engine)
    database = Database(engine, address.where, lambda: make_engine(None, poolclass=NullPool), clock=clock)
    if address.statement_cache_size:
        database.read_alone()
    database.connect = connector.connect
    database._connections = connector.connections
    return await _checked(database, lambda _: database.clock.measure())


async def _checked(database: Database, check: Callable[[AsyncEngine], Awaitable[None]]) -> Database:
    """Fail here, with a clear message, and not at the first query."""
    try:
        with translated(database.where):
            await check(database._engine)
    except BaseException:
        await database.close()
        raise
    return database
