"""Who waits for SQLite's write lock is not held up by it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from reposync.config.database_url import sqlite_url
from reposync.store.database import Database

# Nobody waits for so long: what ends, ends for another reason.
FOR_EVER_SECONDS = 3_600.0
LIMIT_SECONDS = 120.0


async def _count(database: Database) -> int:
    async with database.read() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM notes")) or 0)


async def _note(database: Database, word: str, began: asyncio.Event | None = None) -> None:
    if began is not None:
        began.set()
    async with database.write() as connection:
        await connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})


async def test_a_write_that_waits_for_the_lock_ends_when_it_is_cancelled_while_somebody_still_holds_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "reposync.db"
    async with await Database.open(sqlite_url(file), lock_seconds=FOR_EVER_SECONDS) as database:
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE notes (word TEXT)"))
        other = sqlite3.connect(file, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            for round_trips in range(12):
                began = asyncio.Event()
                waiting = asyncio.create_task(_note(database, "never", began))
                behind = asyncio.create_task(_note(database, "neither"))
                await began.wait()
                # Wherever it is by then: at its first attempt, in SQLite, or between two of them.
                for _ in range(round_trips):
                    await _count(database)
                waiting.cancel()
                behind.cancel()
                async with asyncio.timeout(LIMIT_SECONDS):
                    results = await asyncio.gather(waiting, behind, return_exceptions=True)
                assert [type(each) for each in results] == [asyncio.CancelledError] * 2
                assert other.in_transaction
            later = asyncio.create_task(_note(database, "later"))
            await _count(database)
            other.execute("COMMIT")
            async with asyncio.timeout(LIMIT_SECONDS):
                await later
        finally:
            other.close()
        assert await _count(database) == 1


async def test_a_write_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with await Database.open(sqlite_url(tmp_path / "reposync.db")) as database:
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE notes (word TEXT)"))

        async def broken() -> None:
            async with database.write() as connection:
                await connection.execute(text("INSERT INTO notes VALUES ('half')"))
                raise LookupError

        with pytest.raises(LookupError):
            await broken()
        await _note(database, "whole")
        assert await _count(database) == 1
