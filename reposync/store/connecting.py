"""Connections of asyncpg to the servers that an address names, beside and below SQLAlchemy's pool."""

from __future__ import annotations

import ssl
import weakref
from collections import deque

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from reposync.store.addresses import PostgresqlAddress, not_understood
from reposync.store.failures import is_read_only

CONNECT_SECONDS = 10.0
# Each of several servers: a heartbeat gives up after 5 s, and the next one is to reach the next server.
CONNECT_SECONDS_OF_SEVERAL = 4.0
STATEMENT_SECONDS = 60.0
# By SET and not as start-up parameters, which PgBouncer refuses. A process that was frozen inside a transaction would
# hold its row locks for ever, and nobody could take its run over: hence the first one.
POSTGRESQL_SETTINGS = """
    SET idle_in_transaction_session_timeout = '15s';
    SET application_name = 'reposync'"""


class Connector:
    """Asks one server after the other, beginning with the one that could be used last. asyncpg does so within one
    time-out for all of them: behind a server that fell silent it would never come to the next."""

    def __init__(self, address: PostgresqlAddress, lock_seconds: float) -> None:
        self.connections: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()
        """Those that were opened and are still known to somebody."""
        self._servers = deque(address.servers)
        self._cache_size = address.statement_cache_size
        self._settings = f"{POSTGRESQL_SETTINGS}; SET lock_timeout = {int(lock_seconds * 1000)}"
        self._connect_seconds = CONNECT_SECONDS if len(self._servers) == 1 else CONNECT_SECONDS_OF_SEVERAL

    async def connect(self, statement_seconds: float | None = STATEMENT_SECONDS) -> asyncpg.Connection:
        """Raises ConfigError for an address that asyncpg does not understand, ReadOnlySQLTransactionError if servers
        answer and none can be written to, and what asyncpg raises."""
        read_only: TargetServerAttributeNotMatched | None = None
        for place in range(len(self._servers), 0, -1):
            server = self._servers[0]
            try:
                return await self._open(server, statement_seconds)
            except TargetServerAttributeNotMatched as error:
                read_only = error
                self._pass_over(server)
            except (OSError, asyncpg.PostgresError):
                self._pass_over(server)
                if place == 1 and read_only is None:
                    raise
            except BaseException:  # cancelled by a caller that did not wait for this server: the next one tries another
                self._pass_over(server)
                raise
        raise asyncpg.ReadOnlySQLTransactionError("no server can be written to") from read_only

    def _pass_over(self, server: str) -> None:
        if self._servers[0] == server:  # else a connection that was opened at the same time did so
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
            raise not_understood(str(error)) from None
        except ssl.SSLError:  # one about a certificate is a ValueError, too
            raise
        except ValueError:  # about a part of the address that is no number, and may be half of a password
            raise not_understood() from None
        try:
            await connection.execute(self._settings)
        except BaseException:
            connection.terminate()
            raise
        self.connections.add(connection)
        return connection


def leave_read_only_servers(engine: AsyncEngine) -> None:
    """A server that refuses to write counts as one that is gone, so that the pool gives up its connections. They would
    outlive a demotion without a restart, and never come to the server that was promoted."""

    def failed(context: ExceptionContext) -> None:
        if context.original_exception is not None and is_read_only(context.original_exception):
            context.is_disconnect = True

    event.listen(engine.sync_engine, "handle_error", failed)
