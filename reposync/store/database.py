"""The connection to the database: SQLite in a file, or PostgreSQL. Its users need not know which."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Executable, Row, Table, bindparam, func, literal, select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncResult, create_async_engine
from sqlalchemy.pool import NullPool
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.clock import Clock, elapsed_seconds
from reposync.config.database_url import PostgresqlAddress, SqliteAddress, parse_address
from reposync.errors import StoreUnavailable
from reposync.store.database_clock import DatabaseClock
from reposync.store.database_errors import translated
from reposync.store.schema import HEAD, WAIT_SECONDS, Schema, migrate_once, read_schema, upgrade_schema
from reposync.store.sqlite import LOCK_SECONDS, READS, WRITES, make_private, sqlite_engine, turn_on_wal, while_locked
from reposync.supervision import to_the_end

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_SECONDS = 5.0
CANCEL_SECONDS = 1.0
"""A cancelled caller waits for a connection, or for PostgreSQL's answer, for this long."""
PING_LOCK_SECONDS = 3.0
# Fails like a write on a read-only server. An empty write would as well, but it waits for a migration's table lock.
PROBE = """
    DO $$ BEGIN
        IF current_setting('transaction_read_only') = 'on' THEN
            RAISE read_only_sql_transaction USING MESSAGE = 'cannot write in a read-only transaction';
        END IF;
    END $$"""
# The channel of LISTEN and NOTIFY that says: a worker may have something to do.
QUEUE = "reposync_queue"
POOL = {"pool_size": 8, "max_overflow": 7, "pool_timeout": 30.0}

# How long a writer's connection waits inside SQLite, which delays cancellation.
_TRY_SECONDS = 0.02


class Connection:
    """What `Database.read` and `Database.write` yield. `sqlalchemy`: the connection below it."""

    def __init__(self, database: Database, sqlalchemy: AsyncConnection) -> None:
        self.sqlalchemy = sqlalchemy
        self._whole = database.whole
        self.moment = database.moment
        self._is_postgresql = database.is_postgresql
        self.is_announced = False

    async def execute(self, query: Executable, values: Any = None) -> CursorResult[Any]:
        return await self._whole(self.sqlalchemy.execute(query, values))

    async def pages(self, query: Executable, rows: int) -> AsyncGenerator[Sequence[Any], None]:
        """The result, so many rows at a time; of `Database.read(streams=True)`. To be closed (`aclosing`)."""
        opened: list[AsyncResult[Any]] = []

        async def open_cursor() -> None:
            opened.append(await self.sqlalchemy.stream(query))

        try:
            await self._whole(open_cursor())
            while page := await self._whole(opened[0].fetchmany(rows)):
                yield page
        finally:
            for result in opened:  # also if it was cancelled while the cursor was opened
                await self._whole(result.close())

    async def change(self, query: Executable, values: Any = None) -> int:
        """How many rows it affected."""
        return (await self.execute(query, values)).rowcount

    async def rows(self, query: Executable, values: Any = None) -> Sequence[Any]:
        return (await self.execute(query, values)).all()

    async def one(self, query: Executable) -> Row[Any]:
        return (await self.execute(query)).one()

    async def one_or_none(self, query: Executable) -> Row[Any] | None:
        return (await self.execute(query)).one_or_none()

    async def scalars(self, query: Executable) -> list[Any]:
        return [row[0] for row in await self.rows(query)]

    async def scalar(self, query: Executable) -> Any:
        """The first value; None if there is no row."""
        return next(iter(await self.scalars(query)), None)

    async def now(self) -> datetime:
        return cast(datetime, await self.scalar(select(self.moment())))

    async def announce(self) -> None:
        """After the commit of this transaction, tell the subscribers in this process and, on PostgreSQL, in all others
        that there may be something to do for a worker."""
        if self._is_postgresql and not self.is_announced:
            await self.execute(select(func.pg_notify(QUEUE, "")))
        self.is_announced = True


Guard = Callable[[Connection], Awaitable[None]]
"""Called at the beginning of a transaction, which it aborts by raising."""


class Database:
    """One per process and event loop; must be closed. Every method raises StoreUnavailable."""

    def __init__(
        self,
        engine: AsyncEngine,
        where: str,
        make_engine: Callable[[], AsyncEngine],
        lock_seconds: float = LOCK_SECONDS,
        writer: AsyncEngine | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._engine = self._reader = engine
        self._make_engine = make_engine  # for a migration, which has different timeouts
        self._lock_seconds = lock_seconds
        self._write_lock = asyncio.Lock()
        self._commits = 0
        self._writer = (writer or engine).execution_options(**{WRITES: True})
        self._subscribers: list[Callable[[], None]] = []
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self.connect: Callable[[], Awaitable[Any]] | None = None
        """Opens a connection of asyncpg outside the pool; None on SQLite."""
        self.where = where  # for people, without user and password
        self.clock = DatabaseClock(clock or Clock(), self._ask_time if self.is_postgresql else None)

    @classmethod
    async def open(cls, url: str, *, lock_seconds: float = LOCK_SECONDS, clock: Clock | None = None) -> Database:
        """Connect. `url` is `sqlite:///path` or `postgresql://...` as libpq accepts it (with sslmode and so on).
        `lock_seconds`: how long to wait for a different process that writes; `clock` is this machine's.

        Does not check the schema: `upgrade` does. Raises ConfigError for any other URL.
        """
        address = parse_address(url)
        if isinstance(address, SqliteAddress):
            return await _open_sqlite(address, lock_seconds, clock)
        return await _open_postgresql(address, lock_seconds, clock)

    async def close(self) -> None:
        """PostgreSQL's driver waits for the server to close each connection; after 5 s the rest is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for engine in (self._engine, self._writer):
                    await self.whole(engine.dispose())
        for connection in list(self._connections):
            connection.terminate()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_postgresql(self) -> bool:
        return self._engine.dialect.name == "postgresql"

    async def whole(self, step: Awaitable[T]) -> T:
        """Every call of SQLAlchemy goes through here: none is cancelled halfway. SQLite's driver cannot stop a
        statement, and the traceback of the cancellation would keep its cursor, and that the transaction with the lock
        of the file. On PostgreSQL a cancelled statement costs its connection, and the outcome of a cancelled commit is
        unknown; but its server may be silent, so the wait for it is short."""
        return await to_the_end(step, grace_seconds=CANCEL_SECONDS if self.is_postgresql else None)

    @asynccontextmanager
    async def _connected(self, engine: AsyncEngine) -> AsyncGenerator[AsyncConnection, None]:
        """A transaction that is not committed is rolled back."""
        connection = engine.connect()
        try:
            # Holds nothing yet, and all connections may be in use.
            await to_the_end(connection.start(), grace_seconds=CANCEL_SECONDS)
            yield connection
        finally:
            if connection.sync_connection is not None:  # otherwise there was no connection to be had
                await self.whole(connection.close())

    @asynccontextmanager
    async def read(self, *, streams: bool = False) -> AsyncGenerator[Connection, None]:
        """For statements that only read. Each is a transaction of its own; `streams`: one transaction, which `pages`
        needs."""
        with translated(self.where):
            async with self._connected(self._engine if streams else self._reader) as connection:
                yield Connection(self, connection)

    async def rows(self, query: Executable) -> Sequence[Any]:
        async with self.read() as connection:
            return await connection.rows(query)

    async def scalars(self, query: Executable) -> list[Any]:
        async with self.read() as connection:
            return await connection.scalars(query)

    async def scalar(self, query: Executable) -> Any:
        async with self.read() as connection:
            return await connection.scalar(query)

    async def change(self, query: Executable, values: Any = None, guard: Guard | None = None) -> int:
        """Execute one statement in a transaction of its own; how many rows it affected."""
        async with self.write(guard) as connection:
            return await connection.change(query, values)

    @asynccontextmanager
    async def write(
        self, guard: Guard | None = None, *, lock_seconds: float | None = None
    ) -> AsyncGenerator[Connection, None]:
        """A transaction, committed at the end; `guard` is called at its beginning. On SQLite it has the write lock from
        then on: a read that grows into a write fails at once, despite the busy timeout, if a different process wrote in
        between. `lock_seconds`: how long it waits for that lock."""
        with translated(self.where):
            async with self._begun(self._lock_seconds if lock_seconds is None else lock_seconds) as begun:
                connection = Connection(self, begun)
                if guard is not None:
                    await guard(connection)
                yield connection
        if connection.is_announced:
            self.notify()

    @asynccontextmanager
    async def _begun(self, lock_seconds: float) -> AsyncGenerator[AsyncConnection, None]:
        """SQLite waits for its lock in the driver's thread, where a cancelled caller would have to wait too. So it
        waits only for a moment at a time, and the loop is here. Writers of this process queue for `_write_lock`: under
        load some of those that poll never get SQLite's."""
        deadline = elapsed_seconds() + lock_seconds
        async with self._turn(lock_seconds), self._connected(self._writer) as connection:
            await while_locked(lambda: self.whole(connection.begin().start()), deadline)
            yield connection
            await self.whole(connection.commit())
            self._commits += 1

    @asynccontextmanager
    async def _turn(self, seconds: float) -> AsyncGenerator[None, None]:
        if self.is_postgresql:
            yield
            return
        try:
            async with asyncio.timeout(seconds):
                await self._write_lock.acquire()
        except TimeoutError as error:
            raise sqlite3.OperationalError("database is locked") from error
        try:
            yield
        finally:
            self._write_lock.release()

    async def ping(self) -> None:
        """Raises StoreUnavailable if the database does not answer or cannot be written, on SQLite also if a writer has
        had its lock for PING_LOCK_SECONDS."""
        if self.is_postgresql:
            async with self.read() as connection:
                await connection.execute(text(PROBE))
            return
        commits = self._commits
        try:
            async with self.write(lock_seconds=PING_LOCK_SECONDS) as connection:
                # The smallest write: one page of the journal. Its value is unchanged.
                number = int(await connection.scalar(text("PRAGMA user_version")))
                await connection.execute(text(f"PRAGMA user_version = {number}"))
        except StoreUnavailable:
            if self._commits == commits:  # otherwise writers of this process only had their turn before
                raise

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """`subscriber` is called when there may be something to do for a worker, on the event loop."""
        self._subscribers.append(subscriber)

    def notify(self) -> None:
        for subscriber in self._subscribers:
            subscriber()

    def moment(self, after_seconds: float = 0.0) -> ColumnElement[datetime]:
        """The database's time (plus so many seconds) in SQL: the one clock that all its users share."""
        if not self.is_postgresql:
            return literal(self.clock.now() + timedelta(seconds=after_seconds), UTCDateTime())
        now = func.statement_timestamp(type_=UTCDateTime())
        if not after_seconds:
            return now
        return now + bindparam(None, timedelta(seconds=after_seconds))

    async def _ask_time(self) -> datetime:
        async with self.read() as connection:
            return await connection.now()

    def insert(self, table: Table) -> postgresql.Insert:
        """An INSERT with `ON CONFLICT`, which has the same form in both databases."""
        if self.is_postgresql:
            from sqlalchemy.dialects import postgresql  # not needed with SQLite

            return postgresql.insert(table)
        return cast("postgresql.Insert", sqlite.insert(table))

    # Schema --------------------------------------------------------------------------------------------------------

    async def schema(self) -> Schema:
        with translated(self.where):
            return await self.whole(read_schema(self._engine))

    async def upgrade(self, *, report: Callable[[str], None] | None = None, wait_seconds: float = WAIT_SECONDS) -> bool:
        """Upgrade the schema to this version's; returns whether this call changed it. Several processes may call it at
        once: one changes the schema, the others wait. `report` is called with what is waited for (by default a warning
        is logged). A schema of a newer version is unchanged."""
        schema = await self.schema()
        schema.require(self.where, complete=False)
        if schema.state == "ahead":
            log.info("schema %s is newer than this version's %s, and compatible with it", schema.revision, HEAD)
        if schema.state in ("current", "ahead"):
            return False
        engine = self._make_engine()
        with translated(self.where):
            try:
                writer = engine.execution_options(**{WRITES: True})
                changed = await upgrade_schema(
                    lambda: self.whole(migrate_once(writer)), self.where, report or log.warning, wait_seconds
                )
            finally:
                await self.whole(engine.dispose())
        (await self.schema()).require(self.where)  # a newer version may have upgraded it meanwhile
        return changed


class Stored:
    """Queries over one database. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:  # by the database's clock
        return self._database.clock.now()


async def _open_sqlite(address: SqliteAddress, lock_seconds: float, clock: Clock | None) -> Database:
    with translated(address.where):
        await asyncio.to_thread(make_private, address.path)
    make_engine = partial(sqlite_engine, address.path)
    writer = make_engine(_TRY_SECONDS, **POOL | {"pool_size": 1})
    database = Database(make_engine(lock_seconds, **POOL), address.where, make_engine, lock_seconds, writer, clock)
    database._reader = database._engine.execution_options(**{READS: True})
    return await _checked(database, partial(_turn_on_wal, database, lock_seconds))


async def _turn_on_wal(database: Database, lock_seconds: float) -> None:
    """The switch ignores the busy timeout, hence the loop: two processes may open a new file at once."""
    deadline = elapsed_seconds() + lock_seconds
    async with database._connected(database._engine) as connection:
        await while_locked(lambda: database.whole(turn_on_wal(connection)), deadline)


async def _open_postgresql(address: PostgresqlAddress, lock_seconds: float, clock: Clock | None) -> Database:
    from reposync.store.postgresql import STATEMENT_SECONDS, Connector, watch_connections  # SQLite needs no asyncpg

    connector = Connector(address, lock_seconds)

    def make_engine(statement_seconds: float | None, **options: Any) -> AsyncEngine:
        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: connector.connect(statement_seconds),
            connect_args={"prepared_statement_cache_size": address.statement_cache_size},
            hide_parameters=True,
            **options,
        )

    engine = make_engine(STATEMENT_SECONDS, **POOL)
    watch_connections(engine)
    database = Database(engine, address.where, lambda: make_engine(None, poolclass=NullPool), clock=clock)
    if address.statement_cache_size:
        # Saves two exchanges for statements that only read. Not for a pool that gives each transaction a different
        # connection (PgBouncer): a statement would be prepared on one and executed on the other.
        database._reader = engine.execution_options(isolation_level="AUTOCOMMIT")
    database.connect = connector.connect
    database._connections = connector.connections
    return await _checked(database, database.clock.measure)


async def _checked(database: Database, check: Callable[[], Awaitable[None]]) -> Database:
    """Fail here, with a clear message, and not at the first query."""
    try:
        with translated(database.where):
            await check()
    except BaseException:
        await database.close()
        raise
    return database
