"""The network between the program and its node breaks in the middle of a write, or before the answer to one."""

import asyncio
from collections.abc import Generator

import pytest

from tests.fixtures.qdrant_nodes import QdrantCluster
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.world import World
from tests.integration.cluster.conftest import FILES, assert_exact, brought_to_an_end, sync_with

pytestmark = pytest.mark.full


@pytest.fixture
def network(cluster: QdrantCluster) -> Generator[TcpProxy, None, None]:
    with TcpProxy(cluster.urls[0]) as proxy:
        yield proxy


@pytest.fixture
async def world(closed_world: World, network: TcpProxy) -> World:
    closed_world.program_url = network.url
    closed_world.repository.many(FILES)
    return closed_world


@pytest.mark.parametrize("sent_bytes", [1, 20_000, 60_000])
async def test_a_write_that_is_cut_while_it_is_sent_is_sent_again(
    world: World, network: TcpProxy, sent_bytes: int
) -> None:
    async def cut() -> None:
        network.cut_after(sent_bytes, "requests")

    async with world.opened():
        run = await brought_to_an_end(world, await sync_with(world, cut))
        assert run.attempt == 1, "it costs no attempt"
        await assert_exact(world)


async def test_a_write_whose_answer_is_lost_is_neither_lost_nor_doubled(world: World, network: TcpProxy) -> None:
    async def cut() -> None:
        for _ in range(4):
            network.cut_after(0, "answers")
            await asyncio.to_thread(network.wait_for_cut)

    async with world.opened():
        run = await brought_to_an_end(world, await sync_with(world, cut, after_files=1))
        assert run.attempt == 1, "it costs no attempt"
        await assert_exact(world)
