"""A damaged embedded index, as a person meets it: what each command says, and that the next sync heals it."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from reposync.vectors.engine.collections import DAMAGED
from tests.acceptance.conftest import Person
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

REGISTRY = "embedding: {{provider: none}}\nrepositories:\n  - {{name: app, path: '{path}', schedule: yearly}}\n"


def end_engine(index: Path) -> None:
    pid = json.loads((index / "engine.json").read_bytes())["pid"]
    os.kill(pid, signal.SIGTERM)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=PATIENCE_SECONDS)


def cut(index: Path, name: str) -> None:
    """What a full or failing disk leaves."""
    end_engine(index)
    path = next(each for each in index.rglob(name) if "damaged" not in each.parts)
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture
def index(person: Person, repository: GitRepository) -> Path:
    """The folder of an index that was just synced."""
    repository.commit({f"f{number}.py": f"def holiday_{number}(): pass\n".encode() for number in range(5)})
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.applies(REGISTRY.format(path=repository.path))
    person.types("sync")
    return person.home / "state" / "index"


def test_a_damaged_index_is_made_again_by_the_next_sync_which_says_why(person: Person, index: Path) -> None:
    cut(index, "segment.json")
    refused = person.types("search", "holiday", exit_code=1).stderr
    assert "damaged and set aside" in refused
    assert "reposync sync" in refused

    (run,) = person.lists("sync")
    assert (run["status"], run["error_code"], run["files_processed"]) == ("completed", "INDEX_REBUILT", 5)
    assert "segment.json" in run["error_message"]
    assert str(index / DAMAGED) in run["error_message"]
    assert "app: exact" in person.types("verify").stdout
