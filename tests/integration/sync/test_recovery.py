"""What was lost, killed or cut off is noticed, and the next run goes on from there."""

import asyncio
import copy
import itertools

import pytest

from reposync.errors import LeaseLost
from tests.fixtures.world import World, comparable
from tests.integration.sync.test_exactness import CODE, module


async def test_lost_points_are_noticed_and_only_their_files_are_read_again(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b"), "c.py": module("c"), "copy.py": module("c")})
    await world.completed()
    before = comparable(await world.points())
    lost = {key: each for key, each in before.items() if each["path"] in ("b.py", "c.py")}
    await world.delete_points(list(lost))
    world.embeddings.forget()
    run = await world.completed()
    assert run.files_processed == 2
    assert f"{len(lost)} missing of {len(before)}" in str(run.error_message)
    texts = {each["page_content"] for each in lost.values() if each["path"] == "b.py"}
    assert set(world.embeddings.inputs) == texts, "the copy of c.py still holds its vectors"
    assert comparable(await world.points()) == before


async def test_an_index_restored_from_an_older_snapshot_with_as_many_points_is_noticed(world: World):
    world.repository.commit({"a.py": CODE, "b.py": b"print('b')\n"})
    await world.completed()
    old = (await world.points()).copy()
    world.repository.commit({"a.py": b"def answer():\n    return 'newer'\n"})
    await world.completed()
    current = await world.points()
    # Put the older state back: the newer point of a.py goes, its older one returns, the number stays the same.
    await world.delete_points(list(current.keys() - old.keys()))
    await world.put_points([old[key] for key in old.keys() - current.keys()])
    assert len(await world.points()) == len(current)
    run = await world.completed()
    assert run.error_code == "INDEX_REBUILT"
    assert comparable(await world.points()) == comparable(current)


@pytest.mark.parametrize(("by", "text"), [(-1, "another text"), (1, None)], ids=["older", "of a killed full sync"])
async def test_points_of_another_run_under_the_same_ids_are_noticed_and_stored_again(
    world: World, by: int, text: str | None
):
    """As an older snapshot has them, or a full sync that stored them and did not record it: no id is missing, and none
    is foreign."""
    world.repository.commit({"a.py": module("a", 40), "b.py": module("b", 40)})
    await world.completed()
    await world.completed(full=True)
    before = await world.points()
    others = copy.deepcopy([point for point in before.values() if point["payload"]["metadata"]["path"] == "b.py"])
    for point in others:
        point["payload"]["metadata"]["epoch"] += by
        point["payload"]["page_content"] = text or point["payload"]["page_content"]
    await world.put_points(others)
    world.embeddings.forget()

    run = await world.completed()

    assert (run.error_code, run.files_processed, world.embeddings.inputs) == ("INDEX_REBUILT", 1, [])
    assert "a worker that was killed" in str(run.error_message)
    assert comparable(await world.points()) == comparable(before)
    assert (await world.completed()).error_code is None


async def test_two_syncs_at_once_make_one_index_and_never_overlap(world: World):
    world.repository.many(50)
    first, second = await asyncio.gather(world.sync(), world.sync())
    assert {first.status, second.status} == {"completed"}
    assert await world.indexed() == await world.expected()
    runs = sorted(await world.app.history.runs(), key=lambda run: run.started_at)
    assert all(earlier.completed_at <= later.started_at for earlier, later in itertools.pairwise(runs))


async def test_a_worker_that_lost_its_run_writes_nothing_more(world: World):
    world.repository.commit({"a.py": CODE})
    await world.completed()
    before = await world.app.manifests.load((await world.app.repositories.get("project")).id)
    world.repository.commit({"a.py": b"print('newer')\n"})
    with world.embeddings.holding():
        running = asyncio.create_task(world.sync())
        await asyncio.to_thread(world.embeddings.wait_for_waiting, 1)
        (run, *_) = await world.app.history.runs(limit=1)
        await world.app.runs.expire(run)
        assert await world.app.runs.claim("somebody-else", 60, run_id=run.id)
    with pytest.raises(LeaseLost):
        await running
    repository = await world.app.repositories.get("project")
    assert await world.app.manifests.load(repository.id) == before
    assert (await world.app.history.get(run.id)).worker == "somebody-else"
    # Whoever goes on finds what the first one left in the index, and ends exact.
    await world.app.runs.expire(await world.app.history.get(run.id))
    await world.completed()
    assert await world.indexed() == await world.expected()
