"""`--json` of a command and the answer of the API to the same question are the same document."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from reposync.config.database_url import sqlite_url
from reposync.store.database import Database
from reposync.store.run import Run
from reposync.store.runs import Runs
from tests.acceptance.conftest import Person
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

# Each types twenty commands.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

API = "/api/v1"
REGISTRY = """\
embedding: {{provider: none}}
http: {{allow_local_sources: true}}
repositories: [{{name: payments, path: "{path}", schedule: yearly}}]
"""


@pytest.fixture
def person(person: Person, repository: GitRepository) -> Person:
    """Has synced a repository of which some files are skipped."""
    code = b"def expired_sessions(now):\n    return []\n"
    repository.commit({"billing/sessions.py": code, "a.bin": b"\0", "b.bin": b"\0"})
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.applies(REGISTRY.format(path=repository.path))
    person.types("sync")
    return person


@pytest.fixture
def client(person: Person) -> Generator[httpx.Client, None, None]:
    """Of a daemon on the same state that answers over HTTP and does nothing else."""
    with (
        Pod("door", person.home, options=("--no-workers", "--no-scheduler")) as pod,
        httpx.Client(base_url=f"{pod.url}{API}", timeout=PATIENCE_SECONDS) as client,
    ):
        until(lambda: client.get("/repositories").status_code == 200, details=pod.log_tail)
        yield client


def claimed(person: Person) -> Run:
    """The run that waits, as a worker on another machine has begun it."""

    async def claim() -> Run:
        async with await Database.open(sqlite_url(person.home / "state" / "reposync.db")) as database:
            run = await Runs(database).claim("pod-b:1:0", 600.0)
            assert run is not None
            await Runs(database).heartbeat(run, 600.0, {"phase": "indexing", "files_done": 1, "files_total": 3})
            return run

    return asyncio.run(claim())


def test_what_is_asked_by_command_and_over_http_is_the_same_document(person: Person, client: httpx.Client) -> None:
    (ended,) = person.lists("history")
    client.post("/repositories/payments/sync")
    running = claimed(person)

    def gets(path: str) -> Any:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert person.asks("repos", "list") == gets("/repositories")
    assert person.asks("repos", "show", "payments") == gets("/repositories/payments")
    assert person.asks("history") == gets("/runs")
    for run_id in (ended["id"], running.id):
        assert person.asks("runs", "show", run_id) == gets(f"/runs/{run_id}")
    first = person.asks("runs", "show", ended["id"], "--limit", "1")
    others = gets(f"/runs/{ended['id']}/problems?cursor={first['problems_cursor']}")
    assert [each["path"] for each in first["problems"] + others["items"]] == ["a.bin", "b.bin"]
    assert person.asks("index", "status") == gets("/index")
    assert person.asks("index", "status", "payments") == gets("/repositories/payments/index")
    locks, found = gets("/locks"), gets("/search?q=expired+sessions")
    assert (person.asks("locks", "list"), person.asks("search", "expired sessions")) == (locks, found)
    assert locks["items"] and found["items"]


def test_what_is_done_by_command_and_over_http_has_the_same_keys(
    person: Person, client: httpx.Client, repository: GitRepository
) -> None:
    def does(method: str, path: str, **options: Any) -> set[str]:
        answer = client.request(method, path, **options)
        assert answer.status_code in (200, 201, 202), answer.text
        return set(answer.json())

    path = str(repository.path)
    added = does("POST", "/repositories", json={"name": "two", "path": path})
    assert set(person.asks("repos", "add", "one", "--path", path)) == added
    for command, is_active in (("pause", False), ("resume", True)):
        changed = does("PATCH", "/repositories/two", json={"is_active": is_active})
        assert set(person.asks("repos", command, "one")) == changed
    asked = does("POST", "/repositories/two/sync")
    (synced,) = person.lists("sync", "payments")
    assert set(synced) == asked
    (waiting,) = (each["id"] for each in person.lists("history", "--repository", "two", "--status", "queued"))
    cancelled = does("POST", f"/runs/{waiting}/cancel")
    assert set(person.asks("runs", "retry", waiting)) == cancelled
    assert set(person.asks("runs", "cancel", waiting)) == cancelled == does("POST", f"/runs/{waiting}/retry")
    claimed(person)
    released = set(person.asks("locks", "release", "two", "--force"))
    assert released == does("DELETE", "/locks/two?force=true")
    assert set(person.asks("repos", "remove", "one", "--yes")) == does("DELETE", "/repositories/two?wait=0") == asked
