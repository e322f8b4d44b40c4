"""A run is watched in a terminal while a daemon executes it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Generator

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

FILES = 400


@pytest.fixture
def worker(person: Person, embeddings: EmbeddingServer, repository: GitRepository) -> Generator[Pod, None, None]:
    """A daemon in the person's own state, about to sync a repository; the person needs no HTTP of it."""
    repository.many(FILES)
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.configures(
        f'embedding: {{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64}}\n'
        f"repositories:\n  - {{name: app, path: '{repository.path}', schedule: yearly}}\n"
    )
    with Pod("worker", person.home, {"REPOSYNC_STATE_DIR": str(person.home / "state")}) as pod:
        yield pod


def run_under_way(log: ExecutionLog, pod: Pod) -> str:
    """The id of a run whose progress was reported."""

    def reported() -> str | None:
        return next((run.id for run in log.runs("app") if (run.progress or {}).get("files_total") == FILES), None)

    found: str = until(reported, details=pod.log_tail)
    return found


def test_a_run_is_watched_to_its_end(
    person: Person, embeddings: EmbeddingServer, request: pytest.FixtureRequest, log: ExecutionLog
):
    with embeddings.holding():
        worker: Pod = request.getfixturevalue("worker")
        run_id = run_under_way(log, worker)
        watching = person.starts("runs", "watch", run_id[:13], "--json")

    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert (json.loads(out)["id"], json.loads(out)["files_processed"]) == (run_id, FILES)
    assert "app: " in err
    # What is over already is reported at once.
    assert person.types("runs", "watch", run_id).stdout.startswith("app: completed at ")
    worker.terminate()


def test_watching_ends_with_ctrl_c_and_the_run_goes_on(
    person: Person, embeddings: EmbeddingServer, request: pytest.FixtureRequest, log: ExecutionLog
):
    with embeddings.holding():
        worker: Pod = request.getfixturevalue("worker")
        run_id = run_under_way(log, worker)
        primary, secondary = pty.openpty()
        try:
            watching = subprocess.Popen(
                person.command("runs", "watch", run_id),
                env=person.variables() | {"TERM": "xterm"},
                cwd=person.home,
                stdout=subprocess.PIPE,
                stderr=secondary,
                text=True,
                start_new_session=True,
            )
            drawn = b""
            while f"of {FILES} files".encode() not in drawn:
                drawn += os.read(primary, 4096)
            watching.send_signal(signal.SIGINT)
            out, _ = watching.communicate(timeout=60)
            while b"stops it" not in drawn:
                drawn += os.read(primary, 4096)
        finally:
            os.close(primary)
            os.close(secondary)
        assert watching.returncode == 130
        assert out == ""
        assert f"The run continues. `reposync runs cancel {run_id}` stops it." in drawn.decode()
    (run,) = until(lambda: log.ended("app"), details=worker.log_tail)
    assert run.id == run_id
    worker.terminate()


def test_a_run_that_does_not_end_well_is_exit_code_1(person: Person, repository: GitRepository):
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    repository.commit({"a.py": b"def first(): pass\n"})
    person.types("sync", str(repository.path))
    repository.delete_branch("main")
    (run,) = person.asks("sync", "payments", exit_code=1)

    watched = person.types("runs", "watch", run["id"], exit_code=1)
    assert watched.stdout.startswith("payments: failed: ")
    assert person.asks("runs", "watch", run["id"], exit_code=1) == run
