"""The version before, as the history of this repository has it, and this one: one after the other, and side by side."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from reposync.store.schema import HEAD, REVISIONS
from tests.acceptance.conftest import Person
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.earlier_versions import FIRST_RELEASE, RELEASE_BEFORE, earlier_version
from tests.fixtures.pods import ExecutionLog, Pod, stored_points, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

NAMES = ("app", "billing", "ledger", "web")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_version(RELEASE_BEFORE, tmp_path_factory.mktemp("previous"))


@pytest.fixture
def qdrant(tmp_path: Path) -> Generator[QdrantServer, None, None]:
    with QdrantServer(tmp_path / "qdrant") as server:
        yield server


def test_what_the_first_release_made_is_taken_over(person: Person, repository: GitRepository, tmp_path: Path):
    repository.commit({"a.py": b"def first(): pass\n", "b.py": b"def second(): pass\n"})
    person.configures(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
    person.environment["PYTHONPATH"] = str(earlier_version(FIRST_RELEASE, tmp_path / "earlier"))
    (earlier,) = person.asks("sync", "app")

    del person.environment["PYTHONPATH"]
    found = person.asks("db", "current")
    there = found["revision"]
    assert there in REVISIONS[:-1] and found == {"revision": there, "needed": HEAD, "state": "behind"}
    assert person.asks("db", "upgrade") == {"before": there, "after": HEAD}
    person.types("apply")
    (run,) = person.asks("sync", "app")

    assert (run["status"], run["files_processed"], run["chunks_embedded"]) == ("completed", 2, 0), "it has all of it"
    assert run["commit_before"] == run["commit_after"] == earlier["commit_after"]
    assert [each["id"] for each in person.asks("history")] == [run["id"], earlier["id"]]
    assert person.asks("search", "second")[0]["path"] == "b.py"


def test_pods_of_two_versions_work_side_by_side_during_a_rolling_update(
    tmp_path: Path, postgresql: PostgresqlDatabases, qdrant: QdrantServer, before: Path
):
    repositories = {name: GitRepository.create(tmp_path / f"{name}.git") for name in NAMES}
    for name, repository in repositories.items():
        repository.commit({f"{name}.py": f"def {name}(): pass\n".encode()})
    entries = "".join(
        f"  - {{name: {name}, path: '{repository.path}', schedule: every second}}\n"
        for name, repository in repositories.items()
    )
    registry = f"embedding: {{provider: none}}\ndaemon: {{concurrency: 1}}\nrepositories:\n{entries}"
    (tmp_path / "repositories.yaml").write_text(registry)
    log = ExecutionLog(postgresql.empty())
    shared = {"DATABASE_URL": log.url, "QDRANT_URL": qdrant.url, "REPOSYNC_CONFIG": str(tmp_path / "repositories.yaml")}

    def worked_on(pod: Pod, since: int) -> set[str]:
        return {run.repository for run in log.runs()[since:] if run.worker and run.worker.startswith(pod.name)}

    with ExitStack() as pods:
        old = pods.enter_context(Pod("old", tmp_path / "old", {**shared, "PYTHONPATH": str(before)}))
        until(lambda: {each["repository"] for each in old.events("run completed")} == set(NAMES), details=old.log_tail)
        new = pods.enter_context(Pod("new", tmp_path / "new", shared))
        until(lambda: new.events("serving"), details=new.log_tail)
        since = len(log.runs())
        heads = {
            name: repository.commit({f"{name}.py": None, "next.py": f"def {name}_next(): pass\n".encode()})
            for name, repository in repositories.items()
        }
        until(lambda: worked_on(old, since) and worked_on(new, since), details=lambda: old.log_tail() + new.log_tail())
        until(lambda: all(log.ended(name)[-1].commit_after == heads[name] for name in NAMES), details=new.log_tail)
        assert old.health()["status"] == new.health()["status"] == "ok"
        assert {pod.gets(path).status_code for pod in (old, new) for path in ("/", "/runs")} == {200}
        # The update goes on: the old one leaves, and what it had begun is finished.
        assert old.terminate() == 0
        until(lambda: len(worked_on(new, since)) == len(NAMES), details=new.log_tail)
        assert new.terminate() == 0

    runs = log.runs()
    # Those of the last ticks wait, or were handed back.
    badly = [run for run in runs if run.status not in ("completed", "queued", "retrying")]
    assert badly == [], [(run.status, run.error_code, run.error_message, run.worker) for run in badly]
    ticks = [(run.repository, run.scheduled_for) for run in runs if run.scheduled_for]
    assert len(ticks) == len(set(ticks)), "a tick ran once"
    for name in NAMES:
        spans = sorted(
            (run.started_at, run.completed_at) for run in runs if run.repository == name and run.completed_at
        )
        assert all(ended <= began for (_, ended), (began, _) in pairwise(spans))
    points = [(point["repository"], point["path"], point["commit"]) for point in stored_points(qdrant.url).values()]
    assert sorted(points) == [(name, "next.py", heads[name]) for name in NAMES], (
        "no chunk is stale, and none is there twice"
    )
