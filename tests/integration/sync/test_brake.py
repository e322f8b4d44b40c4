"""A run that would take most of an index away stops, says why, and goes on when a person approves just that."""

from collections.abc import Mapping

import pytest

from reposync.store.run import Ask, Run
from reposync.store.status import FINAL, RunTrigger
from tests.fixtures.gitlab_world import GitLabWorld
from tests.fixtures.repositories import Content
from tests.fixtures.world import World

WITHOUT_MODEL = "embedding: {provider: none}"


def sources(count: int, folder: str = "src", value: int = 1) -> dict[str, Content]:
    return {f"{folder}/m{number:03}.py": b"value_%d = %d\n" % (number, value) for number in range(count)}


@pytest.fixture
def quick_world(closed_world: World) -> World:
    """Without a model, which has no part in this."""
    reconfigured(closed_world)
    return closed_world


def reconfigured(world: World, more: str = "") -> None:
    world.configure(more=more)
    registry = world.folder / "repositories.yaml"
    lines = [WITHOUT_MODEL if line.startswith("embedding:") else line for line in registry.read_text().splitlines()]
    registry.write_text("\n".join(lines))


async def blocked(world: World, counts: Mapping[str, int], *, approved: bool = False) -> Run:
    """A sync that has to stop at these losses, and to leave everything in the index as it was."""
    before = await world.indexed()
    run = await world.sync(approved=approved)
    return await has_stopped(world, run, counts, before)


async def has_stopped(world: World, run: Run, counts: Mapping[str, int], before: Mapping[str, object]) -> Run:
    assert (run.status, run.error_code) == ("blocked", "DELETION_BLOCKED"), run.error_message
    assert run.brake is not None
    assert run.brake["losses"] == counts
    assert f"{sum(counts.values())} of the {run.brake['indexed']} indexed files of project" in message(run)
    assert (await world.indexed()).keys() == before.keys()
    return run


async def approved(world: World, run: Run) -> Run:
    """The blocked run, after a person approved it and a worker took it up."""
    run = await world.app.runs.approve(run.id, Ask(RunTrigger.COMMAND))
    assert run.status not in FINAL
    ended = await world.sync()
    assert ended.id == run.id
    return ended


def message(run: Run) -> str:
    return run.error_message or ""


# What stops ----------------------------------------------------------------------------------------------------------


async def test_a_rule_pushed_in_gitattributes_stops_and_is_named_with_its_file(quick_world: World):
    world = quick_world
    world.repository.commit(sources(110))
    async with world.opened():
        await world.completed()
        world.repository.commit({".gitattributes": b"* linguist-vendored\n"})
        run = await blocked(world, {"vendored": 110})
        assert "the rule `* linguist-vendored` of .gitattributes" in message(run)
        (behind,) = await world.app.repositories.states()
        assert behind.behind_since is not None
        assert behind.head_commit == world.repository.head()
        ended = await approved(world, run)
        assert (ended.status, ended.error_code) == ("completed", None)
        (state,) = await world.app.repositories.states()
        assert (state.behind_since, state.last_commit) == (None, behind.head_commit)
        assert await world.indexed() == {}


async def test_a_mistyped_include_pattern_stops_and_is_named(quick_world: World):
    world = quick_world
    world.repository.commit(sources(110))
    async with world.opened():
        await world.completed()
    reconfigured(world, 'include: ["scr/**"]')
    async with world.opened():
        run = await blocked(world, {"not_included": 110})
        assert "`include: ['scr/**']` of the registry matches no path like src/m000.py" in message(run)
        assert "reposync sync project --allow-mass-delete" in message(run)
        assert len(await world.app.searching.search("value", limit=200)) == 110
    reconfigured(world, 'include: ["src/**"]')
    async with world.opened():
        assert (await world.completed()).files_deleted == 0


async def test_a_changed_default_branch_is_named_as_the_cause(gitlab_world: GitLabWorld):
    world = gitlab_world
    world.repository.commit(sources(30))
    world.repository.commit({"only.py": b"x = 1\n"}, branch="dev", parents=[])
    world.repository.commit({"only.py": b"y = 1\n"}, branch="next", parents=[])
    await world.completed()
    world.repository.set_head("dev")
    run = await blocked(world, {"vanished": 30})
    assert "the default branch changed from main to dev" in message(run)
    assert (await approved(world, run)).status == "completed"
    assert set(await world.indexed()) == {"only.py"}

    world.repository.commit(sources(30), branch="dev")
    await world.completed()
    world.repository.set_head("next")
    assert "the default branch changed from dev to next" in message(await blocked(world, {"vanished": 30}))


async def test_a_branch_that_changed_before_the_last_runs_is_not_named_as_the_cause(gitlab_world: GitLabWorld):
    world = gitlab_world
    world.repository.commit(sources(30))
    await world.completed()
    world.repository.commit({"src/new.py": b"x = 1\n"}, branch="trunk", parents=[world.repository.head() or ""])
    world.repository.set_head("trunk")
    await world.completed()
    world.repository.commit(dict.fromkeys(sources(30)), branch="trunk")

    assert "branch changed" not in message(await blocked(world, {"vanished": 30}))


# What turns out in reading -------------------------------------------------------------------------------------------


async def test_files_that_turn_out_to_be_too_large_keep_their_points_until_a_person_approves(quick_world: World):
    world = quick_world
    world.repository.commit(sources(40))
    async with world.opened():
        await world.completed()
        large: dict[str, Content] = {path: b"# %d\n" % at + b"x" * 100_000 for at, path in enumerate(sources(25))}
        world.repository.commit(large | {"src/m030.py": b"changed = 1\n"})
        run = await blocked(world, {"too_large": 25})
        assert "25 are too large now" in message(run)
        assert "100,004 bytes" in message(run), "one of them stands for all"
        assert len(await world.indexed()) == 40
        ended = await approved(world, run)
        assert (ended.status, await world.app.history.count_problems(ended.id)) == ("completed", {"too_large": 25})
        expected = await world.expected()
        assert await world.indexed() == {path: expected[path] for path in expected.keys() - large.keys()}


async def test_a_lower_limit_is_built_beside_and_takes_nothing_before_a_person_approves(quick_world: World):
    world = quick_world
    long: dict[str, Content] = {f"src/long{at}.py": b"# %d\n" % at + b"word " * 300 for at in range(25)}
    world.repository.commit(sources(10) | long)
    async with world.opened():
        await world.completed()
    reconfigured(world)
    world.edit_registry("max_file_bytes: 100000", "max_file_bytes: 1000")
    async with world.opened():
        run = await blocked(world, {"too_large": 25})
        assert "bytes" in message(run)
        found = {hit.path for hit in await world.app.searching.search("word", limit=200)}
        assert found == set(long)
        assert (await approved(world, run)).status == "completed"
        assert set(await world.indexed()) == set(sources(10))


# What an approval is good for ----------------------------------------------------------------------------------------


async def test_an_ordinary_sync_after_a_blocked_one_asks_again(quick_world: World):
    world = quick_world
    world.repository.commit(sources(30))
    async with world.opened():
        await world.completed()
        world.repository.commit(dict.fromkeys(sources(29)))
        first = await blocked(world, {"vanished": 29})
        before = await world.indexed()

        again = await world.sync()

        assert (again.status, again.error_code) == ("cancelled", "DELETION_BLOCKED")
        assert f"Run {first.id} waits for a person" in message(again)
        await has_stopped(world, await world.app.history.get(first.id), {"vanished": 29}, before)
