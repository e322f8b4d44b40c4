"""What the queue costs when the execution log is long: ticks, claims and pages of the history, on both databases.

    python -m benchmarks.queue [--repositories 1000] [--history 1000000] [--waiting 10000] [--database sqlite]

Everything is measured in this run, on this machine, which also runs the server (see `benchmarks.filling`).
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import asyncpg

from benchmarks.filling import EVERY, RUN, START, address, bulk, fill, name, waiting_runs
from benchmarks.measure import machine
from reposync.store.database import QUEUE, Database
from reposync.store.news import News
from reposync.store.repositories import repository_id
from reposync.store.run import RunFigures
from reposync.store.runs import Runs
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.ticks import Ticks

ROUNDS = 7


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
