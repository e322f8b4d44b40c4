"""Several daemons on one PostgreSQL, one Redis-compatible server and one Qdrant: the promises for a cluster."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reposync.runs.locks import LOCK_PREFIX
from reposync.store.repository import repository_id
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, stored_points, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.tcp_proxy import TcpProxy

pytestmark = pytest.mark.full

FILES = 1_500
# Three batches of the pipeline: one is stored, one waits, one is embedded.
ON_ITS_WAY = 600


class Cluster:
    """Starts pods that share everything but their folders."""

    def __init__(self, folder: Path, database_url: str, qdrant_url: str, embeddings: EmbeddingServer) -> None:
        self.folder = folder
        self.log = ExecutionLog(database_url)
        self.environment = {"REPOSYNC_DATABASE_URL": database_url, "REPOSYNC_QDRANT_URL": qdrant_url}
        self.embeddings = embeddings
        self._stack = ExitStack()

    def configures(self, *repositories: str, daemon: str = "") -> None:
        entries = "".join(f"  - {{{each}}}\n" for each in repositories)
        text = f"{self.embeddings.registry}daemon: {{{daemon}}}\nrepositories:\n{entries}"
        temporary = self.folder / "next.yaml"
        temporary.write_text(text)
        temporary.rename(self.folder / "repositories.yaml")

    def pod(self, name: str, *options: str, **environment: str) -> Pod:
        shared = {"REPOSYNC_CONFIG": str(self.folder / "repositories.yaml"), **self.environment}
        return self._stack.enter_context(Pod(name, self.folder / name, {**shared, **environment}, options))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def cluster(
    tmp_path: Path, postgresql: PostgresqlDatabases, embeddings: EmbeddingServer
) -> Generator[Cluster, None, None]:
    with QdrantServer(tmp_path / "qdrant") as qdrant:
        cluster = Cluster(tmp_path, postgresql.upgraded(), qdrant.url, embeddings)
        try:
            yield cluster
        finally:
            cluster.close()


def app(repository: GitRepository, schedule: str = "yearly") -> str:
    return f"name: app, path: '{repository.path}', schedule: {schedule}"


def in_the_middle(cluster: Cluster) -> None:
    """The first sync of a large repository has stored some files, and has more to do."""
    until(lambda: len(cluster.embeddings.inputs) > ON_ITS_WAY)


def test_a_pod_that_is_killed_is_replaced_by_another_which_goes_on_from_there(
    cluster: Cluster, repository: GitRepository
):
    repository.many(FILES)
    cluster.configures(app(repository))
    first = cluster.pod("first")
    in_the_middle(cluster)
    with cluster.embeddings.holding():
        second = cluster.pod("second")
        first.kill()
    (run,) = until(lambda: cluster.log.ended("app"), details=second.log_tail)

    attempts = cluster.log.attempts(run)
    assert [(each.outcome, each.worker.split(":")[0]) for each in attempts] == [
        ("lost", "first"),
        ("completed", "second"),
    ]
    assert second.metric("reposync_runs_total", status="lost", trigger="schedule") == 1
    # It lay there for no longer than a lease of 15 s, a poll, and the time that the second pod took to look.
    assert (attempts[1].started_at - attempts[0].started_at).total_seconds() < 60
    # What the first one had stored was not embedded again, but for what was on its way.
    assert len(cluster.embeddings.inputs) <= FILES + ON_ITS_WAY
    assert attempts[1].files_processed < FILES
    assert {point["path"] for point in stored_points(cluster.environment["REPOSYNC_QDRANT_URL"]).values()} == {
        row.path.decode() for row in repository.ls_tree()
    }


def test_a_pod_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes(cluster: Cluster, repository: GitRepository):
    repository.many(FILES)
    cluster.configures(app(repository), daemon="lease_seconds: 2")
    first = cluster.pod("first")
    in_the_middle(cluster)
    first.freeze()
    second = cluster.pod("second")
    (run,) = until(lambda: cluster.log.ended("app"), details=second.log_tail)
    points = stored_points(cluster.environment["REPOSYNC_QDRANT_URL"])
    repository.commit({"later.py": b"def later(): pass\n"})

    first.thaw()
    until(lambda: first.events("run lost"), details=first.log_tail)

    assert stored_points(cluster.environment["REPOSYNC_QDRANT_URL"]) == points
    assert [each.outcome for each in cluster.log.attempts(run)] == ["lost", "completed"]
    # It lives, and works again.
    until(lambda: first.health()["status"] == "ok", details=first.log_tail)


def test_ticks_of_three_pods_run_once_each(cluster: Cluster, repository: GitRepository):
    repository.commit({"a.py": b"x = 1\n"})
    cluster.configures(app(repository, "every second"))
    pods = [cluster.pod(name) for name in ("one", "two", "three")]
    until(lambda: len(cluster.log.ended("app")) >= 8, details=pods[0].log_tail)
    for pod in pods:
        assert pod.terminate() == 0

    runs = cluster.log.runs("app")
    ticks = [run.scheduled_for for run in runs if run.scheduled_for]
    assert len(ticks) == len(set(ticks))
    assert len(ticks) >= len(runs) - 1  # the very first run has no tick
    counted = sum(len(pod.events("run started")) for pod in pods)
    assert counted == len(runs) - len([run for run in runs if run.attempt == 0])


def test_a_database_that_goes_away_is_waited_for(
    cluster: Cluster, repository: GitRepository, postgresql: PostgresqlDatabases
):
    repository.commit({"a.py": b"x = 1\n"})
    cluster.configures(app(repository, "every second"))
    with TcpProxy(postgresql.server_url) as proxy:
        proxy.down()
        pod = cluster.pod("pod", REPOSYNC_DATABASE_URL=proxy.in_front_of(cluster.log.url))
        until(lambda: pod.health()["components"]["database"]["status"] == "down", details=pod.log_tail)
        assert pod.metric("reposync_build_info") == 1, "it waits for its database, and says so"
        proxy.up()
        until(lambda: len(cluster.log.ended("app")) > 1, details=pod.log_tail)

        proxy.down()
        until(lambda: pod.gets("/readyz").status_code == 503, details=pod.log_tail)
        assert pod.gets("/healthz").status_code == 200
        for waits in ("the queue waits for the database", "ticks wait for the database"):
            until(lambda waits=waits: pod.events(waits), details=pod.log_tail)
        proxy.up()
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        before = len(cluster.log.ended("app"))
        until(lambda: len(cluster.log.ended("app")) > before + 1, details=pod.log_tail)

        # It waited with patience: each part says so once, and once more where it learned another reason.
        until(lambda: pod.events("the queue has its database again"), details=pod.log_tail)
        assert len(pod.events("the queue waits for the database")) <= 3
        assert len(pod.events("ticks have their database again")) == 1
        assert pod.terminate() == 0
    ticks = [run.scheduled_for for run in cluster.log.runs("app") if run.scheduled_for]
    assert len(ticks) == len(set(ticks))


def test_a_sync_ends_before_a_lock_that_cannot_be_renewed_would(
    cluster: Cluster, repository: GitRepository, redis_server: RedisServer
):
    """A different installation shares this Redis, takes the repository's lock, and is respected."""
    repository.many(FILES)
    key = LOCK_PREFIX + repository_id("app")
    cluster.configures(app(repository), daemon="lock_watchdog_seconds: 0.2")
    cluster.environment["REPOSYNC_REDIS_URL"] = redis_server.url
    with cluster.embeddings.holding():
        pod = cluster.pod("pod")
        cluster.embeddings.wait_for_waiting(1)
        with redis_server.client() as client:
            until(lambda: client.get(key))
            client.set(key, "stranger:1:abc not-ours", px=60_000)
        until(lambda: [each for each in pod.events("run ") if each.get("code") == "LOCK_LOST"], details=pod.log_tail)
        with redis_server.client() as client:
            assert client.get(key) == "stranger:1:abc not-ours"
            client.delete(key)
    (run,) = until(lambda: cluster.log.ended("app"), details=pod.log_tail)
    attempts = cluster.log.attempts(run)
    assert attempts[0].error_code == "LOCK_LOST"
    assert attempts[-1].outcome == "completed"
    assert run.max_attempts - run.attempt == 2  # waiting for a lock uses up no attempt
    assert pod.metric("reposync_lock_losses_total", reason="taken") == 1
