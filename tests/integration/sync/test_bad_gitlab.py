"""GitLab, or a proxy before it, answers with status 200 and something else than was requested: nothing is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.gitlab_world import GitLabWorld
from tests.fixtures.repositories import Content
from tests.integration.sync.test_bad_answers import exact, failing, kept, some

pytestmark = pytest.mark.full

MISSING = '{"message":"404 Blob Not Found"}'
PAGE_BYTES = 500
Fault = Callable[[GitLabWorld], object]


@pytest.fixture
def world(gitlab_world: GitLabWorld) -> GitLabWorld:
    return gitlab_world


def web_pages(world: GitLabWorld) -> None:
    world.server.faults.web_page(PAGE_BYTES)


def missing_blobs(world: GitLabWorld, path: str = "/blobs/.*/raw") -> None:
    world.server.faults.answer(404, MISSING, media_type="application/json", path=path, times=None)


# Contents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changed", "fault"), [(3, web_pages), (19, web_pages), (60, missing_blobs)])
async def test_a_server_that_gives_no_content_fails_the_run_and_takes_nothing(
    world: GitLabWorld, changed: int, fault: Fault
):
    world.repository.commit(some(60))
    await world.completed()
    before = await world.points()
    world.repository.commit(some(changed, value=2))
    world.server.faults.refuse_git(403)
    fault(world)
    for _ in range(2 if fault is missing_blobs else 1):
        run = await world.sync()
        assert (run.status, run.error_code) == ("failed", "SOURCE_CORRUPT")
        assert f"{changed} of {changed} files cannot be read" in (run.error_message or "")
        assert await world.points() == before
    world.server.faults.clear()
    assert (await exact(world)).files_processed == changed


# Listings ------------------------------------------------------------------------------------------------------------


def without(*paths: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda rows: [row for row in rows if row["path"] not in paths]


async def test_a_listing_that_cannot_be_proven_deletes_nothing_and_a_proven_one_settles_all(world: GitLabWorld):
    world.repository.commit({**some(4), "yarn.lock": b"x 1\n", "link.bin": b"\x00\x01" * 9})
    await world.completed()
    old = await world.indexed()
    changed: dict[str, Content] = {"f00.py": b"changed = 1\n", "f03.py": None}
    world.repository.commit(changed)
    world.repository.sign()
    new = await world.expected()
    world.server.faults.refuse_git(403)
    world.server.faults.edit_rows(without("f01.py", "yarn.lock", "link.bin"))
    lacking = ("f01.py", "f03.py", "yarn.lock", "link.bin")
    run = await failing(world, *lacking)
    problems = await world.app.runs.problems(run.id)
    assert {each.path for each in problems} == set(lacking)
    assert all("cannot be proven to be complete" in each.detail for each in problems)
    assert await world.indexed() == old | {"f00.py": new["f00.py"]}
    assert (await world.app.searching.search("value_3", limit=1))[0].outdated, "nobody knows"

    await failing(world, *lacking)
    world.server.faults.clear()
    await world.completed()
    assert (await kept(world)).failed == set()
    assert set(await world.indexed()) == {"f00.py", "f01.py", "f02.py"}


async def test_an_index_that_is_built_from_a_listing_that_cannot_be_proven_keeps_what_the_live_one_has(
    world: GitLabWorld,
):
    world.repository.commit(some(4))
    await world.completed()
    world.repository.commit({"f00.py": b"changed = 1\n"})
    world.repository.sign()
    world.server.faults.refuse_git(403)
    world.server.faults.edit_rows(without("f01.py"))
    world.configure(more="chunk: {size: 300, overlap: 50}")
    async with world.opened():
        for _ in range(2):
            await failing(world, "f01.py")
            assert set(await world.indexed()) == set(some(4))
        world.server.faults.clear()
        await exact(world)
