"""A whole sync from GitLab, counted in requests that reach the server."""

import pytest

from reposync.app.verification import Verification
from tests.fixtures.gitlab_world import TOKEN, GitLabWorld
from tests.fixtures.repositories import Content
from tests.integration.sync.test_bad_answers import failing, kept, some


@pytest.fixture
def world(gitlab_world: GitLabWorld) -> GitLabWorld:
    return gitlab_world


@pytest.mark.full
async def test_ten_thousand_files_cost_few_calls_first_and_fewer_later(world: GitLabWorld):
    world.repository.many(10_000)
    run = await world.completed()
    assert run.files_processed == 10_000
    assert world.rest() <= 3
    assert world.git_requests() <= 3 * 5, "3 git requests for each 2,000 blobs"

    world.forget()
    run = await world.completed()
    assert run.files_processed == 0
    assert (world.rest(), world.git_requests()) == (1, 0), "nothing changed: one call"

    world.repository.commit({"src/part_000/module_00001.py": b"def answer():\n    return 'changed'\n"})
    world.forget()
    run = await world.completed()
    assert run.files_processed == 1
    assert world.rest() + world.git_requests() <= 3
    assert len(await world.indexed()) == 10_000
    assert await world.indexed() == await world.expected()


@pytest.mark.parametrize("status", [401, 404, 502])
async def test_a_project_that_does_not_answer_rightly_loses_nothing(world: GitLabWorld, status: int):
    world.repository.commit({"a.py": b"a = 1\n", "b.py": b"b = 1\n"})
    await world.completed()
    before = await world.points()
    world.server.faults.answer(status, path="/api/v4/.*", times=None)
    run = await world.sync()
    assert run.status == "failed"
    assert run.error_code in {"SOURCE_DENIED", "SOURCE_GONE", "SOURCE_UNAVAILABLE"}
    assert TOKEN not in str(run)
    assert await world.points() == before
    world.server.faults.clear()
    assert (await world.completed()).files_processed == 0


@pytest.mark.parametrize("size_bytes", [500])
async def test_a_login_page_in_place_of_gitattributes_is_no_lack_of_rules(world: GitLabWorld, size_bytes: int):
    world.repository.commit({"a.py": b"a = 1\n", "made.py": b"made = 1\n"})
    await world.completed()
    world.repository.commit({".gitattributes": b"made.py linguist-generated\n"})
    before = await world.points()
    world.server.faults.web_page(size_bytes)
    run = await world.sync()
    assert (run.status, run.error_code) == ("failed", "SOURCE_CORRUPT")
    assert await world.points() == before
    world.server.faults.clear()
    await world.completed()
    assert "made.py" not in await world.indexed()


async def test_a_project_without_a_commit_fails_in_words_and_the_first_push_is_picked_up(world: GitLabWorld):
    run = await world.sync()
    assert (run.status, run.error_code) == ("failed", "REPOSITORY_EMPTY")
    world.repository.commit({"a.py": b"a = 1\n"})
    await world.completed()
    assert set(await world.indexed()) == {"a.py"}


@pytest.mark.full
async def test_a_listing_that_cannot_be_proven_deletes_nothing_and_a_proven_one_settles_all(world: GitLabWorld):
    world.repository.commit({**some(4), "yarn.lock": b"x 1\n", "link.bin": b"\x00\x01" * 9})
    await world.completed()
    old = await world.indexed()
    changed: dict[str, Content] = {"f00.py": b"changed = 1\n", "f03.py": None}
    world.repository.commit(changed)
    world.repository.sign()
    new = await world.expected()
    world.server.faults.refuse_git(403)
    missing = ("f01.py", "yarn.lock", "link.bin")
    world.server.faults.edit_rows(lambda rows: [row for row in rows if row["path"] not in missing])
    lacking = ("f01.py", "f03.py", "yarn.lock", "link.bin")
    run = await failing(world, *lacking)
    problems = await world.app.history.problems(run.id)
    assert {each.path for each in problems} == set(lacking)
    assert all("cannot be proven to be complete" in each.detail for each in problems)
    assert await world.indexed() == old | {"f00.py": new["f00.py"]}
    assert (await world.app.searching.search("value_3", limit=1))[0].outdated, "nobody knows"

    verdict = await Verification(world.app, against_source=True).verify("project")
    doubted = {each.path for each in verdict.differences if "cannot be proven" in each.what}
    assert doubted == set(lacking)
    world.configure(more="chunk: {size: 300, overlap: 50}")
    async with world.opened():
        for _ in range(2):
            # The rows of files without points are not taken over.
            run = await world.completed()
            assert run.error_code == "FILES_FAILED"
            assert {"f01.py", "f03.py"} <= {each.path for each in await world.app.history.problems(run.id)}
            assert {"f01.py", "f03.py"} <= (await kept(world)).failed
            assert await world.indexed() == old | {"f00.py": new["f00.py"]}, "what is built beside keeps them too"
        world.server.faults.clear()
        await world.completed()
        assert (await kept(world)).failed == set()
        assert set(await world.indexed()) == {"f00.py", "f01.py", "f02.py"}


async def test_a_root_folder_that_comes_with_different_rows_the_second_time_is_corrupt(world: GitLabWorld):
    world.repository.commit(some(4))
    await world.completed()
    before = await world.indexed()
    world.repository.commit({"new.py": b"new = 1\n"})
    world.repository.sign()
    world.server.faults.refuse_git(403)
    world.server.faults.edit_rows(lambda rows: [row for row in rows if row["path"] != "new.py"], times=1)

    run = await world.sync()

    assert (run.status, run.error_code) == ("failed", "SOURCE_CORRUPT")
    assert "root folder" in str(run.error_message)
    assert await world.indexed() == before
