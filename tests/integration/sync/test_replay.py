"""Questions of the history, searched in the state before their changes: a throwaway index, nothing of the real one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path

import pytest

from reposync.app.history_evaluation import MAX_STATES, evaluate_history
from reposync.app.replay import FOLDER, open_replay
from reposync.errors import NoQuestions
from reposync.vectors.embedded import EmbeddedEngine, read_record
from tests.fixtures.missing_blobs import unreadable
from tests.fixtures.world import World

CHANGES = (
    ("billing/coupons.py", "Count how often a coupon was used"),
    ("billing/rates.py", "Convert amounts between currencies"),
    ("billing/taxes.py", "Apply the right percentage for a country"),
)


def commit_all(world: World) -> list[str]:
    """Files that are there from the start, then a change of each, which brings the words of its subject."""
    repository = world.repository
    shas = [repository.commit({path: b"value = 1\n" for path, _ in CHANGES}, message="Start with nothing much")]
    for path, subject in CHANGES:
        code = f"def {subject.lower().replace(' ', '_')}():\n    return 1\n".encode()
        shas.append(repository.commit({path: code}, message=subject))
    return shas


def folders(world: World) -> list[Path]:
    return list((world.folder / "state" / FOLDER).glob("*"))


async def test_the_head_has_the_changes_and_the_state_before_has_not(world: World) -> None:
    shas = commit_all(world)
    async with world.opened():
        await world.completed()
        at_head = await evaluate_history(world.app, "project", 10)
        before = await evaluate_history(world.app, "project", 10, replay=True)

    assert (at_head.states, at_head.commit, at_head.questions) == (0, shas[-1], 3)
    assert at_head.by["words"].mrr.mean == 1.0, "each file has the words of its subject by now"
    assert (before.states, before.commit, before.questions) == (3, shas[-2], 3)
    assert before.by["words"].mrr.mean < 1.0
    assert set(before.by) == {"words", "meaning", "both"} and before.model == "test/words"
    assert {each.question for each in before.answers} == {subject for _, subject in CHANGES}


async def test_the_newest_commit_is_searched_also_if_a_file_of_it_could_not_be_read(world: World) -> None:
    commit_all(world)
    async with world.opened():
        await world.completed()
        newest = world.repository.commit({"a.py": b"one = 1\n", "b.py": b"two = 2\n"}, message="Write the numbers down")
        with unreadable(world.repository, "a.py"):
            await world.sync()
            found = await evaluate_history(world.app, "project", 10)

    assert found.commit == newest
    assert [each.paths for each in found.answers if each.commit == newest] == [["b.py"]]


async def test_a_state_holds_exactly_the_files_of_its_commit_and_follows_the_one_before(world: World) -> None:
    first, second, *_ = commit_all(world)
    removed = world.repository.commit({"billing": None, "other.py": b"value = 1\n"}, replace=True)
    async with world.opened():
        await world.completed()
        async with open_replay(world.app, await world.app.catalog.find("project")) as replay:
            for sha in (first, second, removed, first):
                version = await replay.bring_to(sha)
                rows = await replay.app.manifests.load(version.id)
                assert {path: row.blob_sha for path, row in rows.items()} == await world.expected(sha)


async def test_a_replay_touches_nothing_of_the_real_index_and_leaves_nothing(world: World) -> None:
    commit_all(world)
    async with world.opened():
        await world.completed()
        points, runs = await world.points(), await world.app.history.runs("project", limit=10)
        await evaluate_history(world.app, "project", 10, replay=True)

        assert await world.points() == points
        assert await world.app.history.runs("project", limit=10) == runs
        assert folders(world) == []


async def test_a_replay_that_is_cancelled_leaves_nothing(world: World) -> None:
    first, *_ = commit_all(world)
    async with world.opened():
        await world.completed()
        target = await world.app.catalog.find("project")
        built, engines = asyncio.Event(), list[int]()

        async def replaying() -> None:
            async with open_replay(world.app, target) as replay:
                await replay.bring_to(first)
                engines.extend(record["pid"] for each in folders(world) if (record := read_record(each / "index")))
                built.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(replaying())
        await built.wait()
        assert len(folders(world)) == len(engines) == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    assert folders(world) == []
    with pytest.raises(ProcessLookupError):
        os.kill(engines[0], 0)


async def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_is_not(world: World) -> None:
    first, *_ = commit_all(world)
    state = world.folder / "state" / FOLDER
    async with world.opened():
        await world.completed()
        for name in ("killed", "living"):
            (state / name).mkdir(parents=True)
            (state / name / "replay.lock").touch()
        left = EmbeddedEngine(state / "killed")
        await left.address()
        with (state / "living" / "replay.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            async with open_replay(world.app, await world.app.catalog.find("project")) as replay:
                await replay.bring_to(first)
                assert not (state / "killed").exists()

            assert [each.name for each in folders(world)] == ["living"]


async def test_files_that_came_later_are_left_out_and_counted(world: World) -> None:
    world.repository.commit({"a.py": b"1\n"}, message="Start with nothing much")
    world.repository.commit({"b.py": b"1\n"}, message="Write the words down")
    async with world.opened():
        await world.completed()
        with pytest.raises(NoQuestions, match="1 files are not there"):
            await evaluate_history(world.app, "project", 10, replay=True)

        world.repository.commit({"a.py": b"2\n"}, message="Change what was there before")
        await world.completed()
        found = await evaluate_history(world.app, "project", 10, replay=True)

    assert found.left_out == {"first": 1, "deleted": 1}
    assert [each.paths for each in found.answers] == [["a.py"]]


async def test_with_more_questions_than_states_each_state_has_none_of_the_changes_of_its_questions(
    world: World,
) -> None:
    # No name of a file is in a question: it would be found by that.
    paths = [f"part_{number}.py" for number in range(100, 104 + MAX_STATES)]
    world.repository.commit(dict.fromkeys(paths, b"value = 1\n"), message="Start with nothing much")
    for path in paths:
        subject = f"Compute answer {int(path[5:-3]) - 100} of all of them"
        code = f"def {subject.lower().replace(' ', '_')}(): pass\n".encode()
        world.repository.commit({path: code}, message=subject)
    async with world.opened():
        await world.completed()
        found = await evaluate_history(world.app, "project", 100, replay=True)

    assert (found.questions, found.states) == (MAX_STATES + 4, (MAX_STATES + 4) // 2)
    assert not any(each.first["words"] in each.paths and each.ranks["words"] == [1] for each in found.answers)
