"""This program and earlier releases: an index of 0.2.0 is taken over, and its daemons are replaced while they run."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Generator
from contextlib import ExitStack
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import pytest

from reposync.store.schema import HEAD, REVISIONS
from reposync.store.tables import VersionState
from tests.acceptance.conftest import Person
from tests.fixtures.databases import PostgresqlDatabases, database_kind, empty_database_url  # noqa: F401
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.pods import ExecutionLog, Pod, stored_points, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository, git_environment
from tests.fixtures.world import World

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.full

RELEASE_BEFORE = "9f3a592d0236894ca13a3fe527a15bc68960b962"
"""Version 0.2.0, whose database and index this program takes over, and whose pods it replaces while they run."""

NAMES = ("app", "billing", "ledger", "web")
LONG = b"\n\n".join(b"def booking_%d(amount):\n    return ledger.book(amount, %d)" % (n, n) for n in range(40))
FILES = {"ledger.py": LONG, "docs/guide.md": b"# Guide\n", "logo.png": b"\x89PNG\r\n\x1a\n\x00", "empty.py": b""}


def earlier_version(commit: str, folder: Path) -> Path:
    """The package as it was in that commit, in `folder`, for PYTHONPATH. Skips the test where the history is not there,
    or does not go back so far."""
    command = ["git", "-C", os.fspath(ROOT), "archive", commit, "reposync"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, env=git_environment())
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no earlier version here: {error}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_version(RELEASE_BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture
def qdrant_url() -> Generator[str, None, None]:
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server.url


def test_what_a_release_made_is_taken_over(person: Person, repository: GitRepository, before: Path):
    repository.commit({"a.py": b"def first(): pass\n", "b.py": b"def second(): pass\n"})
    person.configures(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
    person.environment["PYTHONPATH"] = str(before)
    person.types("apply")
    (earlier,) = person.asks("sync", "app")

    del person.environment["PYTHONPATH"]
    found = person.asks("db", "current")
    there = found["revision"]
    assert there in REVISIONS[:-1] and found == {"revision": there, "needed": HEAD, "state": "behind"}
    assert person.asks("db", "upgrade") == {"before": there, "after": HEAD}
    person.types("apply")
    (run,) = person.lists("sync", "app")

    assert (run["status"], run["files_processed"], run["chunks_embedded"]) == ("completed", 2, 0)
    assert run["commit_before"] == run["commit_after"] == earlier["commit_after"]
    assert [each["id"] for each in person.lists("history")] == [run["id"], earlier["id"]]
    assert person.lists("search", "second")[0]["path"] == "b.py"


async def test_the_first_sync_after_the_upgrade_from_0_2_embeds_nothing(
    tmp_path: Path,
    person: Person,
    qdrant_url: str,
    embeddings: EmbeddingServer,
    repository: GitRepository,
    before: Path,
    empty_database_url: str,  # noqa: F811
) -> None:
    collection = f"c-{tmp_path.parent.name}-{tmp_path.name}".replace("_", "-")
    repository.commit(FILES)
    world = World(person.home, repository, embeddings, qdrant_url, collection, empty_database_url)
    world.configure(size=400)
    person.environment |= {
        "PYTHONPATH": str(before),
        "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
        "REPOSYNC_STATE_DIR": str(person.home / "state"),
        "QDRANT_URL": qdrant_url,  # of these names, the release knows only those without REPOSYNC_
        "DATABASE_URL": empty_database_url,
    }
    person.types("apply")
    (earlier,) = person.asks("sync", "project")
    there = await world.points()
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


IN_THE_CLEAR = """
embedding: {{provider: none}}
gitlab: [{{name: main, url: "http://127.0.0.1:9", token: {token}}}]
repositories:
  - {{name: app, path: "{path}"}}
  - {{name: book, git: "http://reader:{password}@127.0.0.1:9/book.git"}}
"""


def test_a_secret_in_the_clear_that_a_release_applied_is_missing_until_the_file_names_a_variable(
    person: Person, repository: GitRepository, before: Path
):
    repository.commit({"a.py": b"def first(): pass\n"})
    clear = IN_THE_CLEAR.format(token="glpat-hush", password="hush-hush", path=repository.path)
    person.configures(clear)
    person.environment["PYTHONPATH"] = str(before)
    person.types("apply")
    person.asks("sync", "app")
    del person.environment["PYTHONPATH"]
    person.types("db", "upgrade")

    assert person.lists("sync", "app")[0]["status"] == "completed"
    (failed,) = person.lists("sync", "book", exit_code=1)
    assert failed["error_code"] == "SECRET_MISSING"
    assert f"in the clear in {person.home / 'repositories.yaml'}" in failed["error_message"]
    assert "Write ${GIT_PASSWORD} there, set GIT_PASSWORD for every process" in failed["error_message"]
    refused = person.types("apply", exit_code=2).stderr
    assert ":3:57: gitlab[0].token is in the clear" in refused and "hush" not in refused

    variables = {"token": '"${GITLAB_TOKEN}"', "password": "${GIT_PASSWORD}"}
    person.environment |= {"GITLAB_TOKEN": "glpat-hush", "GIT_PASSWORD": "hush-hush"}
    person.applies(IN_THE_CLEAR.format(path=repository.path, **variables))
    assert person.asks("sync", "book", "--plan", exit_code=1)["error"]["code"] == "SOURCE_UNAVAILABLE"


def test_pods_of_the_release_before_are_replaced_one_after_the_other_and_nothing_is_lost_or_done_twice(
    tmp_path: Path, postgresql: PostgresqlDatabases, qdrant_url: str, before: Path
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
    shared = {"DATABASE_URL": log.url, "QDRANT_URL": qdrant_url, "REPOSYNC_CONFIG": str(tmp_path / "repositories.yaml")}

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
        until(lambda: all(log.ended(name)[-1].commit_after == heads[name] for name in NAMES), details=new.log_tail)
        assert {new.gets(path).status_code for path in ("/", "/runs")} == {200}
        # The update goes on: the old one, which cannot write any more, leaves, and what it had begun is finished.
        old.terminate()
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
    points = [(point["repository"], point["path"], point["commit"]) for point in stored_points(qdrant_url).values()]
    assert sorted(points) == [(name, "next.py", heads[name]) for name in NAMES], (
        "no chunk is stale, and none is there twice"
    )
