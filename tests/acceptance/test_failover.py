"""A primary that is demoted, and a standby that is promoted, under daemons that run: nobody has to start them again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.acceptance.test_many_pods import Cluster, app
from tests.fixtures.databases import REPLICATED, PostgresqlServer, started_postgresql
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

RELOAD = "SELECT pg_reload_conf()"


@pytest.fixture
def primary() -> Generator[PostgresqlServer, None, None]:
    with started_postgresql(REPLICATED) as server:
        yield server


@pytest.fixture
def clusters(tmp_path: Path, embeddings: EmbeddingServer) -> Generator[Callable[[str], Cluster], None, None]:
    """Of pods with this address of their database, all with the same registry file and index."""
    made: list[Cluster] = []
    with QdrantServer(tmp_path / "qdrant") as qdrant:

        def make(url: str) -> Cluster:
            made.append(Cluster(tmp_path, url, qdrant.url, embeddings))
            return made[-1]

        try:
            yield make
        finally:
            for each in made:
                each.close()


def database(pod: Pod) -> str:
    """What /readyz says of it: its reason, or that it is ok."""
    answer = pod.gets("/readyz")
    component = answer.json()["components"]["database"]
    assert (answer.status_code == 503) is (component["status"] in ("starting", "down"))
    return str(component["reason"] or component["status"])


def waits(pod: Pod) -> None:
    until(lambda: "it is read-only (a standby" in database(pod), details=pod.log_tail)
    assert pod.gets("/healthz").status_code == 200


def syncs(pod: Pod, cluster: Cluster) -> None:
    """It is well again, and more runs than before are completed."""
    until(lambda: database(pod) == "ok", details=pod.log_tail)
    before = len(cluster.log.ended("app"))
    until(lambda: len(cluster.log.ended("app")) > before + 1, details=pod.log_tail)


def each_tick_ran_once(cluster: Cluster) -> None:
    ticks = [run.scheduled_for for run in cluster.log.runs("app") if run.scheduled_for]
    assert len(ticks) == len(set(ticks))


def ended_well(*pods: Pod) -> None:
    for pod in pods:
        assert pod.terminate() == 0
        assert "[SQL" not in "".join(pod.text)
        assert "Traceback" not in "".join(pod.text)


def test_daemons_go_on_at_the_standby_once_it_is_promoted(
    clusters: Callable[[str], Cluster], primary: PostgresqlServer, repository: GitRepository
):
    repository.commit({"a.py": b"x = 1\n"})
    with started_postgresql(REPLICATED, standby_of=primary) as standby:
        hosts = f"host={primary.home},{standby.home}&target_session_attrs=read-write"
        before, after = clusters(primary.url), clusters(standby.url)
        after.configures(app(repository, "every second"))
        both = after.pod("both", REPOSYNC_DATABASE_URL=f"postgresql://postgres@/postgres?{hosts}")
        until(lambda: before.log.ended("app"), details=both.log_tail)
        # This one knows the standby alone, and came before its promotion.
        alone = after.pod("alone")
        waits(alone)

        primary.stop()
        waits(both)
        standby.executes("SELECT pg_promote()")

        syncs(both, after)
        syncs(alone, after)
        each_tick_ran_once(after)
        ended_well(both, alone)


def test_daemons_wait_while_their_database_is_read_only(
    clusters: Callable[[str], Cluster], primary: PostgresqlServer, repository: GitRepository
):
    """Also one that is started meanwhile."""
    repository.commit({"a.py": b"x = 1\n"})
    cluster = clusters(primary.url)
    cluster.configures(app(repository, "every second"))
    pod = cluster.pod("pod")
    until(lambda: cluster.log.ended("app"), details=pod.log_tail)

    primary.executes("ALTER SYSTEM SET default_transaction_read_only = on", RELOAD)
    waits(pod)
    late = cluster.pod("late")
    waits(late)
    primary.executes(
        "SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only", RELOAD
    )

    syncs(pod, cluster)
    syncs(late, cluster)
    each_tick_ran_once(cluster)
    ended_well(pod, late)
