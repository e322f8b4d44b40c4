"""What cannot be read or embedded is no deletion: it keeps its points, the history says so, and it is read later."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from reposync.runs.endings import ExecutionPolicy
from reposync.store.manifest import ManifestRow
from reposync.store.run import Ask, Run
from reposync.store.status import FINAL, RunTrigger
from reposync.store.tables import IndexVersion
from tests.fixtures.missing_blobs import unreadable
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import CODE, module
from tests.integration.sync.test_index_versions import another_chunk_size, another_collection

pytestmark = pytest.mark.full

FILES = {"a.py": CODE, "b.py": module("b", 20), "c.py": b"c = 1\n"}


@dataclass(frozen=True)
class Kept:
    """What the database records about the index."""

    last_commit: str | None
    version: IndexVersion
    rows: dict[str, ManifestRow]

    @property
    def failed(self) -> set[str]:
        return {path for path, row in self.rows.items() if row.is_failed}


async def kept(world: World) -> Kept:
    row = await world.app.repositories.get("project")
    version = next(each for each in await world.app.versions.of(row.id) if each.state == "live")
    return Kept(row.last_commit, version, await world.app.manifests.load(version.id))


async def failing(world: World, *paths: str) -> Run:
    """A sync that has to end with these files not read."""
    run = await world.completed()
    assert (run.error_code, run.files_failed) == ("FILES_FAILED", len(paths))
    assert (await kept(world)).failed == set(paths)
    assert await world.app.history.count_problems(run.id) == {"failed": len(paths)}
    return run


async def exact(world: World) -> Run:
    """A sync after which the index is what the commit is, and nothing else is said."""
    run = await world.completed()
    assert (run.error_code, run.error_message, run.files_failed) == (None, None, 0)
    now = await kept(world)
    assert now.last_commit == now.version.commit_sha == world.repository.head("main")
    assert (now.version.partial_commit, now.failed) == (None, set())
    assert await world.indexed() == await world.expected()
    return run


# One file ------------------------------------------------------------------------------------------------------------


async def test_a_file_that_cannot_be_read_keeps_its_points_and_is_read_by_the_next_sync(world: World):
    first = world.repository.commit(FILES)
    await world.completed()
    old = await world.indexed()
    second = world.repository.commit({"a.py": b"def answer():\n    return 43\n", "c.py": b"c = 2\n"})
    new = await world.expected()
    with unreadable(world.repository, "a.py"):
        run = await failing(world, "a.py")
        assert run.files_processed == 1
        assert "1 file of commit" in (run.error_message or "")
        assert await world.indexed() == new | {"a.py": old["a.py"]}
        now = await kept(world)
        assert now.rows["a.py"].wanted_sha == new["a.py"]
        assert (now.last_commit, now.version.commit_sha, now.version.partial_commit) == (first, first, second)
        hits = {hit.path: hit.outdated for hit in await world.app.searching.search("answer return c b value", limit=50)}
        assert hits == {"a.py": True, "b.py": False, "c.py": False}

        world.embeddings.forget()
        again = await failing(world, "a.py")
        assert again.files_processed == 0
        assert world.embeddings.log == []
    run = await exact(world)
    assert run.files_processed == 1
    assert not any(hit.outdated for hit in await world.app.searching.search("answer", limit=50))


async def test_half_a_file_that_cannot_be_read_again_is_taken_out(world: World):
    world.repository.commit(FILES)
    await world.completed()
    of_b = [key for key, point in (await world.points()).items() if point["payload"]["metadata"]["path"] == "b.py"]
    assert len(of_b) > 1
    await world.delete_points(of_b[:1])
    world.repository.commit({"c.py": b"c = 2\n"})
    with unreadable(world.repository, "b.py"):
        await failing(world, "b.py")
        assert set(await world.indexed()) == {"a.py", "c.py"}
    await exact(world)


async def test_a_text_that_the_model_refuses_keeps_the_files_old_points(world: World):
    world.repository.commit(FILES)
    await world.completed()
    old = await world.indexed()
    world.repository.commit({"a.py": b"def answer():\n    return 43\n", "c.py": b"c = 2\n"})
    new = await world.expected()
    world.embeddings.forget()
    world.embeddings.answer_next(400, times=2)
    await failing(world, "a.py")
    assert [(each.inputs, each.status) for each in world.embeddings.log] == [(2, 400), (1, 400), (1, 200), (1, 200)]
    assert await world.indexed() == new | {"a.py": old["a.py"]}
    await exact(world)


async def test_a_server_that_refuses_every_text_in_mid_run_fails_the_run_and_takes_nothing(world: World):
    many = {f"src/{number}.py": module(f"m{number}", 6) for number in range(40)}
    world.repository.commit(many)
    await world.completed()
    before = set(await world.indexed())
    changed = {path: content + b"\nchanged = 1\n" for path, content in many.items()}
    world.repository.commit(changed)
    world.embeddings.forget()
    world.embeddings.answer_next(400, after=1, times=1000)
    run = await world.sync()
    assert (run.status, run.error_code) == ("failed", "EMBEDDING_ERROR")
    assert [each.status for each in world.embeddings.log][:2] == [200, 400], "it was called during the run"
    assert set(await world.indexed()) == before
    assert (await kept(world)).failed == set()
    world.embeddings.reset()
    await exact(world)


# Many files ----------------------------------------------------------------------------------------------------------


def some(count: int, value: int = 1) -> dict[str, bytes]:
    return {f"f{number:02}.py": b"value_%d = %d\n" % (number, value) for number in range(count)}


@pytest.mark.parametrize(
    ("changed", "bad", "failed"), [(3, 3, True), (1, 1, True), (40, 20, False), (40, 21, True), (50, 22, False)]
)
async def test_all_or_over_twenty_and_half_of_what_is_read_is_a_failure_of_the_source(
    world: World, changed: int, bad: int, failed: bool
):
    world.repository.commit(some(60))
    await world.completed()
    before = await world.indexed()
    world.repository.commit(some(changed, value=2))
    names = sorted(some(bad))
    with unreadable(world.repository, *names):
        run = await world.sync()
        assert (run.status, run.error_code) == (
            ("failed", "SOURCE_CORRUPT") if failed else ("completed", "FILES_FAILED")
        )
        now = await world.indexed()
        assert {path: now[path] for path in names} == {path: before[path] for path in names}
        assert now.keys() == before.keys()
    await exact(world)


async def test_a_file_that_is_known_to_fail_is_no_sign_of_a_source_that_fails(world: World):
    world.repository.commit(some(4))
    await world.completed()
    world.repository.commit(some(3, value=2))
    with unreadable(world.repository, "f00.py", "f01.py"):
        await failing(world, "f00.py", "f01.py")
        await failing(world, "f00.py", "f01.py")
        world.repository.commit({"f02.py": b"value = 3\n"})
        assert (await failing(world, "f00.py", "f01.py")).files_processed == 1
        world.repository.commit({"f02.py": b"value = 4\n"})
        with unreadable(world.repository, "f02.py"):
            run = await world.sync()
            assert (run.status, run.error_code) == ("failed", "SOURCE_CORRUPT"), "all that is new cannot be read"
    await exact(world)


# Beside the live index -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [another_chunk_size, another_collection])
async def test_an_index_that_is_built_beside_keeps_what_the_live_one_has_of_a_file_that_cannot_be_read(
    closed_world: World, change: Callable[[World], None]
):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        old = await world.indexed()
        world.repository.commit({"a.py": b"def answer():\n    return 43\n", "c.py": b"c = 2\n"})
        new = await world.expected()
        with unreadable(world.repository, "a.py"):
            await failing(world, "a.py")
    change(world)
    async with world.opened():
        with unreadable(world.repository, "a.py"):
            await failing(world, "a.py")
            assert await world.indexed() == new | {"a.py": old["a.py"]}
            (hit,) = [hit for hit in await world.app.searching.search("answer return", limit=50) if hit.path == "a.py"]
            assert hit.outdated
        await exact(world)


# In a daemon ---------------------------------------------------------------------------------------------------------


async def executed(world: World, run: Run) -> Run:
    """One attempt, as a daemon makes it, without a pause before the next."""
    claimed = await world.app.claim(run.repository_id)
    assert claimed is not None
    return await world.app.execute(world.app.execution(claimed, ExecutionPolicy(retry_seconds=0.0)))


async def test_a_daemon_tries_files_that_failed_again_while_attempts_are_left(world: World):
    world.repository.commit(FILES)
    await world.completed()
    world.repository.commit({"a.py": b"a = 2\n", "c.py": b"c = 2\n"})
    run, _ = await world.app.runs.enqueue("project", Ask(RunTrigger.SCHEDULE))
    states = []
    with unreadable(world.repository, "a.py"):
        while run.status not in FINAL:
            run = await executed(world, run)
            states.append((run.status, run.error_code, run.files_failed))
    tries = run.max_attempts - 1
    assert tries > 0
    assert states == [("retrying", "FILES_FAILED", 1)] * tries + [("completed", "FILES_FAILED", 1)]
    await exact(world)


async def test_a_retry_that_reads_what_failed_ends_as_if_nothing_had_been(world: World):
    world.repository.commit(FILES)
    await world.completed()
    world.repository.commit({"a.py": b"a = 2\n", "c.py": b"c = 2\n"})
    run, _ = await world.app.runs.enqueue("project", Ask(RunTrigger.SCHEDULE))
    with unreadable(world.repository, "a.py"):
        run = await executed(world, run)
        assert run.status == "retrying"
    run = await executed(world, run)
    assert (run.status, run.error_code, run.error_message, run.files_failed) == ("completed", None, None, 0)
    assert await world.app.history.count_problems(run.id) == {}
    assert await world.indexed() == await world.expected()
