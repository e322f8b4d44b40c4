"""Nodes of a cluster are killed, come back, and hand shards over while a sync writes: nothing is lost or doubled."""

import asyncio
import dataclasses
from collections.abc import Generator

import httpx
import pytest

from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_balancer import RoundRobin
from tests.fixtures.qdrant_nodes import QdrantCluster
from tests.fixtures.world import World
from tests.integration.cluster.conftest import FILES, assert_exact, brought_to_an_end, fresh, sync_with

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def commit(closed_world: World) -> None:
    closed_world.repository.many(FILES)


@pytest.mark.parametrize("confirmations", [1, 2])
async def test_a_sync_survives_that_another_node_is_killed_and_comes_back(
    closed_world: World, cluster: QdrantCluster, confirmations: int
) -> None:
    """With one confirmation a replica that misses a write is out of service until it has recovered. With two it stays
    in service, and the write is an error: it must be sent again although the other replica has it."""
    world = closed_world
    world.target = dataclasses.replace(world.target, confirmations=confirmations)
    world.configure(extra=fresh(world))

    async def kill_and_restart() -> None:
        cluster.nodes[1].kill()
        await asyncio.to_thread(cluster.nodes[1].start)

    async with world.opened():
        await brought_to_an_end(world, await sync_with(world, kill_and_restart))
        await asyncio.to_thread(cluster.settle)
        await assert_exact(world)


async def test_a_node_that_stays_away_is_missing_in_no_sync_and_gets_what_it_missed(
    world: World, cluster: QdrantCluster
) -> None:
    async def kill() -> None:
        cluster.nodes[2].kill()

    await brought_to_an_end(world, await sync_with(world, kill))
    world.repository.commit({"src/later.py": b"later = 1\n", "src/part_000/module_00000.py": None})
    await brought_to_an_end(world, await world.sync())
    await asyncio.to_thread(cluster.settle)
    await assert_exact(world)


async def test_with_as_many_confirmations_as_replicas_syncs_wait_for_a_node_that_is_away(
    closed_world: World, cluster: QdrantCluster
) -> None:
    world = closed_world
    world.target = dataclasses.replace(world.target, confirmations=2)
    world.configure(extra=fresh(world))

    async def kill() -> None:
        cluster.nodes[1].kill()

    async with world.opened():
        run = await sync_with(world, kill)
        assert (run.status, run.error_code) == ("failed", "INDEX_UNAVAILABLE"), run.error_message
        await asyncio.to_thread(cluster.settle)
        await brought_to_an_end(world, await world.sync())
        await assert_exact(world)


async def test_an_incremental_sync_sees_no_lost_points_in_replicas_that_recover(
    world: World, cluster: QdrantCluster
) -> None:
    await world.completed()
    cluster.nodes[1].kill()
    world.repository.commit({f"src/part_{n:03}/module_{n * 100:05}.py": b"changed = %d\n" % n for n in range(16)})
    await brought_to_an_end(world, await world.sync())
    restarting = asyncio.create_task(asyncio.to_thread(cluster.nodes[1].start))
    # The replicas of this node are recovered while the syncs count points.
    while not restarting.done():
        run = await brought_to_an_end(world, await world.sync())
        assert (run.files_processed, run.error_code) == (0, None), run.error_message
    await restarting
    await asyncio.to_thread(cluster.settle)
    await assert_exact(world)


async def test_the_run_goes_on_with_the_next_node_if_its_own_is_killed(
    closed_world: World, cluster: QdrantCluster
) -> None:
    closed_world.program_url = ",".join(cluster.urls)
    async with closed_world.opened():

        async def kill() -> None:
            cluster.nodes[0].kill()

        await brought_to_an_end(closed_world, await sync_with(closed_world, kill))
        assert await closed_world.app.searching.search("answer", limit=3), "search, too, goes to the next"
        await asyncio.to_thread(cluster.settle)
        await assert_exact(closed_world)


@pytest.mark.parametrize("method", ["move_shard", "replicate_shard"])
async def test_a_shard_that_gets_another_place_during_a_sync_takes_all_points_along(
    world: World, cluster: QdrantCluster, method: str
) -> None:
    async def hand_over() -> None:
        path = f"/collections/{await world.physical()}/cluster"
        async with httpx.AsyncClient(base_url=cluster.urls[0], timeout=PATIENCE_SECONDS) as client:
            nodes = [(await client.get(f"{each}/cluster")).json()["result"]["peer_id"] for each in cluster.urls]
            shards = (await client.get(path)).json()["result"]
            shard = shards["local_shards"][0]["shard_id"]
            holders = {each["peer_id"] for each in shards["remote_shards"] if each["shard_id"] == shard}
            there = next(each for each in nodes[1:] if each not in holders)
            body = {method: {"shard_id": shard, "from_peer_id": nodes[0], "to_peer_id": there}}
            (await client.post(path, json=body)).raise_for_status()

    await brought_to_an_end(world, await sync_with(world, hand_over))
    await asyncio.to_thread(cluster.settle)
    await assert_exact(world)


@pytest.fixture
def balancer(cluster: QdrantCluster) -> Generator[RoundRobin, None, None]:
    with RoundRobin(cluster.urls) as balancer:
        yield balancer


async def test_a_sync_through_a_load_balancer_survives_that_a_node_is_killed(
    closed_world: World, cluster: QdrantCluster, balancer: RoundRobin
) -> None:
    async def kill_and_restart() -> None:
        cluster.nodes[1].kill()
        await asyncio.to_thread(cluster.nodes[1].start)

    closed_world.program_url = balancer.url
    async with closed_world.opened():
        await brought_to_an_end(closed_world, await sync_with(closed_world, kill_and_restart))
        await asyncio.to_thread(cluster.settle)
        await assert_exact(closed_world)


async def test_a_changed_model_goes_live_through_a_load_balancer(closed_world: World, balancer: RoundRobin) -> None:
    """What one node has made, an index or an alias, the next one may not know yet."""
    closed_world.program_url = balancer.url
    async with closed_world.opened():
        await closed_world.completed()
    closed_world.edit_registry("model: test/words", "model: test/others")
    closed_world.embeddings.model = "test/others"
    async with closed_world.opened():
        run = await closed_world.completed()
        assert (run.attempt, run.error_code) == (1, None)
        assert all(balancer.passed.values()), "every node had a part in it"
        await assert_exact(closed_world)
