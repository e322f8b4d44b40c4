"""How long a migration takes if the history is long, and how long other connections wait for it.

    python -m benchmarks.migrations [--runs 1000000]

Makes the schema of 0.2.0, fills `sync_runs`, and brings it to the newest one, on SQLite and on PostgreSQL
(the server of TEST_DATABASE_URL, or one of the tests' with its durability turned on). Beside it another connection
writes all the time, as a pod whose runs go on: its longest pause is what the pods notice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time

from sqlalchemy import text

from benchmarks.filling import address
from benchmarks.measure import machine
from reposync.store.database import Database
from reposync.store.schema import HEAD
from tests.fixtures.released_schemas import RELEASED, make_tables

NUMBERS = {
    "postgresql": "SELECT generate_series(1, :runs) AS n",
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :runs) "
    "SELECT n FROM numbers",
}
MOMENT = {
    "postgresql": "timestamptz '2026-01-01 00:00:00+00' + n * interval '7 seconds'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%S.000000', 1767225600 + n * 7, 'unixepoch')",
}
FILL = """
    INSERT INTO sync_runs (id, repository_id, repository, status, trigger, priority, scheduled_for, not_before,
        queued_at, started_at, completed_at, duration_seconds, attempt, max_attempts, worker, "full", approved,
        cancel_requested, commit_before, commit_after, files_processed, files_deleted, files_skipped, chunks_embedded,
        chunks_reused)
    SELECT 'run-' || n, 'repository-' || n % 1000, 'platform/service-' || n % 1000,
        CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END,
        CASE WHEN n % 10 = 0 THEN 'webhook' ELSE 'schedule' END, 10,
        {moment}, {moment}, {moment}, {moment}, {moment}, 1.5, 1, 3, 'pod-' || n % 5, FALSE, FALSE, FALSE,
        '2fd4e1c67a2d28fced849ee1bb76e7391b93eb12', '2fd4e1c67a2d28fced849ee1bb76e7391b93eb12', 0, 0, 0, 0, 0
    FROM ({numbers}) numbers"""


async def measure(url: str, kind: str, runs: int) -> None:
    async with await Database.open(url) as database:
        await fill(database, url, kind, runs)
        async with await Database.open(url, lock_seconds=600) as beside:
            pauses: list[float] = []
            writer = asyncio.create_task(write_all_the_time(beside, pauses))
            await asyncio.sleep(1)
            before, pauses[:] = max(pauses), []
            began = time.perf_counter()
            await database.upgrade()
            took = time.perf_counter() - began
            while not pauses:  # the write that waited for the upgrade counts
                await asyncio.sleep(0.01)
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
    print(
        f"{kind}: {RELEASED} -> {HEAD} with {runs:,} runs took {took:.1f} s; "
        f"the longest write beside it {max(pauses):.1f} s (before: {before:.2f} s)"
    )


async def fill(database: Database, url: str, kind: str, runs: int) -> None:
    engine = database._migrator
    if database.is_postgresql:
        async with engine.begin() as connection:
            await connection.execute(text("DROP SCHEMA public CASCADE"))
            await connection.execute(text("CREATE SCHEMA public"))
    await make_tables(url, RELEASED, is_postgresql=database.is_postgresql)
    async with engine.begin() as connection:
        await connection.execute(text(FILL.format(moment=MOMENT[kind], numbers=NUMBERS[kind])), {"runs": runs})
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("ANALYZE"))


async def write_all_the_time(database: Database, pauses: list[float]) -> None:
    while True:
        began = time.perf_counter()
        async with database.write() as connection:
            await connection.execute(text("UPDATE sync_runs SET lease_until = queued_at WHERE id = 'run-1'"))
        pauses.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    options = parser.parse_args()
    print(machine(), flush=True)
    for kind in options.database or ("sqlite", "postgresql"):
        with address(kind) as url:
            asyncio.run(measure(url, kind, options.runs))


if __name__ == "__main__":
    main()
