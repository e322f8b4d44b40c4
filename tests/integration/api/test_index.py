"""Versions of indexes over HTTP, and what runs, hits and waits say of files that could not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from reposync.app.index_overview import collection_changes, failed_files
from reposync.store.index_queries import version_summaries
from tests.fixtures.missing_blobs import lose
from tests.fixtures.world import World
from tests.integration.api.serving import serving

API = "/api/v1"
KEEP = "index: {keep_retired: 24h}\n"
CODE = b"".join(b"def handler_%d(request):\n    return request.session.token\n\n" % number for number in range(40))


@pytest.fixture
async def changed(closed_world: World) -> AsyncIterator[World]:
    """An index whose chunk size was changed once, and whose version before is kept."""
    closed_world.configure(extra=KEEP)
    closed_world.repository.commit({"a.py": CODE, "b.py": b"x = 1\n"})
    async with closed_world.opened():
        await closed_world.completed()
    closed_world.configure(size=1600, extra=KEEP)
    async with closed_world.opened():
        await closed_world.completed()
        yield closed_world


async def test_the_versions_of_an_index_have_their_settings(changed: World):
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
    assert before["id"] != found["live"]["id"], "by which the points of the live version can be selected"
    assert before["removed_after"] > before["retired_at"]
    (change,) = page["collections"]
    assert (change["collection"], change["repositories"]["done"]) == (changed.collection, 1)


# Files that could not be read ---------------------------------------------------------------------------------------


async def test_files_that_could_not_be_read_are_reported_everywhere(world: World):
    """`old.py` is indexed at an older commit, `new.py` is not."""
    world.repository.commit({"old.py": b"def remove_sessions(): pass\n", "fine.py": b"x = 1\n"})
    await world.completed()
    changes = {"old.py": b"def remove_sessions(): return 2\n", "new.py": b"y = 1\n", "fine.py": b"x = 2\n"}
    head = world.repository.commit(changes)
    lose(world.repository, "old.py", "new.py")
    run = await world.completed()
    async with serving(world.app) as client:
        shown = (await client.get(f"{API}/runs/{run.id}")).json()
        failed = (await client.get(f"{API}/runs/{run.id}/problems", params={"reason": "failed"})).json()
        repository = (await client.get(f"{API}/repositories/project")).json()
        (of_index,) = (await client.get(f"{API}/index")).json()["items"]
        hits = (await client.get(f"{API}/search", params={"q": "remove sessions"})).json()["items"]
        wait = await client.get(f"{API}/repositories/project/wait", params={"commit": head, "timeout": 0})

    assert (shown["status"], shown["files_failed"], shown["error_code"]) == ("completed", 2, "FILES_FAILED")
    assert [(each["path"], each["reason"]) for each in failed["items"]] == [("new.py", "failed"), ("old.py", "failed")]
    assert repository["failed"] == 2
    assert (of_index["live"]["failed"], of_index["live"]["partial_commit"]) == (2, head)
    assert of_index["live"]["commit"] != head
    assert {hit["path"]: hit["outdated"] for hit in hits} == {"old.py": True, "fine.py": False}
    error = wait.json()["error"]
    assert (wait.status_code, error["code"]) == (504, "NOT_SEARCHABLE_YET")
    for words in (error["details"]["limit"], error["message"]):
        assert "2 files of this commit could not be read" in words
    versions = await version_summaries(world.app.database)
    assert await failed_files(world.app, versions) == {"project": 2}
    assert [version.state for version in versions] == ["live"]
    (change,) = collection_changes(world.app, versions)
    assert change.repositories == {"done": 1, "building": 0, "waiting": 0, "unknown": 0}
