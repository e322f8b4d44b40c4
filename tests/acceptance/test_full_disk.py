"""The disk of the state folder runs full during a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.storm.volumes import Volume
from tests.acceptance.conftest import Person
from tests.acceptance.test_command_line import BILLING, CONFIGURATION
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

SIZE_BYTES = 384 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Volume]:
    try:
        volume = Volume(tmp_path / "disk", SIZE_BYTES)
    except OSError:
        pytest.skip("a small file system can be mounted by root alone")
    yield volume
    volume.close()


def test_a_command_says_that_the_disk_is_full_and_the_next_one_goes_on(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer, disk: Volume
) -> None:
    repository.commit({"billing/sessions.py": BILLING})
    person.environment["REPOSYNC_STATE_DIR"] = str(disk.folder / "state")
    person.applies(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    with embeddings.holding():
        process = person.starts("sync")
        embeddings.wait_for_waiting(1)
        disk.fill()
        _, said = process.communicate(timeout=180)

    assert process.returncode == 1
    assert "the disk is full, or it failed. Make room" in said
    disk.make_room()
    (run,) = person.lists("sync")
    assert run["status"] == "completed"
    assert person.asks("repos", "show", "payments")["files"] == 1


def test_the_history_of_a_daemon_says_that_the_disk_was_full_as_soon_as_there_is_room(
    repository: GitRepository, embeddings: EmbeddingServer, disk: Volume
) -> None:
    repository.commit({"billing/sessions.py": BILLING})
    home = disk.folder / "pod"
    home.mkdir()
    (home / "repositories.yaml").write_text(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    log = ExecutionLog(f"sqlite:///{home}/state/reposync.db")
    with Pod("full", home) as pod:
        with embeddings.holding():
            embeddings.wait_for_waiting(1)
            disk.fill()
            (lost, *_) = until(lambda: pod.events("run lost"), 180, pod.log_tail)
            disk.make_room()
        (run,) = until(lambda: log.ended("payments"), 180, pod.log_tail)

        reasons = until(
            lambda: list(filter(None, (each.error_message for each in log.attempts(run)))), 60, pod.log_tail
        )
    assert "the disk is full" in lost["reason"]
    assert "the disk is full" in reasons[0]


def test_a_full_disk_is_said_by_the_probe_and_by_the_run_and_stalls_no_search(
    repository: GitRepository, embeddings: EmbeddingServer, disk: Volume
) -> None:
    repository.commit({"billing/sessions.py": BILLING})
    home = disk.folder / "pod"
    home.mkdir()
    (home / "repositories.yaml").write_text(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    log = ExecutionLog(f"sqlite:///{home}/state/reposync.db")
    with Pod("full", home) as pod:
        until(lambda: log.ended("payments"), 180, pod.log_tail)
        repository.commit({f"billing/{number}.py": BILLING + b"# %d\n" % number for number in range(300)})
        disk.fill(leave_bytes=600_000)
        httpx.post(f"{pod.url}/api/v1/repositories/payments/sync", timeout=PATIENCE_SECONDS)

        def ready() -> str:
            return httpx.get(f"{pod.url}/readyz", timeout=PATIENCE_SECONDS).text

        def search() -> str:
            return httpx.get(f"{pod.url}/api/v1/search?q=billing", timeout=PATIENCE_SECONDS).text

        def runs() -> str:
            return httpx.get(f"{pod.url}/api/v1/runs?limit=1", timeout=PATIENCE_SECONDS).text

        def state() -> str:
            return f"{runs()[:900]}\n{ready()[:900]}\n{search()[:300]}"

        until(lambda: "the disk is full" in ready(), 180, state)
        until(
            lambda: any(words in runs() for words in ("has not reported", "no space left", "the disk is full")),
            180,
            state,
        )
        # An engine that still runs answers; one that cannot start is no reason to wait.
        answer = search()
        assert '"repository":"payments"' in answer or "no space left" in answer, answer
        disk.make_room()
        until(lambda: '"status":"running"' not in runs(), 180, state)
        httpx.post(f"{pod.url}/api/v1/repositories/payments/sync", timeout=PATIENCE_SECONDS).raise_for_status()
        until(lambda: "# 299" in stored_file(pod), 180, state)
        assert '"status":"ok"' in until(lambda: ready() if "full" not in ready() else "", 180, state)


def stored_file(pod: Pod) -> str:
    return httpx.get(f"{pod.url}/api/v1/files/payments/-/billing/299.py", timeout=PATIENCE_SECONDS).text
