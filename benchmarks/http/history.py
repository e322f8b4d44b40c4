"""How long `GET /api/v1/runs` takes if the history is long, for every combination of its filters; and the page of it.

    python -m benchmarks.http.history [--repositories 1000] [--history 1000000] [--rounds 20]
                                      [--only-pages]

One process of `reposync serve` that schedules and executes nothing, PostgreSQL (which writes durably) on the same
machine, one client on one connection, 50 runs a page. One repository has three eighths of all runs; triggers and states
are as uneven. Times are from the first byte sent to the last one received.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import asyncpg
import httpx
import psutil

from benchmarks.filling import EVERY, START, address, fill, name
from benchmarks.http.load import read
from benchmarks.measure import machine, percentile, spread
from benchmarks.storm.pods import running
from reposync.store.database import Database

# Every 16th run a click, every 16th a push, every 256th a command. And two repositories that are synced all the time:
# what hits many rows, and what hits few, are different paths through the indexes.
UNEVEN = """
    UPDATE sync_runs SET trigger = CASE
        WHEN id LIKE '_0%' THEN 'http' WHEN id LIKE '_1%' THEN 'webhook' WHEN id LIKE '_22%' THEN 'command'
        ELSE trigger END;
    UPDATE sync_runs SET scheduled_for = NULL, repository = $name,
        repository_id = (SELECT id FROM repositories WHERE name = $name)
        WHERE id >= $from AND id < $to
"""


@dataclass(frozen=True, slots=True)
class Times:
    question: str
    milliseconds: list[float]
    items: int

    @property
    def p95(self) -> float:
        return percentile(self.milliseconds, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repositories", type=int, default=1_000)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only-pages", action="store_true")
    options = parser.parse_args()
    print(f"{machine()}; load {psutil.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as folder, address("postgresql") as url:
        asyncio.run(measure(url, Path(folder), options))


async def measure(url: str, folder: Path, options: argparse.Namespace) -> None:
    async with await Database.open(url) as database:
        await database.upgrade()
    began = time.perf_counter()
    await fill(url, options.repositories, options.history)
    await make_uneven(url, options.repositories)
    print(f"{options.history:,} runs of {options.repositories:,} repositories", end="; ")
    print(f"filled in {time.perf_counter() - began:.0f} s", flush=True)
    (folder / "registry.yaml").write_text("embedding: {provider: none}\n")
    environment = {"REPOSYNC_DATABASE_URL": url, "REPOSYNC_CONFIG": str(folder / "registry.yaml")}
    with running(folder, environment, "--no-workers", "--no-scheduler") as pod:
        await pod.ready()
        at = httpx.URL(pod.life.address)
        reader, writer = await asyncio.open_connection(at.host, at.port)

        async def get(path: str) -> Any:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {at.host}:{at.port}\r\n\r\n".encode())
            status, answer = await read(reader)
            assert status == 200, (path, answer)
            return answer

        gc.collect()
        gc.freeze()  # what this process filled the database with is not to be looked through while it waits for answers
        if not options.only_pages:
            show([await timed(get, question, options.rounds) for question in list(await questions(get, options))])
        writer.close()
        async with httpx.AsyncClient(base_url=at, headers={"Accept": "text/html"}, timeout=60) as browser:
            await show_pages(browser, options)


async def make_uneven(url: str, repositories: int) -> None:
    server = await asyncpg.connect(url)
    try:
        triggers, _, large = UNEVEN.partition(";")
        await server.execute(triggers, timeout=600)
        for number, (low, high) in enumerate((("8", "e"), ("e", "f"))):
            values = {"$name": name(number), "$from": low, "$to": high}
            statement = large
            for key, value in values.items():
                statement = statement.replace(key, f"'{value}'")
            await server.execute(statement, timeout=600)
        await server.execute("VACUUM FULL ANALYZE", timeout=1200)
    finally:
        await server.close()


async def questions(get: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every combination of filters, with and without a page far behind the first one."""
    days = options.history / options.repositories * EVERY
    year = {"since": stamp(START - days / 2), "until": stamp(START - days / 2 + timedelta(days=1))}
    choices: list[list[dict[str, Any]]] = [
        [{}, {"repository": name(0)}, {"repository": name(1)}, {"repository": name(options.repositories - 1)}],
        [{}, {"status": "completed"}, {"status": "failed"}, {"status": "blocked"}, {"status": ["failed", "blocked"]}],
        [{}, {"trigger": "schedule"}, {"trigger": "webhook"}, {"trigger": "command"}],
        [{}, {"since": stamp(START - timedelta(days=1))}, {"until": stamp(START - days / 2)}, year],
    ]
    deep = await get("/api/v1/runs?" + urlencode({"until": stamp(START - days * 0.6), "limit": 1}))
    choices.append([{}, {"cursor": deep["next_cursor"]}])
    return ({key: value for part in parts for key, value in part.items()} for parts in itertools.product(*choices))


def stamp(moment: Any) -> str:
    return str(moment.isoformat())


async def timed(get: Any, question: dict[str, Any], rounds: int) -> Times:
    path = "/api/v1/runs?" + urlencode(question, doseq=True)
    items = len((await get(path))["items"])
    milliseconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        await get(path)
        milliseconds.append((time.perf_counter() - began) * 1_000)
    shown = ", ".join(f"{key} {value if key != 'cursor' else 'far back'}" for key, value in question.items())
    return Times(shown or "no filter", milliseconds, items)


def show(found: list[Times]) -> None:
    every = [each for times in found for each in times.milliseconds]
    slow = [times for times in found if times.p95 > 30]
    print(f"{len(found)} combinations, {len(every):,} requests: {spread(every)}")
    print(f"combinations with a p95 above 30 ms: {len(slow)}; the ten slowest:")
    for times in sorted(found, key=lambda times: times.p95, reverse=True)[:10]:
        middle = statistics.median(times.milliseconds)
        print(f"  p95 {times.p95:6.1f} ms, median {middle:6.1f} ms  {times.items:3} of {times.question}")


async def show_pages(browser: httpx.AsyncClient, options: argparse.Namespace) -> None:
    """The page of the history as it is opened, and narrowed as people do."""
    days = options.history / options.repositories * EVERY
    week = {"since": stamp(START - days / 2), "until": stamp(START - days / 2 + timedelta(days=7))}
    asked: dict[str, dict[str, Any]] = {
        "as it is opened": {},
        "also runs without a change": {"idle": "show"},
        "failed": {"status": "failed"},
        "of the repository with most runs": {"repository": name(0)},
        "a week": week,
        "the longest ones": {"order": "longest"},
        "charts of durations": {"chart": "duration"},
        "the repositories": {},
    }
    for shown, question in asked.items():
        path = "/" if shown == "the repositories" else f"/runs?{urlencode(question)}"
        (await browser.get(path)).raise_for_status()
        milliseconds = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            (await browser.get(path)).raise_for_status()
            milliseconds.append((time.perf_counter() - began) * 1_000)
        print(f"page, {shown}: {spread(milliseconds)}", flush=True)


if __name__ == "__main__":
    main()
