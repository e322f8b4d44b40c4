"""Connections of asyncpg to the servers of a database URL, and SQLAlchemy's engines of them."""

from __future__ import annotations

import ssl
import weakref
from collections import deque
from functools import partial
from typing import Any

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reposync.config.database_url import PostgresqlAddress, malformed_address
from reposync.store.database_errors import READ_ONLY, error_code

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


class Connector:
    """Tries one server after the other, beginning with the last usable one. asyncpg does that within one timeout for
    all servers, and would never reach those behind a silent one."""

    def __init__(self, address: PostgresqlAddress, lock_seconds: float) -> None:
        self.connections: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()
        """The connections that were opened and are still referenced."""
        self._servers = deque(address.servers)
        self._cache_size = address.statement_cache_size
        self._settings = f"{POSTGRESQL_SETTINGS}; SET lock_timeout = {int(lock_seconds * 1000)}"
        self._connect_seconds = CONNECT_SECONDS if len(self._servers) == 1 else CONNECT_SECONDS_OF_SEVERAL

    def engine(self, statement_seconds: float | None = STATEMENT_SECONDS, **options: Any) -> AsyncEngine:
        """SQLAlchemy's engine, with `options`, of connections whose statements may last for `statement_seconds`."""
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=partial(self.connect, statement_seconds),
            connect_args={"prepared_statement_cache_size": self._cache_size},
            hide_parameters=True,
            **options,
        )
        event.listen(engine.sync_engine, "handle_error", _give_up_read_only)
        event.listen(engine.sync_engine, "checkout", _replace_closed)
        return engine

    async def connect(self, statement_seconds: float | None = STATEMENT_SECONDS) -> asyncpg.Connection:
        """Raises ConfigError for an address that asyncpg cannot parse, ReadOnlySQLTransactionError if servers answer
        but none is writable, and what asyncpg raises."""
        is_read_only = False
        for remaining in reversed(range(len(self._servers))):
            try:
                return await self._open(self._servers[0], statement_seconds)
            except TargetServerAttributeNotMatched:
                is_read_only = True
            except (OSError, asyncpg.PostgresError):
                if remaining == 0 and not is_read_only:
                    raise
        raise asyncpg.ReadOnlySQLTransactionError("no server is writable")

    async def _open(self, server: str, statement_seconds: float | None) -> asyncpg.Connection:
        connection = None
        try:
            connection = await asyncpg.connect(
                server,
                timeout=self._connect_seconds,
                command_timeout=statement_seconds,
                statement_cache_size=self._cache_size,
            )
            await connection.execute(self._settings)
        except BaseException as error:  # also if it was cancelled: the next caller tries the next server
            if self._servers[0] == server:  # otherwise a concurrent connection attempt did so
                self._servers.rotate(-1)
            if connection is not None:
                connection.terminate()
            if isinstance(error, ClientConfigurationError):
                raise malformed_address(str(error)) from None
            # A part of the address that is no number, and may be a part of the password. Errors about certificates are
            # both.
            if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):
                raise malformed_address() from None
            raise
        self.connections.add(connection)
        return connection


def _give_up_read_only(context: ExceptionContext) -> None:
    """Treat a server that refuses to write as disconnected, so that the pool drops its connections: they would survive
    a demotion without a restart, and never reach the promoted server."""
    if context.original_exception is not None and error_code(context.original_exception) == READ_ONLY:
        context.is_disconnect = True


def _replace_closed(connection: Any, _record: Any, _proxy: Any) -> None:
    """A server that was restarted has closed its connections. asyncpg knows that without an exchange; SQLAlchemy's
    `pool_pre_ping` costs three, and most work of the daemon is one."""
    if connection.driver_connection.is_closed():
        raise InvalidatePoolError("the server closed it")
