"""Connections of the pool are handed out at once; only one that lay idle for a while is asked whether it is alive.

SQLAlchemy's own `pool_pre_ping` asks each time, with three exchanges on asyncpg, and most of what the daemon says to
the database is one exchange.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine

TRUSTED_SECONDS = 5.0
"""A server that was stopped or killed closes its connections, which shows at once and without a question. Only where
it, or the network, fell silent does a connection look alive that is not."""

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
        if connection.driver_connection.is_closed():
            raise InvalidatePoolError("closed by the server")
        if time.monotonic() - since < TRUSTED_SECONDS:
            return
        try:
            pool.dialect.do_ping(connection)
        except pool.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError("no answer") from error

    event.listen(pool, "checkin", returned)
    event.listen(pool, "checkout", handed_out)
