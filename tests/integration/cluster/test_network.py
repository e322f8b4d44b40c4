"""The network between the program and its node breaks in the middle of a write, or before the answer to one."""

import asyncio
import threading
from collections.abc import Generator

import pytest

from tests.fixtures.listener import Connection
from tests.fixtures.qdrant_nodes import QdrantCluster
from tests.fixtures.tcp_proxy import Direction, TcpProxy
from tests.fixtures.world import World
from tests.integration.cluster.conftest import FILES, assert_exact, brought_to_an_end, sync_with

pytestmark = pytest.mark.full


class CutNetwork(TcpProxy):
    """Resets a connection in the middle of what it passes on, when `cut_after` says so."""

    _direction: Direction | None = None
    _left_bytes = 0

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._was_cut = threading.Event()

    async def cut_after(self, sent_bytes: int, direction: Direction) -> None:
        """Returns after the reset."""
        self._was_cut.clear()
        self._left_bytes, self._direction = sent_bytes, direction
        assert await asyncio.to_thread(self._was_cut.wait, 60)

    def may_pass(self, connection: Connection, way: Direction, chunk: bytes) -> bool:
        if way != self._direction:
            return True
        self._left_bytes -= len(chunk)
        if self._left_bytes < 0:
            self._direction = None
            self._was_cut.set()
        return self._left_bytes >= 0


@pytest.fixture
def network(cluster: QdrantCluster) -> Generator[CutNetwork, None, None]:
    with CutNetwork(cluster.urls[0]) as proxy:
        yield proxy


@pytest.fixture
async def world(closed_world: World, network: CutNetwork) -> World:
    closed_world.program_url = network.url
    closed_world.repository.many(FILES)
    return closed_world


@pytest.mark.parametrize("sent_bytes", [1, 20_000, 60_000])
async def test_a_write_that_is_cut_while_it_is_sent_is_sent_again(
    world: World, network: CutNetwork, sent_bytes: int
) -> None:
    async with world.opened():
        run = await brought_to_an_end(world, await sync_with(world, lambda: network.cut_after(sent_bytes, "requests")))
        assert run.attempt == 1, "it costs no attempt"
        await assert_exact(world)


async def test_a_write_whose_answer_is_lost_is_neither_lost_nor_doubled(world: World, network: CutNetwork) -> None:
    async def cut() -> None:
        for _ in range(4):
            await network.cut_after(0, "answers")

    async with world.opened():
        run = await brought_to_an_end(world, await sync_with(world, cut, after_files=1))
        assert run.attempt == 1, "it costs no attempt"
        await assert_exact(world)
