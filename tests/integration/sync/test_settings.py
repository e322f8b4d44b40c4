"""A change of settings changes the index to what a fresh sync would make, and embeds no text again that it has."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reposync.sources.local import LocalGitSource
from reposync.sources.spec import LocalGit
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncSettings, read_target
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World, comparable
from tests.integration.sync.test_exactness import CODE, module


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_file_that_cannot_be_chunked_anew_keeps_its_old_chunks_and_is_tried_again(
    closed_world: World, tries: int
):
    world = closed_world
    world.repository.commit({"a.py": module("a"), "b.py": CODE})
    async with world.opened():
        await world.completed()
        before = await world.points()
    world.configure(size=2000, overlap=100)
    async with world.opened():
        for _ in range(tries):
            # The two new chunks of a.py, then the first of them.
            world.embeddings.answer_next(400, times=2)
            assert (await world.completed()).files_failed == 1
            assert len(await world.points()) == len(before)
        assert (await world.completed()).files_failed == 0
        assert len(await world.points()) < len(before)
        assert await world.indexed() == await world.expected()


async def test_an_excluded_folder_loses_its_points_and_comes_back_when_the_rule_goes(closed_world: World):
    world = closed_world
    world.repository.commit({"a.py": CODE, "gen/b.py": module("b")})
    async with world.opened():
        await world.completed()
        before = comparable(await world.points())
    world.configure(more='exclude: ["gen/"]')
    async with world.opened():
        run = await world.completed()
        assert set(await world.indexed()) == {"a.py"}
        assert await world.app.runs.count_problems(run.id) == {"excluded": 1}
    world.configure()
    async with world.opened():
        await world.completed()
        assert comparable(await world.points()) == before


async def test_gitattributes_decide_and_are_followed_when_they_change(world: World):
    world.repository.commit({".gitattributes": b"api/** linguist-generated\n", "api/x.py": CODE, "a.py": module("a")})
    await world.completed()
    assert "api/x.py" not in await world.indexed()
    world.repository.commit({".gitattributes": None})
    await world.completed()
    assert "api/x.py" in await world.indexed()


async def test_a_full_sync_reads_everything_and_embeds_nothing_that_is_known(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b")})
    await world.completed()
    before = comparable(await world.points())
    world.embeddings.forget()
    run = await world.completed(full=True)
    assert run.files_processed == 2
    assert world.embeddings.log == []
    assert comparable(await world.points()) == before


async def test_a_plan_tells_what_a_sync_would_do_and_writes_nothing(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b"), "c.py": CODE + b"# c\n"})
    registered = await world.app.repositories.list()
    plan = await world.preview()
    assert (plan.files_to_store, plan.files_unchanged, plan.commit_before) == (3, 0, None)
    assert plan.chunks_to_embed == plan.chunks
    assert await world.app.repositories.list() == registered
    assert await world.app.runs.history() == []
    assert world.embeddings.log == [] or all(each.inputs == 1 for each in world.embeddings.log)
    run = await world.completed()
    assert run.chunks_embedded == plan.chunks_to_embed

    world.repository.commit({"a.py": None, "c.py": None, "d.py": CODE, "b.py": module("b", 61)})
    plan = await world.preview()
    before = await world.points()
    assert (plan.files_to_store, plan.files_to_delete, plan.files_renamed) == (2, 2, 1)
    assert await world.points() == before
    run = await world.completed()
    assert (run.chunks_embedded, run.files_deleted) == (plan.chunks_to_embed, 2)
    assert (await world.preview()).files_to_read == 0


async def test_two_repositories_of_one_collection_leave_each_other_alone(closed_world: World, tmp_path):
    from tests.fixtures.repositories import GitRepository

    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"a.py": CODE, "x.py": module("x")})
    closed_world.configure(extra=f'  - {{name: other, path: "{other.path}"}}\n')
    closed_world.repository.commit({"a.py": CODE})
    async with closed_world.opened() as world:
        await world.completed("project")
        world.embeddings.forget()
        await world.completed("other")
        assert sum(each.inputs for each in world.embeddings.log) < 12, "a.py is known from the other repository"
        other.commit({"a.py": None})
        await world.completed("other")
        assert {(each["repository"], each["path"]) for each in await world.metadata()} == {
            ("project", "a.py"),
            ("other", "x.py"),
        }


async def test_a_run_is_cancelled_in_the_middle_of_slow_patterns(tmp_path: Path):
    """All paths take many minutes. The only thread that there is shows that it is free again."""
    repository = GitRepository.create(tmp_path / "slow.git")
    repository.commit({"a/" * 2000 + f"a{number}": b"x" for number in range(3000)})
    slow = (f"**/{'*a*/' * 245}b/**/c",) * 50
    settings = SyncSettings(str(repository.path), None, None, (), slow, ContentSettings(400, 80, 1000))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as alone:
        loop.set_default_executor(alone)
        source = LocalGitSource(LocalGit(repository.path))
        planning = asyncio.create_task(read_target(source, settings, await source.head(), {}))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(planning, 3)

        await asyncio.to_thread(time.monotonic)
        await source.close()
