"""What a daemon costs that has a thousand repositories, and how soon it begins a requested run.

    python -m benchmarks.daemon [--repositories 1000] [--seconds 120] [--requests 200] [--database sqlite]
        [--schedule "no tick" ...]

Real processes of `reposync serve`. Enqueue to start: runs of a small repository that has not changed, asked for one by
one from another process at random moments; the times are those of the runs' rows. A thousand repositories: a daemon
that schedules and executes nothing (`--no-workers`), on four schedules; what it queues is ended right away by this
program, so that every tick is a new row. CPU is that of the daemon alone, in percent of one core; memory is resident
(RSS) and proportional (PSS). PostgreSQL writes durably, and its own work is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from sqlalchemy import update

from benchmarks.filling import address
from benchmarks.measure import machine, spread
from benchmarks.storm.pods import Pod, running
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.run import Ask
from reposync.store.runs import Runs
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.tables import RUNS, is_active, status_is
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

# The first is what nothing but waiting costs. Cron spread over five minutes, then all of them at one moment.
SCHEDULES = {
    "no tick": "0 3 29 2 *",
    "each every 5 minutes, spread": "{minute}-59/5 * * * *",
    "all every 5 minutes, at once": "*/5 * * * *",
    "all every 30 seconds, at once": "every 30 seconds",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each schedule (five minutes if it needs them)")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append", help="only this one; may be repeated")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    options = parser.parse_args()
    print(f"{machine()}; load {psutil.getloadavg()[0]:.1f} before", flush=True)
    for kind in options.database or ("postgresql", "sqlite"):
        print(f"\n{kind}", flush=True)
        with tempfile.TemporaryDirectory() as name, address(kind) as url:
            asyncio.run(enqueue_to_start(url, Path(name), options.requests))
        with tempfile.TemporaryDirectory() as name, address(kind) as url:
            asyncio.run(many_repositories(url, Path(name), options))


# Enqueue to start ----------------------------------------------------------------------------------------------------


async def enqueue_to_start(url: str, folder: Path, requests: int) -> None:
    repository = GitRepository.create(folder / "small.git")
    repository.commit({f"file_{number}.py": b"def answer():\n    return 42\n" for number in range(5)})
    text = "embedding: {provider: none}\nrepositories:\n"
    configure(folder, text + f'  - {{name: small, path: "{repository.path}", schedule: "{SCHEDULES["no tick"]}"}}\n')
    with (
        QdrantServer(folder / "qdrant") as qdrant,
        running(folder, environment(folder, url, REPOSYNC_QDRANT_URL=qdrant.url)) as pod,
    ):
        await pod.ready()
        async with await Database.open(url) as database:
            runs, history = Runs(database), RunHistory(database)
            first, _ = await runs.enqueue("small", Ask(RunTrigger.COMMAND))  # or the one that the daemon itself queued
            await ended(history, first.id)
            dice = random.Random(1)
            waited, lasted = [], []
            for _ in range(requests):
                # Not in step with the daemon's own polling.
                await asyncio.sleep(dice.uniform(0.05, 0.5))
                run = await ended(history, await ask(runs))
                assert run.started_at is not None
                waited.append((run.started_at - run.queued_at).total_seconds() * 1_000)
                lasted.append((run.duration_seconds or 0.0) * 1_000)
    show("enqueue to start", spread(waited))
    show("a run with no change", spread(lasted))


async def ask(runs: Runs) -> str:
    run, new = await runs.enqueue("small", Ask(RunTrigger.COMMAND))
    assert new
    return run.id


async def ended(history: RunHistory, run_id: str):  # type: ignore[no-untyped-def]
    while (run := await history.get(run_id)).status not in FINAL:
        await asyncio.sleep(0.02)
    assert run.status is RunStatus.COMPLETED, run.error_message
    return run


# A thousand repositories ---------------------------------------------------------------------------------------------


async def many_repositories(url: str, folder: Path, options: argparse.Namespace) -> None:
    count, seconds = options.repositories, options.seconds
    for number, what in enumerate(options.schedule or SCHEDULES):
        schedule = SCHEDULES[what]
        configure(folder, registry(count, schedule))
        async with await Database.open(url) as database, ending(database):
            began = time.perf_counter()
            with running(folder, environment(folder, url), "--no-workers") as pod:
                await pod.ready()
                started = time.perf_counter() - began
                await settled(database, pod)
                if number == 0:
                    show(f"start with {count} new repositories", f"{started:.1f} s")
                await measure(pod, what, max(seconds, 305.0) if "5 minutes, at once" in what else seconds)
                await pod.terminate(30)
            if number == 0:
                began = time.perf_counter()
                with running(folder, environment(folder, url), "--no-workers") as pod:
                    await pod.ready()
                    show(f"start with {count} known repositories", f"{time.perf_counter() - began:.1f} s")


async def measure(pod: Pod, what: str, seconds: float) -> None:
    process = psutil.Process(pod.life.process.pid)
    async with httpx.AsyncClient(timeout=30) as client:
        await pod.scrape(client)
        queued, cpu, began = await ticks(client, pod), process.cpu_times(), time.perf_counter()
        resident = proportional = 0
        while time.perf_counter() - began < seconds:
            await asyncio.sleep(1)
            memory = process.memory_full_info()
            resident, proportional = max(resident, memory.rss), max(proportional, memory.pss)
        took, now = time.perf_counter() - began, process.cpu_times()
        await pod.scrape(client)
        queued = await ticks(client, pod) - queued
    busy = now.user + now.system - cpu.user - cpu.system
    worst = max((bound for bound, number in pod.lag.items() if number), default=0.0)
    show(
        what,
        f"{queued:>6.0f} ticks in {took:.0f} s, {100 * busy / took:5.2f}% of a core, "
        f"{resident / 1e6:.0f} MB RSS, {proportional / 1e6:.0f} MB PSS, event loop late by up to {worst * 1000:g} ms",
    )


async def ticks(client: httpx.AsyncClient, pod: Pod) -> float:
    lines = (await client.get(f"{pod.life.address}/metrics")).text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("reposync_ticks_total"))


async def settled(database: Database, pod: Pod) -> None:
    """Until its first work is done: it has loaded the schedules, and hardly uses the processor any more."""
    process = psutil.Process(pod.life.process.pid)
    while True:
        before = process.cpu_times()
        await asyncio.sleep(3)
        now = process.cpu_times()
        if now.user + now.system - before.user - before.system < 0.3:
            return


@contextlib.asynccontextmanager
async def ending(database: Database) -> AsyncIterator[None]:
    """In the place of workers: what waits is over a second later."""
    over = update(RUNS).where(is_active(), status_is(*WAITING)).values(status=RunStatus.COMPLETED, attempt=1)

    async def end_all() -> None:
        while True:
            await asyncio.sleep(1)
            async with database.write() as connection:
                await connection.execute(over)

    task = asyncio.create_task(end_all())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def registry(count: int, schedule: str) -> str:
    entries = (
        f"  - {{name: repository-{number:04}, git: 'https://git.example.com/{number}.git', "
        f"schedule: '{schedule.format(minute=number % 5)}'}}\n"
        for number in range(count)
    )
    return "embedding: {provider: none}\nrepositories:\n" + "".join(entries)


# -----------------------------------------------------------------------------------------------------------------


def configure(folder: Path, text: str) -> None:
    (folder / "repositories.yaml").write_text(text)


def environment(folder: Path, url: str, **more: str) -> dict[str, str]:
    return {"REPOSYNC_CONFIG": str(folder / "repositories.yaml"), "REPOSYNC_DATABASE_URL": url, **more}


def show(what: str, value: str) -> None:
    print(f"  {what:<36} {value}", flush=True)


if __name__ == "__main__":
    main()
