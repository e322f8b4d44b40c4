"""The connection to the database: SQLite in a file, or PostgreSQL. Its users need not know which."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import ColumnElement, CursorResult, Executable, Row, Table, bindparam, func, literal, select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.dml import UpdateBase
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.clock import Clock, elapsed_seconds
from reposync.config.database_url import PostgresqlAddress, SqliteAddress, parse_address
from reposync.errors import StoreUnavailable
from reposync.store.database_clock import DatabaseClock
from reposync.store.database_errors import is_locked, translated
from reposync.store.limiting import StatementRefused, VisibleSets, limited_engine
from reposync.store.schema import WAIT_SECONDS, Schema, migrate_once, read_schema, upgrade_schema
from reposync.store.sqlite import LOCK_SECONDS, make_private, sqlite_engine, turn_on_wal
from reposync.supervision import in_thread, to_the_end
from reposync.visible import EVERYTHING, Visible

if TYPE_CHECKING:
    from sqlalchemy import Connection as SyncConnection
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
# The one that says whose rights in GitLab have changed.
RIGHTS = "reposync_rights"
# How long a writer's connection waits inside SQLite, which delays cancellation.
_TRY_SECONDS = 0.02
POOL: dict[str, Any] = {"pool_size": 8, "max_overflow": 7, "pool_timeout": 30.0}


class Connection:
    """What `Database.read` and `Database.write` yield. `sqlalchemy`: the connection below it."""

    def __init__(self, database: Database, sqlalchemy: AsyncConnection) -> None:
        self.sqlalchemy = sqlalchemy
        self._whole = database.whole
        self.moment = database.moment
        self._is_postgresql = database.is_postgresql
        self.is_announced = False
        self.changes_catalogue = False

    async def execute(self, query: Executable, values: Any = None) -> CursorResult[Any]:
        if isinstance(query, UpdateBase) and getattr(query.table, "name", "") == "repositories":
            self.changes_catalogue = True
        return await self._whole(self.sqlalchemy.execute(query, values))

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

    def __init__(self, address: SqliteAddress | PostgresqlAddress, lock_seconds: float, clock: Clock) -> None:
        self.connect: Callable[[], Awaitable[Any]] | None = None
        """Opens a connection of asyncpg outside the pool; None on SQLite."""
        self._connections: Iterable[Any] = ()
        self.visible = EVERYTHING
        self._visible_sets = VisibleSets()
        if isinstance(address, SqliteAddress):
            engine = partial(sqlite_engine, address.path)
            self._reader = engine(lock_seconds, **POOL)
            self._visible_sets.teach(self._reader)
            # Writers queue for one connection: under load some of those that poll never get SQLite's lock.
            self._writer = engine(_TRY_SECONDS, writes=True, pool_size=1, max_overflow=0, pool_timeout=lock_seconds)
            self._migrator = self._writer
            self._prober = engine(PING_LOCK_SECONDS, writes=True, poolclass=NullPool)
        else:
            from reposync.store.postgresql import Connector  # SQLite needs no asyncpg

            connector = Connector(address, lock_seconds)
            self._reader = self._writer = connector.engine(**POOL)
            if address.statement_cache_size:
                # Saves two exchanges for statements that only read. Not for a pool that gives each transaction a
                # different connection (PgBouncer): a statement would be prepared on one and executed on the other.
                self._reader = self._writer.execution_options(isolation_level="AUTOCOMMIT")
            self._prober = self._reader
            self._migrator = connector.engine(statement_seconds=None, poolclass=NullPool)
            self.connect, self._connections = connector.connect, connector.connections
        self._whole_reader = self._reader
        self._lock_seconds = lock_seconds
        self._commits = 0
        self.catalogue_changes = 0
        """Transactions of this process that wrote to the table of repositories."""
        self._subscribers: list[Callable[[], None]] = []
        self._hearers: list[Callable[[str], None]] = []
        self.where = address.where  # for people, without user and password
        self.clock = DatabaseClock(clock, self._ask_time if self.is_postgresql else None)

    @classmethod
    async def open(cls, url: str, *, lock_seconds: float = LOCK_SECONDS, clock: Clock | None = None) -> Database:
        """Connect, to fail here with a clear message and not at the first query. `url` is `sqlite:///path` or
        `postgresql://...` as libpq accepts it (with sslmode and so on). `lock_seconds`: how long to wait for a
        different process that writes; `clock` is this machine's.

        Does not check the schema: `upgrade` does. Raises ConfigError for any other URL.
        """
        address = parse_address(url)
        if isinstance(address, SqliteAddress):
            with translated(address.where):
                await in_thread(partial(make_private, address.path))
                await in_thread(partial(turn_on_wal, address.path, lock_seconds))
        database = cls(address, lock_seconds, clock or Clock())
        try:
            await database.clock.measure()
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """PostgreSQL's driver waits for the server to close each connection; after 5 s the rest is cut."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                for engine in (self._reader, self._writer):
                    await self.whole(engine.dispose())
        for connection in list(self._connections):
            connection.terminate()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def limited(self, visible: Visible) -> Database:
        """The same database, which shares the connections, as if nothing of other repositories were in it. It can only
        be read, and is not to be closed. Raises StatementRefused for everything else."""
        if visible.is_everything:
            return self
        view = copy.copy(self)
        view.visible = self.visible & visible
        view._reader = limited_engine(self._whole_reader, view.visible, self._visible_sets, view)
        return view

    @property
    def is_postgresql(self) -> bool:
        return self._writer.dialect.name == "postgresql"

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
    async def read(self) -> AsyncGenerator[Connection, None]:
        """For statements that only read. Each is a transaction of its own."""
        with translated(self.where):
            async with self._connected(self._reader) as connection:
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
    async def write(self, guard: Guard | None = None) -> AsyncGenerator[Connection, None]:
        """A transaction, committed at the end; `guard` is called at its beginning. On SQLite it has the write lock from
        then on."""
        if not self.visible.is_everything:
            raise StatementRefused("a limited database is not written to")
        with translated(self.where):
            async with self._connected(self._writer) as begun:
                await self._begin(begun)
                connection = Connection(self, begun)
                if guard is not None:
                    await guard(connection)
                yield connection
                await self.whole(begun.commit())
                self._commits += 1
                self.catalogue_changes += connection.changes_catalogue
        if connection.is_announced:
            self.notify()

    async def _begin(self, connection: AsyncConnection) -> None:
        """SQLite waits for its lock in the driver's thread, where a cancelled caller would have to wait too. So it
        waits only for a moment at a time, and the loop is here."""
        deadline = elapsed_seconds() + self._lock_seconds
        while True:
            try:
                await self.whole(connection.begin().start())
                return
            except DBAPIError as error:
                if self.is_postgresql or not is_locked(error) or elapsed_seconds() > deadline:
                    raise
            await asyncio.sleep(_TRY_SECONDS / 4)

    async def ping(self) -> None:
        """Raises StoreUnavailable if the database does not answer or cannot be written, on SQLite also if a writer has
        had its lock for PING_LOCK_SECONDS."""
        commits = self._commits
        try:
            with translated(self.where):
                async with self._connected(self._prober) as connection:
                    await self.whole(connection.run_sync(_probe))
        except StoreUnavailable:
            if self.is_postgresql or self._commits == commits:  # otherwise writers of this process had the lock
                raise

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """`subscriber` is called when there may be something to do for a worker, on the event loop."""
        self._subscribers.append(subscriber)

    def notify(self) -> None:
        for subscriber in self._subscribers:
            subscriber()

    def hear(self, hearer: Callable[[str], None]) -> None:
        """`hearer` is called with what `tell` tells in any process, and with an empty text if something may have been
        missed. On SQLite processes do not hear each other."""
        self._hearers.append(hearer)

    async def tell(self, text: str) -> None:
        """Tell a short text to those who `hear`, in this process at once."""
        self.heard(text)
        if self.is_postgresql:
            async with self.write() as connection:
                await connection.execute(select(func.pg_notify(RIGHTS, text)))

    def heard(self, text: str) -> None:
        for hearer in self._hearers:
            hearer(text)

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

    async def schema(self) -> Schema:
        async with self.read() as connection:
            return await self.whole(connection.sqlalchemy.run_sync(read_schema))

    async def upgrade(self, *, report: Callable[[str], None] | None = None, wait_seconds: float = WAIT_SECONDS) -> bool:
        """Upgrade the schema to this version's; returns whether this call changed it. Several processes may call it at
        once: one changes the schema, the others wait. `report` is called with what is waited for (by default a warning
        is logged). A schema of a newer version is unchanged."""
        schema = await self.schema()
        schema.require(self.where, complete=False)
        if schema.state in ("current", "ahead"):
            return False
        with translated(self.where):
            changed = await upgrade_schema(
                lambda: self.whole(migrate_once(self._migrator)), self.where, report or log.warning, wait_seconds
            )
        (await self.schema()).require(self.where)  # a newer version may have upgraded it meanwhile
        return changed


class Stored:
    """Queries over one database. Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:  # by the database's clock
        return self._database.clock.now()


def _probe(connection: SyncConnection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(PROBE))
        return
    # The smallest write: one page of the journal. Its value is unchanged.
    number = int(connection.scalar(text("PRAGMA user_version")) or 0)
    connection.execute(text(f"PRAGMA user_version = {number}"))
    connection.commit()
