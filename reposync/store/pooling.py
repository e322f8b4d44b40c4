"""Connections of the pool are handed out at once; only one that lay idle for a while is asked whether it is alive.

SQLAlchemy's own `pool_pre_ping` asks each time, with three exchanges on asyncpg, and most of what the daemon says to
the database is one exchange.
"""

from __future__ import annotations

import select
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine

TRUSTED_SECONDS = 5.0
"""A server that was stopped or killed closes its connections, which the socket shows without a question. Only where the
server, or the network, fell silent does a connection look alive that is not."""

_SINCE = "reposync_idle_since"


def check_idle_connections(engine: AsyncEngine) -> None:
    """For an engine of asyncpg. A connection that is found dead takes with it all that are idle, and is replaced."""
    pool = engine.sync_engine

    def returned(_connection: Any, record: Any) -> None:
        record.info[_SINCE] = time.monotonic()

    def handed_out(connection: Any, record: Any, _proxy: Any) -> None:
        since = record.info.pop(_SINCE, None)
        if since is None:  # it is new
            return
        if time.monotonic() - since < TRUSTED_SECONDS and _is_quiet(connection.driver_connection):
            return
        try:
            pool.dialect.do_ping(connection)
        except pool.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError("no answer") from error

    event.listen(pool, "checkin", returned)
    event.listen(pool, "checkout", handed_out)


def _is_quiet(connection: Any) -> bool:
    """Whether nothing came in on an idle connection of asyncpg. What could come is its end, above all."""
    if connection.is_closed():
        return False
    # asyncpg has no public way to its socket. That a connection is closed it learns from the event loop, which may not
    # have come to it yet.
    socket = connection._transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    news = select.poll()
    news.register(socket, select.POLLIN)
    return not news.poll(0)
