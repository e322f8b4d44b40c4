"""This program and earlier releases: the first sync of an index of 0.1.0, and daemons of the release before beside
this one on one database and one index."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import VersionState
from tests.acceptance.conftest import Person
from tests.fixtures.databases import database_kind, empty_database_url  # noqa: F401
from tests.fixtures.earlier_versions import FIRST_RELEASE, RELEASE_BEFORE, earlier_version
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

pytestmark = pytest.mark.full

LONG = b"\n\n".join(b"def booking_%d(amount):\n    return ledger.book(amount, %d)" % (n, n) for n in range(40))
FILES = {"ledger.py": LONG, "docs/guide.md": b"# Guide\n", "logo.png": b"\x89PNG\r\n\x1a\n\x00", "empty.py": b""}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_version(RELEASE_BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def qdrant_server() -> Generator[QdrantServer, None, None]:
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server


async def test_the_first_sync_after_the_upgrade_from_0_1_reads_no_blob_and_embeds_nothing(
    tmp_path: Path,
    person: Person,
    qdrant_server: QdrantServer,
    embeddings: EmbeddingServer,
    repository: GitRepository,
    empty_database_url: str,  # noqa: F811
) -> None:
    collection = f"c-{tmp_path.parent.name}-{tmp_path.name}".replace("_", "-")
    repository.commit(FILES)
    world = World(person.home, repository, embeddings, qdrant_server.url, collection, empty_database_url)
    world.configure(size=400)
    person.environment |= {
        "PYTHONPATH": str(earlier_version(FIRST_RELEASE, tmp_path / "earlier")),
        "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
        "REPOSYNC_STATE_DIR": str(person.home / "state"),
        "QDRANT_URL": qdrant_server.url,
        "DATABASE_URL": empty_database_url,
    }
    (earlier,) = person.asks("sync", "project")
    there = await world.points()
    for row in repository.ls_tree():  # whoever reads a blob now fails
        (repository.path / "objects" / row.sha[:2] / row.sha[2:]).unlink()
    embeddings.forget()

    async with world.opened():
        hits = await world.app.searching.search("book the amount", limit=500)
        asked = len(embeddings.inputs)
        run = await world.completed()
        *_, live = await world.app.versions.of(run.repository_id)
        after = await world.app.searching.search("book the amount", limit=500)

    assert (run.files_failed, run.chunks_embedded, run.chunks_reused) == (0, 0, len(there))
    assert run.commit_before == run.commit_after == earlier["commit_after"]
    assert len(embeddings.inputs) <= asked + 1, "the second search"
    assert (live.state, live.number) == (VersionState.LIVE, 2), "points with symbols are built beside those without"
    points = [each["payload"]["metadata"] for each in (await world.points()).values()]
    mine = [each for each in points if each["repository_id"] == live.id]
    assert len(mine) == len(there) and all("symbols" in each for each in mine)
    assert {hit.path for hit in hits} == {hit.path for hit in after} != set()


@dataclass
class Daemons:
    """Pods that share a database and an index; `app` is registered in the file that all of them read."""

    folder: Path
    database_url: str
    qdrant_url: str
    repository: GitRepository

    def __post_init__(self) -> None:
        self.repository.many(40)
        (self.folder / "repositories.yaml").write_text(
            "embedding: {provider: none}\ndaemon: {retry_seconds: 0.5}\n"
            f"repositories:\n  - {{name: app, path: '{self.repository.path}', schedule: yearly}}\n"
        )

    @property
    def shared(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "QDRANT_URL": self.qdrant_url,
            "REPOSYNC_CONFIG": str(self.folder / "repositories.yaml"),
        }

    @property
    def log(self) -> ExecutionLog:
        return ExecutionLog(self.database_url)

    def pod(self, name: str, *options: str, package: Path | None = None) -> Pod:
        path = {} if package is None else {"PYTHONPATH": str(package)}
        return Pod(name, self.folder / name, {**self.shared, **path}, options)


@pytest.fixture
def daemons(
    tmp_path: Path,
    qdrant_server: QdrantServer,
    repository: GitRepository,
    empty_database_url: str,  # noqa: F811
) -> Daemons:
    return Daemons(tmp_path, empty_database_url, qdrant_server.url, repository)


def asked(pod: Pod, path: str) -> str:
    accepted = pod.posts(f"/api/v1{path}")
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["id"])


def test_this_program_writes_no_word_about_a_run_that_the_release_before_does_not_know(before: Path) -> None:
    said = "from reposync.store.status import *; print(*sorted([*RunStatus, *RunTrigger]))"
    command = [sys.executable, "-c", said]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(before)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)

    # Its workers end where they read another one.
    assert {*RunStatus, *RunTrigger} <= set(done.stdout.split())


def test_a_daemon_of_the_release_before_executes_requests_to_this_one(daemons: Daemons, before: Path) -> None:
    log, repository = daemons.log, daemons.repository
    with daemons.pod("old", "--no-scheduler", package=before) as old:
        until(lambda: old.events("serving"), details=old.log_tail)
        asked_old = until(lambda: old.posts("/api/v1/repositories/app/sync").json().get("id"), details=old.log_tail)
        until(lambda: old.gets(f"/api/v1/runs/{asked_old}").json()["status"] == "completed", details=old.log_tail)
        with daemons.pod("new", "--no-workers", "--no-scheduler") as new:
            until(lambda: new.events("serving"), details=new.log_tail)
            ended = asked(new, "/repositories/app/sync")
            until(lambda: ended in [run.id for run in log.ended("app")], details=old.log_tail)

            repository.commit(gone(repository))
            stopped = asked(new, "/repositories/app/sync")
            until(lambda: stopped in [run.id for run in log.ended("app", "blocked")], details=old.log_tail)
            asked(new, f"/runs/{stopped}/approve")
            until(lambda: stopped in [run.id for run in log.ended("app")], details=old.log_tail)

            runs = log.runs("app")
            assert {run.worker.partition(":")[0] for run in runs if run.worker} == {"old"}
            shown = new.gets(f"/api/v1/runs/{asked_old}").json()
            assert (shown["status"], shown["trigger"]) == ("completed", "http")
            assert {new.gets(path).status_code for path in ("/runs", f"/runs/{stopped}")} == {200}
            assert {old.gets(path).status_code for path in ("/runs", f"/runs/{stopped}")} == {200}
        assert not [line for line in old.lines if line.get("level") == "error"], old.log_tail()
        assert old.terminate() == 0


def gone(repository: GitRepository) -> dict[str, None]:
    """Most of its files."""
    return {row.path.decode(): None for row in repository.ls_tree()[:30]}
