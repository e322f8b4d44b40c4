"""A removal writes under its lease alone, up to the last moment."""

from __future__ import annotations

import httpx
import pytest

from reposync.errors import LeaseLost
from reposync.runs.endings import ExecutionPolicy
from reposync.runs.removal import RemovalRun
from reposync.store.endings import STOPPING
from reposync.store.run import Ask, Run
from reposync.store.status import RunTrigger
from reposync.sync.lease import Lease
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.world import World
from tests.integration.sync.conftest import closed_world, content, embeddings, qdrant, world  # noqa: F401


class LosesTheLease(httpx.AsyncHTTPTransport):
    """Refuses the first deletion as an overloaded server does; by the time of the next attempt the run is another's."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease
        self.deletions = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/points/delete"):
            return await super().handle_async_request(request)
        self.deletions += 1
        self._lease.lose("Somebody else has the run.")
        body = httpx.ByteStream(b'{"status": {"error": "overloaded"}}')
        return httpx.Response(503, headers={"Content-Type": "application/json"}, stream=body, request=request)


async def removal_of(world: World) -> Run:  # noqa: F811
    run, _ = await world.app.runs.enqueue("project", Ask(RunTrigger.COMMAND, removal=True))
    claimed = await world.app.runs.claim("worker", 60.0, run_id=run.id)
    assert claimed is not None
    return claimed


def index_of(world: World, transport: httpx.AsyncBaseTransport) -> QdrantIndex:  # noqa: F811
    configuration = world.app.configuration
    settings = IndexSettings(world.collection, configuration.settings.state_dir, configuration.qdrant)
    index = QdrantIndex(settings, transport=transport)
    world.app.resources.push_async_callback(index.close)
    return index


@pytest.mark.parametrize("leftover", [False, True])
async def test_a_removal_that_lost_its_lease_repeats_no_deletion(world: World, leftover: bool):  # noqa: F811
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    row, run, before = await world.app.repositories.get("project"), await removal_of(world), await world.points()
    lease = Lease(60.0)
    transport = LosesTheLease(lease)
    index = index_of(world, transport)
    if leftover:
        await world.app.repositories.remove("project", by=run)
        run = run.model_copy(update={"repair": True})
    registered = None if leftover else row
    removal = RemovalRun(registered, [(index, row.id)], world.app.repositories, world.app.manifests, run, lease)

    with pytest.raises(LeaseLost):
        await removal.execute()

    assert transport.deletions == 1
    assert await world.points() == before
    if not leftover:
        assert (await world.app.repositories.get("project")).id == row.id


async def test_what_was_registered_again_is_left_alone(world: World):  # noqa: F811
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    row, run, before = await world.app.repositories.get("project"), await removal_of(world), await world.points()
    index, orphaned = index_of(world, httpx.AsyncHTTPTransport()), run.model_copy(update={"repair": True})
    places = [(index, row.id)]

    told = await RemovalRun(row, places, world.app.repositories, world.app.manifests, orphaned, Lease(60.0)).execute()

    assert told.notice == "It is registered again; nothing was removed."
    assert told.code is None, "it did what it was to do"
    assert await world.points() == before


@pytest.mark.parametrize("worker", ["died", "stopped"])
async def test_a_removal_whose_worker_died_after_the_row_was_gone_is_completed_by_the_next(
    world: World,  # noqa: F811
    worker: str,
):
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    app = world.app
    row, run, places = await app.repositories.get("project"), await removal_of(world), await app.versions.all()
    removed = RemovalRun(
        row,
        [(app.index(each.physical), each.id) for each in places[row.id]],
        app.repositories,
        app.manifests,
        run,
        Lease(60.0),
    )
    await removed.execute()
    if worker == "died":  # kill -9, here
        await app.runs.expire(run)
    else:
        await app.runs.end(run, STOPPING)

    again = await app.runs.claim("worker-2", 60.0)
    assert (again is None) == (worker == "died"), "it has nothing left to do"
    if again is not None:
        await app.execute(app.execution(again, ExecutionPolicy(60.0, retry_seconds=10.0)))

    ended = await app.history.get(run.id)
    assert (ended.id, ended.status, ended.error_code) == (run.id, "completed", None)
    assert ended.repository == "project"
    assert str(ended.error_message).startswith("An earlier attempt removed the repository")
    assert await world.points() == {}
