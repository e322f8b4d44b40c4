"""Back-up and restore, as a person types it: what was lost, what was put back, and what the next sync makes of it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reposync.app.command_runs import sync
from reposync.config.database_url import SqliteAddress, sqlite_url
from reposync.config.settings import Settings
from reposync.store.backup import back_up
from tests.acceptance.conftest import Person
from tests.fixtures.applied import open_applied
from tests.fixtures.pods import ExecutionLog, Pod, stored_points, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

REGISTRY = "embedding: {{provider: none}}\nrepositories:\n  - {{name: app, path: '{path}', schedule: {schedule}}}\n"


def synced_without_typing(person: Person) -> str:
    """`reposync sync app` in this process, which has imported everything before; the id of the run."""

    async def synced() -> str:
        state = person.environment.get("REPOSYNC_STATE_DIR", str(person.home / "state"))
        here = {"REPOSYNC_CONFIG": str(person.home / "repositories.yaml"), "REPOSYNC_STATE_DIR": state}
        async with open_applied(Settings.from_environment(person.environment | here)) as app:
            target = await app.catalog.find("app")
            run = await sync(app, target, full=False, approved=False, watch=lambda _: None)
            assert run.status == "completed", run.error_message
            return run.id

    return asyncio.run(synced())


@dataclass
class Machine:
    """A person's database and a Qdrant server, of which each can be lost, or put back as it was."""

    person: Person
    repository: GitRepository
    folder: Path
    qdrant: QdrantServer
    points: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def bought(cls, folder: Path) -> Machine:
        home = folder / "home"
        home.mkdir(parents=True)
        repository = GitRepository.create(folder / "app.git")
        machine = cls(Person(home), repository, folder, QdrantServer(folder / "qdrant"))
        machine.person.configures(REGISTRY.format(path=repository.path, schedule="yearly"))
        machine.person.environment["REPOSYNC_STATE_DIR"] = str(folder / "state")
        return machine

    @property
    def database(self) -> Path:
        return self.folder / "state" / "reposync.db"

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        with self.qdrant as server:
            self.person.environment["QDRANT_URL"] = server.url
            yield
            server.stop()

    def syncs(self) -> dict[str, Any]:
        # A database that was lost does not know it; one of another machine knows it by another path.
        self.person.types("apply", "--take-over")
        (run,) = self.person.asks("sync")
        self.points = stored_points(self.qdrant.url)
        return dict(run)

    def is_exact(self) -> bool:
        """The last sync left the files of the head commit in the index, each once, and nothing else."""
        found = sorted((each["path"], each["blob_sha"]) for each in self.points.values())
        return found == sorted((row.path.decode(), row.sha) for row in self.repository.ls_tree())


@dataclass(frozen=True)
class Shelf:
    """A machine's database and index of Monday (three syncs before) and of Friday (the last one)."""

    folder: Path

    def machine(self, folder: Path) -> Machine:
        """A machine as it is on Friday evening, with a commit since that nobody synced."""
        shutil.copytree(self.folder / "machine", folder / "machine")
        machine = Machine.bought(folder / "new")
        for name in ("app.git", "state", "qdrant"):
            there = folder / "new" / name
            shutil.rmtree(there, ignore_errors=True)
            shutil.move(folder / "machine" / name, there)
        return machine


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """Files that came, changed and went while nobody made a back-up, and after the last sync again."""
    folder = tmp_path_factory.mktemp("shelf")
    machine = Machine.bought(folder / "machine")
    code = {f"f{number}.py": f"def f{number}(): pass\n".encode() for number in range(5)}
    machine.repository.commit(code)
    with machine.running():
        synced_without_typing(machine.person)
    asyncio.run(back_up(SqliteAddress(machine.database), folder / "monday.db"))
    shutil.copytree(folder / "machine" / "qdrant", folder / "monday-qdrant")
    with machine.running():
        machine.repository.commit({"f0.py": None, "f1.py": b"def tuesday(): pass\n", "t.py": b"def t(): pass\n"})
        synced_without_typing(machine.person)
        friday = {"f1.py": b"def friday(): pass\n", "fr.py": b"def fr(): pass\n", "t2.py": b"def t2(): pass\n"}
        machine.repository.commit(friday)
        synced_without_typing(machine.person)
    machine.repository.commit({"t.py": None, "t2.py": None, "f1.py": b"def weekend(): pass\n"})
    return Shelf(folder)


@pytest.mark.parametrize(
    ("database", "index"), [("friday", None), ("friday", "monday"), ("monday", "friday"), (None, "friday")]
)
def test_the_next_sync_after_a_loss_or_a_restore_makes_the_index_exact(
    shelf: Shelf, tmp_path: Path, database: str | None, index: str | None
):
    """None: it is lost; `monday`: it is restored from Monday's backup; `friday`: nothing happened to it."""
    machine = shelf.machine(tmp_path)
    if index != "friday":
        shutil.rmtree(tmp_path / "new" / "qdrant")
    if index == "monday":
        shutil.copytree(shelf.folder / "monday-qdrant", tmp_path / "new" / "qdrant")
    if database != "friday":
        for file in (tmp_path / "new" / "state").glob("reposync.db*"):
            file.unlink()
    if database == "monday":
        shutil.copyfile(shelf.folder / "monday.db", machine.database)

    with machine.running():
        run = machine.syncs()

    assert run["status"] == "completed"
    assert index == "friday" or run["error_code"] == "INDEX_REBUILT"
    assert machine.is_exact()
    if database == "monday":
        assert len(machine.person.asks("history")) == 2, "Monday's, and the one of now"


def test_a_backup_that_was_made_beside_a_working_daemon_brings_registry_and_history_back(
    person: Person, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"def first(): pass\n"})
    person.configures(REGISTRY.format(path=repository.path, schedule="every second"))
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    database, backup = person.home / "state" / "reposync.db", tmp_path / "backup.db"
    log = ExecutionLog(sqlite_url(database))
    with Pod("laptop", person.home) as pod:
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
