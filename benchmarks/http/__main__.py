"""How many requests for a sync one daemon answers, beside the design that waits for a lock before it answers.

    python -m benchmarks.http [--seconds 15] [--connections 16] [--repositories 20] [--files 200]
        [--embedding-seconds 0.25]

One process of `reposync serve`, which executes the syncs as well, with PostgreSQL (which writes durably), Redis, an
embedding server and a Qdrant server (the tests' own, in front of the real engine) on the same machine. Between the
requests files of the repositories change, so that there is something to sync; an embedding takes as long as the local
model needs for one chunk (0.26 s, see `benchmarks.local_model`), and 0 is no embedding at all. The clients are a
process of their own. The other design gets the same requests in the same run, and syncs that take as long as the
daemon's took (on average), but cost nothing.

Two loads: all clients ask for one repository, and for all of them. Every answer is held against the rows: see
`benchmarks.http.proofs`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import redis
from sqlalchemy import select
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.filling import address
from benchmarks.http.proofs import Commits, SyncRequest, read_journal, violations
from benchmarks.measure import machine, spread
from benchmarks.storm.pods import Pod, running
from reposync.store.database import Database
from reposync.store.run import Run
from reposync.store.status import WAITING, RunStatus
from reposync.store.tables import RUNS
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.repositories import GitRepository

NEVER = "0 3 29 2 *"
CHANGE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients saw; `cpu` is the share of one core that the server's process took."""

    requests: list[SyncRequest]
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return len(self.requests) / self.seconds

    def __str__(self) -> str:
        times = [(each.answered - each.sent) * 1_000 for each in self.requests]
        return f"{self.rate:8.1f} requests/s  {spread(times)}; {self.cpu:.0%} of a core"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--repositories", type=int, default=20)
    parser.add_argument("--files", type=int, default=200, help="in each repository")
    parser.add_argument("--embedding-seconds", type=float, default=0.25, help="0: nothing is embedded")
    options = parser.parse_args()
    print(f"{machine()}; load {psutil.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as name, address("postgresql") as url, RedisServer() as server:
        asyncio.run(compare(url, server.url, Path(name), options))


async def compare(url: str, redis_url: str, folder: Path, options: argparse.Namespace) -> None:
    projects = [
        Project(folder / f"repository-{number:02}.git", options.files) for number in range(options.repositories)
    ]
    entries = "".join(
        f'  - {{name: repository-{number:02}, path: "{project.repository.path}", schedule: "{NEVER}"}}\n'
        for number, project in enumerate(projects)
    )
    with SlowEmbeddings(dimension=384, instant=True) as embeddings, QdrantServer(folder / "qdrant") as qdrant:
        embedding = "{provider: none}"
        if options.embedding_seconds:
            embedding = f'{{provider: openai, url: "{embeddings.url}", model: "{embeddings.model}", dimensions: 384}}'
        (folder / "registry.yaml").write_text(f"embedding: {embedding}\nrepositories:\n{entries}")
        environment = {
            "REPOSYNC_DATABASE_URL": url,
            "REPOSYNC_REDIS_URL": redis_url,
            "REPOSYNC_QDRANT_URL": qdrant.url,
            "REPOSYNC_CONFIG": str(folder / "registry.yaml"),
        }
        with running(folder, environment) as pod:
            await measure(url, redis_url, folder, projects, pod, embeddings, options)


async def measure(
    url: str,
    redis_url: str,
    folder: Path,
    projects: list[Project],
    pod: Pod,
    embeddings: SlowEmbeddings,
    options: argparse.Namespace,
) -> None:
    await pod.ready()
    async with await Database.open(url) as database:
        await first_syncs(database, len(projects))
        embeddings.seconds = options.embedding_seconds
        for chosen in (projects[:1], projects):
            print(f"\n{options.connections} clients, repositories: {len(chosen)}", flush=True)
            ours, runs = await measured(database, pod, folder, chosen, options)
            took = statistics.fmean(run.duration_seconds or 0.0 for run in runs)
            wrong = violations(ours.requests, runs, [project.commits for project in chosen])
            print(f"  reposync            {ours}")
            print(f"    {len(ours.requests):,} requests, {len(runs):,} runs, {took * 1_000:.0f} ms each on average")
            print(f"    {len(wrong)} requests or runs that break what coalescing promises", *wrong[:5], flush=True)
            theirs = await asyncio.to_thread(waiting, redis_url, folder, took, len(chosen), options)
            print(f"  waits for the lock  {theirs}")
            print(f"  {ours.rate / theirs.rate:.1f} times the requests", flush=True)
    await pod.terminate(30)


class SlowEmbeddings(EmbeddingServer):
    """Takes `seconds` for every request, and nobody's CPU."""

    seconds = 0.0

    def app(self) -> ASGIApp:  # type: ignore[override]
        answers = super().app()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(self.seconds)
            await answers(scope, receive, send)

        return slow


class Project:
    """A repository that changes; `commits` as they came."""

    def __init__(self, path: Path, files: int) -> None:
        self.repository = GitRepository.create(path)
        self.commits = Commits()
        self.commit({f"file_{number}.py": source(number) for number in range(files)})

    def commit(self, files: dict[str, bytes]) -> None:
        self.commits.add(self.repository.commit(files))


def source(number: int) -> bytes:
    return f"def answer_{number}():\n    return {number}\n".encode()


@contextlib.asynccontextmanager
async def changing(projects: Sequence[Project]) -> AsyncIterator[None]:
    """A file changes five times a second, now here and now there."""
    over = asyncio.Event()

    async def change() -> None:
        dice = random.Random(1)
        for number in itertools.count(1_000):
            files = {f"file_{dice.randrange(50)}.py": source(number)}
            await asyncio.to_thread(dice.choice(projects).commit, files)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), CHANGE_SECONDS)
            if over.is_set():
                return

    async with asyncio.TaskGroup() as group:
        group.create_task(change())
        yield
        over.set()


async def measured(
    database: Database, pod: Pod, folder: Path, projects: Sequence[Project], options: argparse.Namespace
) -> tuple[Load, list[Run]]:
    before = {run.id for run in await rows(database)}
    life = pod.life
    async with changing(projects):
        load = await asyncio.to_thread(burden, life.address, life.process.pid, folder, len(projects), options)
    await settled(database)
    return load, [run for run in await rows(database) if run.id not in before]


def waiting(redis_url: str, folder: Path, seconds: float, repositories: int, options: argparse.Namespace) -> Load:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()  # locks that the last such server still held when it ended would stand for 30 minutes
    command = (sys.executable, "-m", "benchmarks.http.waiting", redis_url, str(seconds))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            return burden(f"http://127.0.0.1:{port}", server.pid, folder, repositories, options)
        finally:
            server.kill()


def burden(url: str, pid: int, folder: Path, repositories: int, options: argparse.Namespace) -> Load:
    """Let the clients ask for so many seconds."""
    journal = folder / f"{uuid.uuid4().hex}.journal"
    at = httpx.URL(url)
    paths = [f"/api/v1/repositories/repository-{number:02}/sync" for number in range(repositories)]
    process = psutil.Process(pid)
    before, began = process.cpu_times(), time.perf_counter()
    command = (sys.executable, "-m", "benchmarks.http.load", at.host, str(at.port))
    subprocess.run([*command, str(options.seconds), str(options.connections), str(journal), *paths], check=True)
    after, took = process.cpu_times(), time.perf_counter() - began
    requests = read_journal(journal)
    span = max(each.answered for each in requests) - min(each.sent for each in requests)
    return Load(requests, span, (after.user + after.system - before.user - before.system) / took)


async def rows(database: Database) -> list[Run]:
    async with database.read() as connection:
        return [Run.of(row) for row in (await connection.execute(select(RUNS))).all()]


async def first_syncs(database: Database, count: int) -> None:
    while sum(run.status is RunStatus.COMPLETED for run in await rows(database)) < count:
        await asyncio.sleep(0.1)


async def settled(database: Database) -> None:
    """Until nothing runs or waits."""
    while any(run.status in WAITING or run.status is RunStatus.RUNNING for run in await rows(database)):
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
