"""Versions of indexes over HTTP, and what runs, hits and waits say of files that could not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from reposync.app.index_overview import collection_changes, failed_files
from reposync.store.index_changes import version_states
from tests.fixtures.unreadable import lose
from tests.fixtures.world import World
from tests.integration.api.serving import serving
from tests.integration.sync.conftest import closed_world, embeddings, qdrant, world  # noqa: F401

API = "/api/v1"
OPERATOR, READER = "operate-4f9a0c6b2d8e", "readonly-7b1c5e9d3a20"
KEEP = "index: {keep_retired: 24h}\n"
CODE = b"".join(b"def handler_%d(request):\n    return request.session.token\n\n" % number for number in range(40))


@pytest.fixture
async def changed(closed_world: World) -> AsyncIterator[World]:  # noqa: F811
    """An index whose chunk size was changed once, and whose version before is kept."""
    closed_world.configure(extra=KEEP)
    closed_world.repository.commit({"a.py": CODE, "b.py": b"x = 1\n"})
    async with closed_world.opened():
        await closed_world.completed()
    closed_world.configure(size=1600, extra=KEEP)
    async with closed_world.opened():
        await closed_world.completed()
        yield closed_world


async def states(client: httpx.AsyncClient) -> list[tuple[str, int]]:
    found = (await client.get(f"{API}/repositories/project/index")).json()
    every = [found["live"], found["building"], *found["retired"]]
    return [(each["state"], each["number"]) for each in every if each is not None]


async def test_the_versions_of_an_index_are_told_with_what_they_are_made_of(changed: World):
    async with serving(changed.app) as client:
        answer = await client.get(f"{API}/index")
        again = await client.get(f"{API}/index", headers={"If-None-Match": answer.headers["ETag"]})

    assert answer.status_code == 200, answer.text
    assert again.status_code == 304
    page = answer.json()
    (found,) = page["items"]
    assert page["next_cursor"] is None
    assert (found["live"]["chunk_size"], found["live"]["model"]) == (1600, "test/words")
    assert found["live"]["commit"] == changed.repository.head()
    (before,) = found["retired"]
    assert (before["number"], before["chunk_size"]) == (1, 400)
    assert before["removed_after"] > before["retired_at"]
    (change,) = page["collections"]
    assert (change["collection"], change["repositories"]["done"]) == (changed.collection, 1)
    assert (change["leads_to"], change["moved"]) == (await changed.physical(), True)


async def test_a_rollback_over_http_makes_the_version_before_live_until_somebody_resumes(changed: World):
    async with serving(changed.app) as client:
        answer = await client.post(f"{API}/repositories/project/index/rollback")
        assert answer.status_code == 200, answer.text
        assert answer.json()["hold"] == {"reason": "rolled back from version 2", "until_settings_change": True}
        assert await states(client) == [("live", 1), ("retired", 2)]
        await changed.completed()
        assert await states(client) == [("live", 1), ("retired", 2)]

        resumed = await client.post(f"{API}/repositories/project/index/resume")
        assert (resumed.status_code, resumed.json()["hold"]) == (200, None)
        await changed.completed()
        assert await states(client) == [("live", 2), ("retired", 1)]


async def test_a_rollback_while_a_run_is_under_way_is_refused(changed: World):
    run, _ = await changed.app.runs.enqueue("project", "http")
    claimed = await changed.app.runs.claim("pod-b:1:0", 60.0, run_id=run.id)
    assert claimed is not None
    async with serving(changed.app) as client:
        answer = await client.post(f"{API}/repositories/project/index/rollback")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "RUN_STATE_CONFLICT")
    assert run.id in answer.json()["error"]["message"]


async def test_a_paused_index_says_so_and_readers_may_not_touch_it(changed: World):
    async with serving(changed.app, f"operate:{OPERATOR}", f"read:{READER}") as client:
        path = f"{API}/repositories/project/index"
        reads, operates = ({"Authorization": f"Bearer {token}"} for token in (READER, OPERATOR))
        for what in ("rollback", "pause", "resume"):
            assert (await client.post(f"{path}/{what}", headers=reads)).status_code == 403
            assert (await client.post(f"{path}/{what}")).status_code == 401
        paused = await client.post(f"{path}/pause", headers=operates)
        assert (paused.status_code, paused.json()["hold"]["reason"]) == (200, "paused")
        assert (await client.get(path, headers=reads)).json()["hold"]["reason"] == "paused"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/repositories/projekt/index", 404, "REPOSITORY_NOT_FOUND"),
        ("POST", "/repositories/projekt/index/rollback", 404, "REPOSITORY_NOT_FOUND"),
        ("POST", "/repositories/projekt/index/pause", 404, "REPOSITORY_NOT_FOUND"),
        ("POST", "/repositories/project/index/rollback", 422, "USAGE"),
        ("GET", "/repositories/project/index/rollback", 405, "METHOD_NOT_ALLOWED"),
    ],
)
async def test_what_cannot_be_done_with_an_index_says_why(
    world: World,  # noqa: F811
    method: str,
    path: str,
    status: int,
    code: str,
):
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    async with serving(world.app) as client:
        answer = await client.request(method, API + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


# Files that could not be read ---------------------------------------------------------------------------------------


@pytest.fixture
async def damaged(world: World) -> World:  # noqa: F811
    """Two of the files that changed cannot be read; of `old.py` there is an older state, of `new.py` none."""
    world.repository.commit({"old.py": b"def remove_sessions(): pass\n", "fine.py": b"x = 1\n"})
    await world.completed()
    world.repository.commit(
        {"old.py": b"def remove_sessions(): return 2\n", "new.py": b"y = 1\n", "fine.py": b"x = 2\n"}
    )
    lose(world.repository, "old.py", "new.py")
    return world


async def test_a_run_says_how_many_files_failed_and_which(damaged: World):
    run = await damaged.completed()
    async with serving(damaged.app) as client:
        shown = (await client.get(f"{API}/runs/{run.id}")).json()
        failed = (await client.get(f"{API}/runs/{run.id}/problems", params={"reason": "failed"})).json()
        repository = (await client.get(f"{API}/repositories/project")).json()
        (of_index,) = (await client.get(f"{API}/index")).json()["items"]

    assert (shown["status"], shown["files_failed"], shown["error_code"]) == ("completed", 2, "FILES_FAILED")
    assert [(each["path"], each["reason"]) for each in failed["items"]] == [("new.py", "failed"), ("old.py", "failed")]
    assert repository["failed"] == 2
    assert (of_index["live"]["failed"], of_index["live"]["partial_commit"]) == (2, damaged.repository.head())
    assert of_index["live"]["commit"] != damaged.repository.head()


async def test_a_hit_of_a_file_that_could_not_be_read_is_marked_as_outdated(damaged: World):
    await damaged.completed()
    async with serving(damaged.app) as client:
        hits = (await client.get(f"{API}/search", params={"q": "remove sessions"})).json()["items"]
    assert {hit["path"]: hit["outdated"] for hit in hits} == {"old.py": True, "fine.py": False}


async def test_waiting_for_a_commit_with_unreadable_files_says_how_many(damaged: World):
    await damaged.completed()
    head = damaged.repository.head()
    async with serving(damaged.app) as client:
        answer = await client.get(f"{API}/repositories/project/wait", params={"commit": head, "timeout": 0})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (504, "NOT_SEARCHABLE_YET")
    assert "2 files of this commit could not be read" in error["details"]["limit"]
    assert "2 files of this commit could not be read" in error["message"]


async def test_what_a_run_was_blocked_for_is_told_with_its_counts(world: World):  # noqa: F811
    world.repository.many(43)
    await world.completed()
    world.repository.commit({"a.py": b"x = 1\n"}, replace=True)
    run = await world.sync()
    async with serving(world.app) as client:
        shown = (await client.get(f"{API}/runs/{run.id}")).json()

    assert (shown["status"], shown["error_code"]) == ("blocked", "DELETION_BLOCKED")
    assert shown["brake"] == {
        "commit": world.repository.head(),
        "planned": {"vanished": 43},
        "losses": {"vanished": 43},
        "indexed": 43,
    }


async def test_figures_of_metrics_follow_the_versions_and_the_failed_files(damaged: World):
    await damaged.completed()
    assert await failed_files(damaged.app) == {"project": 2}
    assert await version_states(damaged.app.database) == {"building": 0, "live": 1, "retired": 0}
    (change,) = await collection_changes(damaged.app)
    found: dict[str, Any] = change.repositories
    assert found == {"done": 1, "building": 0, "waiting": 0, "held": 0, "unknown": 0}
