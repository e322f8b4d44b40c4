"""A run is watched by others: in a terminal, and over HTTP on a pod that does not execute it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from reposync.config.database_url import sqlite_url
from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

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


@pytest.fixture
def log(person: Person) -> ExecutionLog:
    return ExecutionLog(sqlite_url(person.home / "state" / "reposync.db"))


def run_under_way(log: ExecutionLog, pod: Pod) -> str:
    """The id of a run whose progress was reported."""

    def reported() -> str | None:
        return next((run.id for run in log.runs("app") if (run.progress or {}).get("files_total") == FILES), None)

    found: str = until(reported, details=pod.log_tail)
    return found


def test_a_run_is_watched_to_its_end_by_command_and_over_the_http_of_another_pod(
    person: Person, embeddings: EmbeddingServer, request: pytest.FixtureRequest, log: ExecutionLog, tmp_path: Path
):
    with ExitStack() as held:
        held.enter_context(embeddings.holding())
        worker: Pod = request.getfixturevalue("worker")
        run_id = run_under_way(log, worker)
        watching = person.starts("runs", "watch", run_id[:13], "--json")
        other = Pod(
            "other",
            tmp_path / "other",
            {
                "DATABASE_URL": log.url,
                "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
            },
            ("--no-workers", "--no-scheduler"),
        )
        with other, _Stream(other, run_id) as events:
            first = events.next()
            assert (first["status"], first["progress"]["files_total"]) == ("running", FILES)
            assert first["worker"].startswith("worker:")
            held.close()
            seen = [first, *events.rest()]
    assert (seen[-1]["status"], seen[-1]["files_processed"], events.names[-1]) == ("completed", FILES, "ended")
    assert set(events.names[:-1]) == {"progress"}

    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    assert (json.loads(out)["id"], json.loads(out)["files_processed"]) == (run_id, FILES)
    assert "app: indexing" in err
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
            while f"/{FILES} files".encode() not in drawn:
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


class _Stream:
    """The events of a run, as a client without a library for them reads them."""

    def __init__(self, pod: Pod, run_id: str) -> None:
        self.names: list[str] = []
        self._pod = pod
        self._run_id = run_id
        self._stack = ExitStack()
        self._lines: Iterator[str] = iter(())

    def __enter__(self) -> Self:
        # It listens before it has its database.
        until(lambda: self._pod.gets(f"/api/v1/runs/{self._run_id}").status_code == 200, details=self._pod.log_tail)
        client = self._stack.enter_context(httpx.Client(timeout=60, base_url=self._pod.url or ""))
        answer = self._stack.enter_context(client.stream("GET", f"/api/v1/runs/{self._run_id}/events"))
        assert answer.status_code == 200
        self._lines = answer.iter_lines()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next(self) -> dict[str, Any]:
        return next(self._events())

    def rest(self) -> list[dict[str, Any]]:
        return list(self._events())

    def _events(self) -> Generator[dict[str, Any], None, None]:
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "event":
                self.names.append(value)
            elif name == "data":
                yield json.loads(value)
