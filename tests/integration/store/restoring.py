"""A process of its own that keeps a copy of all rows of a database, and restores them for each line that it reads."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable

import asyncpg

from reposync.config.database_url import SqliteAddress, parse_address
from reposync.store.indexes import SCHEMA

# Nobody holds a lock for so long, unless it is never released.
LOCK_SECONDS = 10.0

TABLES = [table.name for table in SCHEMA.sorted_tables]
RESTORE = [f"DELETE FROM {name}" for name in reversed(TABLES)] + [
    f"INSERT INTO {name} SELECT * FROM copy_of_{name}" for name in TABLES
]


def on_sqlite(address: SqliteAddress) -> Callable[[], Awaitable[None]]:
    connection = sqlite3.connect(address.path, timeout=LOCK_SECONDS, isolation_level=None)
    for name in TABLES:
        connection.execute(f"CREATE TEMPORARY TABLE copy_of_{name} AS SELECT * FROM {name}")

    async def restore() -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in RESTORE:
            connection.execute(statement)
        connection.execute("COMMIT")

    return restore


async def on_postgresql(url: str) -> Callable[[], Awaitable[None]]:
    connection = await asyncpg.connect(url)
    await connection.execute(f"SET lock_timeout = '{LOCK_SECONDS:g}s'")
    for name in TABLES:
        await connection.execute(f"CREATE TEMPORARY TABLE copy_of_{name} AS SELECT * FROM {name}")
    locked = f"LOCK TABLE {', '.join(TABLES)} IN EXCLUSIVE MODE"

    async def restore() -> None:
        await connection.execute(";".join(["BEGIN", locked, *RESTORE, "COMMIT"]))

    return restore


async def main(url: str) -> None:
    address = parse_address(url)
    restore = on_sqlite(address) if isinstance(address, SqliteAddress) else await on_postgresql(url)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            await restore()
        except (sqlite3.Error, asyncpg.PostgresError) as error:
            print(error, flush=True)
        else:
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
