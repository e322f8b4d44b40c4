"""The disk of the state folder runs full during a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.acceptance.test_command_line import BILLING, CONFIGURATION
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

SIZE = "96m"


@dataclass(frozen=True)
class SmallDisk:
    path: Path

    def fill(self) -> None:
        with (self.path / "filling").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                self._write(file.fileno(), bytes(size))

    def _write(self, file: int, piece: bytes) -> None:
        try:
            while os.write(file, piece):
                pass
        except OSError:
            return

    def make_room(self) -> None:
        (self.path / "filling").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system can be mounted by root alone")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_command_says_that_the_disk_is_full_and_the_next_one_goes_on(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer, disk: SmallDisk
) -> None:
    repository.commit({"billing/sessions.py": BILLING})
    person.environment["REPOSYNC_STATE_DIR"] = str(disk.path / "state")
    person.applies(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    with embeddings.holding():
        process = person.starts("sync")
        embeddings.wait_for_waiting(1, timeout_seconds=120)
        disk.fill()
        _, said = process.communicate(timeout=180)

    assert process.returncode == 1
    assert "the disk is full. Make room." in said
    disk.make_room()
    (run,) = person.asks("sync")
    assert run["status"] == "completed"
    assert person.asks("repos", "show", "payments")["files"] == 1


def test_the_history_of_a_daemon_says_that_the_disk_was_full_as_soon_as_there_is_room(
    repository: GitRepository, embeddings: EmbeddingServer, disk: SmallDisk
) -> None:
    repository.commit({"billing/sessions.py": BILLING})
    home = disk.path / "pod"
    home.mkdir()
    (home / "repositories.yaml").write_text(CONFIGURATION.format(url=embeddings.url, path=repository.path))
    with Pod("full", home) as pod:
        with embeddings.holding():
            embeddings.wait_for_waiting(1, timeout_seconds=120)
            disk.fill()
            lost = until(lambda: pod.events("run lost"), timeout_seconds=180, details=pod.log_tail)
            disk.make_room()
        log = ExecutionLog(f"sqlite:///{home}/state/reposync.db")
        until(lambda: log.ended("payments"), timeout_seconds=180, details=pod.log_tail)

        (run,) = log.ended("payments")
        assert "the disk is full" in lost[0]["reason"]
        assert run.status == "completed"
        reported = until(
            lambda: [each.error_message for each in log.attempts(run) if each.error_message], details=pod.log_tail
        )
        assert "the disk is full" in reported[0]
