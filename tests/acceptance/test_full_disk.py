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
    assert "the disk is full, or it failed. Make room" in said
    disk.make_room()
    (run,) = person.asks("sync")
    assert run["status"] == "completed"
    assert person.asks("repos", "show", "payments")["files"] == 1
