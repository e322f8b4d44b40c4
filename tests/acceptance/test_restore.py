"""Back-up and restore, as a person types it: what was lost, what was put back, and what the next sync makes of it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full


def test_a_backup_that_was_made_beside_a_working_daemon_brings_registry_and_history_back(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"def first(): pass\n"})
    registered = f"{{name: app, path: '{repository.path}', schedule: every second}}"
    person.configures(f"embedding: {{provider: none}}\nrepositories: [{registered}]\n")
    database, backup = person.home / "state" / "reposync.db", tmp_path / "backup.db"
    pod.start()
    until(lambda: len(log.ended("app")) > 2, details=pod.log_tail)
    made = person.asks("db", "backup", str(backup))
    until(lambda: len(log.ended("app")) > 5, details=pod.log_tail)
    assert pod.terminate() == 0
    assert made == {"file": str(backup), "size_bytes": backup.stat().st_size, "revision": made["revision"]}
    after_it = {run.id for run in log.runs()}
    database.write_bytes(b"a disk that failed")

    shutil.copyfile(backup, database)
    history = person.asks("history")

    assert {each["id"] for each in history} < after_it
    assert [each["status"] for each in history].count("completed") > 2
    (shown,) = person.asks("repos", "list")
    assert (shown["name"], shown["last_commit"]) == ("app", repository.head())
    with closing(sqlite3.connect(database)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
