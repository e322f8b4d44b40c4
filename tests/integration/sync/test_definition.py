"""A run obeys the definition of the moment at which it begins, whenever it was requested."""

import pytest

from reposync.app.command_runs import execute_for_command, finished
from reposync.catalog.targets import add_repository, change_repository
from reposync.runs.endings import ExecutionPolicy
from reposync.store.endings import Fail
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunTrigger
from tests.fixtures.syncing import request
from tests.fixtures.world import World


async def _begin(world: World) -> None:
    world.repository.commit({"a.py": b"a = 1\n", "salaries.txt": b"alice 1\n"})
    place = {"path": str(world.repository.path), "collection": world.collection, "schedule": "never"}
    await add_repository(world.app.catalog, {"name": "written", **place})


async def _exclude(world: World) -> None:
    await change_repository(world.app.catalog, "written", {"exclude": ["salaries.txt"]})


async def test_what_is_excluded_while_a_command_waits_for_another_run_is_not_indexed(world: World):
    await _begin(world)
    app = world.app
    await app.runs.enqueue("written", Ask(RunTrigger.HTTP))
    other = await app.runs.claim("pod-b", 60.0)
    assert other is not None
    run_id = await request(app, await app.catalog.find("written"))
    assert not await execute_for_command(app, run_id), "it waits"

    await _exclude(world)
    await app.runs.end(other, Fail("SOURCE_ERROR", "a test"), RunFigures())

    assert (await finished(app, run_id)).status == "completed"
    assert set(await world.indexed()) == {"a.py"}


@pytest.mark.parametrize("change", ["excluded", "removed"])
async def test_what_changes_after_a_worker_claimed_a_run_is_obeyed(world: World, change: str):
    await _begin(world)
    app = world.app
    await app.runs.enqueue("written", Ask(RunTrigger.HTTP))
    claimed = await app.runs.claim(app.worker, 60.0)
    assert claimed is not None
    execution = app.execution(claimed, ExecutionPolicy())
    if change == "excluded":
        await _exclude(world)
    else:
        await app.repositories.deactivate("written")

    ended: Run = await app.execute(execution)

    if change == "excluded":
        assert (ended.status, set(await world.indexed())) == ("completed", {"a.py"})
    else:
        assert (ended.status, ended.error_code) == ("cancelled", "REPOSITORY_NOT_FOUND")
