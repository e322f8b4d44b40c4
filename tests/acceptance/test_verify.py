"""`reposync verify` as a person types it, on the embedded engine."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from reposync.config.database_url import sqlite_url
from reposync.store.repository import repository_id
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings, WriteScope
from tests.acceptance.conftest import Person
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository
from tests.fixtures.stored_points import stored_points

HOSTILE = "src/\x1b[31mred\n.py"
REGISTRY = """\
embedding: {{provider: none}}
repositories:
  - {{name: payments, path: '{path}', schedule: yearly}}
{more}"""


@pytest.fixture
def configured(person: Person, repository: GitRepository) -> Person:
    repository.commit({"a.py": b"a = 1\n", "b.py": b"b = 1\n", HOSTILE: b"c = 1\n"})
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.applies(REGISTRY.format(path=repository.path, more=""))
    return person


def loses(person: Person, *paths: str, name: str = "payments") -> None:
    """The points of these paths vanish from the index, by nobody's doing."""

    async def remove() -> None:
        index = QdrantIndex(IndexSettings(collection="code", state_dir=person.home / "state"))
        try:
            await index.remove_files(WriteScope(repository_id(name), name, "0" * 40, 2**40), paths)
        finally:
            await index.close()

    asyncio.run(remove())


def points(person: Person, name: str = "payments") -> dict[Any, Any]:
    async def read() -> dict[Any, Any]:
        index = QdrantIndex(IndexSettings(collection="code", state_dir=person.home / "state"))
        try:
            stored = await stored_points(index, repository_id(name))
            return {point.id: point.payload["page_content"] for point in stored}
        finally:
            await index.close()

    return asyncio.run(read())


def test_damage_of_an_index_is_listed_and_repaired(configured: Person, repository: GitRepository):
    assert "Did you mean 'payments'" in configured.types("verify", "paymets", exit_code=3).stderr
    assert "requires --repair" in configured.types("verify", "--remove-unknown", exit_code=2).stderr
    configured.types("sync")
    before = points(configured)
    done = configured.types("verify", "--source")
    assert done.stdout == f"payments: exact at {str(repository.head())[:10]}: 3 files, 3 points\n"

    loses(configured, "b.py", HOSTILE)
    done = configured.types("verify", "payments", "--limit", "1", exit_code=1)
    assert "payments: NOT exact" in done.stdout and "2 missing" in done.stdout
    assert "  missing    b.py  lacks 1 of 1 points\n  ... and 1 more (--limit)\n" in done.stdout
    reported = configured.asks("verify", "--repair")

    assert (reported["exact"], reported["leftovers"], reported["trouble"]) == (True, [], None)
    (found,) = reported["repositories"]
    assert (found["exact"], found["counts"], found["points"]) == (True, {}, 3)
    assert found["repair"]["found"]["counts"] == {"missing": 2}
    assert {each["path"] for each in found["repair"]["found"]["differences"]} == {"b.py", HOSTILE}
    (run, _) = configured.lists("history")
    assert run == found["repair"]["run"]
    assert "@" in run["asked_by"][0], "the person who typed it"
    assert (run["status"], run["trigger"], run["files_processed"]) == ("completed", "command", 2)
    assert (run["error_code"], run["error_message"]) == (None, "Repaired on request: 2 missing.")
    assert f"{run['id'][:8]} Repaired on request: 2 missing.\n" in configured.types("history").stdout
    assert "Repaired on request: 2 missing.\n" in configured.types("runs", "show", run["id"]).stdout
    assert points(configured) == before


def test_beside_a_daemon_a_repair_is_a_run_of_its_own(configured: Person, pod: Pod, log: ExecutionLog):
    pod.start()
    until(lambda: log.ended("payments"), details=pod.log_tail)
    before = points(configured)
    assert configured.asks("verify")["exact"] is True
    loses(configured, "b.py")
    repaired = configured.asks("verify", "--repair")
    assert (repaired["exact"], repaired["repositories"][0]["repair"]["run"]["files_processed"]) == (True, 1)
    assert points(configured) == before
    assert pod.terminate() == 0


def test_leftovers_of_a_removed_repository_are_listed_and_removed(
    configured: Person, repository: GitRepository, tmp_path: Path
):
    database = configured.home / "state" / "reposync.db"
    more = f"  - {{name: old, path: '{repository.path}', schedule: yearly}}\n"
    # Of an installation that is no more, in the same collection: nobody here ever knew the one, and knows the other.
    for name, keep in (("theirs", False), ("old", True)):
        configured.environment["REPOSYNC_DATABASE_URL"] = "" if keep else sqlite_url(tmp_path / "theirs.db")
        configured.applies(REGISTRY.format(path=repository.path, more=more.replace("old", name)))
        configured.types("sync", name)
    configured.environment["REPOSYNC_DATABASE_URL"] = ""
    configured.applies(REGISTRY.format(path=repository.path, more=""))
    with sqlite3.connect(database) as connection:  # as after a back-up from before it was registered
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("DELETE FROM repositories WHERE name = 'old'")

    done = configured.types("verify", exit_code=1).stdout
    assert "payments: No sync of it was completed yet." in done
    assert ": 3 points of 'old', which is not registered" in done and "--repair removes them" in done
    assert "3 points of 'theirs'" in done and "A different installation" in done

    left = configured.asks("verify", "--repair", exit_code=1)["leftovers"]
    assert [(each["repository"], each["run"] is not None) for each in left] == [("old", True), ("theirs", False)]
    repaired = configured.types("verify", "--repair", "--remove-unknown").stdout
    assert "'theirs'" in repaired and "Removed by run" in repaired and "'old'" not in repaired
    assert points(configured, "old") == points(configured, "theirs") == {}
    assert [run["repository"] for run in configured.lists("history", "--limit", "2")] == ["theirs", "old"]
