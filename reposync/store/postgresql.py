"""Connections of asyncpg to the servers of a database URL, and hooks for SQLAlchemy's pool of them."""

from __future__ import annotations

import ssl
import time
import weakref
from collections import deque
from typing import Any

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine

from reposync.config.database_url import PostgresqlAddress, malformed_address
from reposync.store.database_errors import READ_ONLY, sqlstate

CONNECT_SECONDS = 10.0
# For each of several servers: a heartbeat times out after 5 s, and the next one should reach the next server.
CONNECT_SECONDS_OF_SEVERAL = 4.0
STATEMENT_SECONDS = 60.0
# By SET and not as start-up parameters, which PgBouncer refuses. A process that froze inside a transaction would hold
# its row locks for ever, and its run could not be taken over: hence the first one. Hours of runs are cut in the
# session's time zone, whatever the user, the database or PGTZ has.
POSTGRESQL_SETTINGS = """
    SET idle_in_transaction_session_timeout = '15s';
    SET TimeZone = 'UTC';
    SET application_name = 'reposync'"""

TRUSTED_SECONDS = 5.0
"""An idle connection is not checked for this long."""
_IDLE_SINCE = "reposync_idle_since"


class Connector:
    """Tries one server after the other, beginning with the last usable one. asyncpg does that within one timeout for
    all servers, and would never reach those behind a silent one."""

    def __init__(self, address: PostgresqlAddress, lock_seconds: float) -> None:
        self.connections: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()
        """Those that were opened and are still referenced."""
        self._servers = deque(address.servers)
        self._cache_size = address.statement_cache_size
        self._settings = f"{POSTGRESQL_SETTINGS}; SET lock_timeout = {int(lock_seconds * 1000)}"
        self._connect_seconds = CONNECT_SECONDS if len(self._servers) == 1 else CONNECT_SECONDS_OF_SEVERAL

    async def connect(self, statement_seconds: float | None = STATEMENT_SECONDS) -> asyncpg.Connection:
        """Raises ConfigError for an address that asyncpg cannot parse, ReadOnlySQLTransactionError if servers answer
        but none is writable, and what asyncpg raises."""
        is_read_only = False
        for remaining in range(len(self._servers), 0, -1):
            server = self._servers[0]
            try:
                return await self._open(server, statement_seconds)
            except TargetServerAttributeNotMatched:
                is_read_only = True
                self._skip(server)
            except (OSError, asyncpg.PostgresError):
                self._skip(server)
                if remaining == 1 and not is_read_only:
                    raise
            except BaseException:  # cancelled by a caller that stopped waiting: the next caller tries the next server
                self._skip(server)
                raise
        raise asyncpg.ReadOnlySQLTransactionError("no server is writable")

    def _skip(self, server: str) -> None:
        if self._servers[0] == server:  # otherwise a concurrent connection attempt did so
            self._servers.rotate(-1)

    async def _open(self, server: str, statement_seconds: float | None) -> asyncpg.Connection:
        try:
            connection = await asyncpg.connect(
                server,
                timeout=self._connect_seconds,
                command_timeout=statement_seconds,
                statement_cache_size=self._cache_size,
            )
        except ClientConfigurationError as error:
            raise malformed_address(str(error)) from None
        except ssl.SSLError:  # one about a certificate is a ValueError, too
            raise
        except ValueError:  # about a part of the address that is no number, and may be a part of the password
            raise malformed_address() from None
        try:
            await connection.execute(self._settings)
        except BaseException:
            connection.terminate()
            raise
        self.connections.add(connection)
        return connection


def watch_connections(engine: AsyncEngine) -> None:
    """Treat a server that refuses to write as disconnected, so that the pool drops its connections: they would survive
    a demotion without a restart, and never reach the promoted server. And ping connections that were idle for a while;
    one that is found dead invalidates all idle ones, and is replaced. SQLAlchemy's `pool_pre_ping` pings each time,
    with three exchanges on asyncpg, and most work of the daemon is one exchange."""
    pool = engine.sync_engine

    def failed(context: ExceptionContext) -> None:
        if context.original_exception is not None and sqlstate(context.original_exception) == READ_ONLY:
            context.is_disconnect = True

    def returned(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def handed_out(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.pop(_IDLE_SINCE, float("inf"))
        if time.monotonic() - idle_since < TRUSTED_SECONDS and not connection.driver_connection.is_closed():
            return
        try:
            pool.dialect.do_ping(connection)
        except pool.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError("no answer") from error

    event.listen(pool, "handle_error", failed)
    event.listen(pool, "checkin", returned)
    event.listen(pool, "checkout", handed_out)
