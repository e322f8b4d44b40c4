"""The name of a collection is an alias of one of its physical collections, and moves atomically."""

import asyncio
import functools
from collections.abc import Callable

import pytest
from qdrant_client import AsyncQdrantClient

from reposync.embedding.port import EmbeddingSpec
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.points import SPEC, file, scope
from tests.integration.vectors.conftest import OpenIndex

Opened = Callable[[str], QdrantIndex]

OTHER = EmbeddingSpec("test", "another-model", 4, None)


@pytest.fixture
def open_index(opened: OpenIndex) -> Opened:
    """One index for each collection, as the application has them."""
    return functools.cache(lambda collection: opened(collection=collection))


async def made(open_index: Opened, name: str, spec: EmbeddingSpec) -> str:
    physical = await open_index(name).physical_for(spec)
    await open_index(physical).ensure(spec)
    await open_index(name).lead_to(physical, if_free=True)
    return physical


async def behind(open_index: Opened, name: str) -> str | None:
    resolved = await open_index(name).resolve()
    return None if resolved is None else resolved.physical


async def test_a_name_moves_while_it_is_read_and_always_leads_somewhere(
    open_index: Opened, settings: IndexSettings, client: AsyncQdrantClient
) -> None:
    name = settings.collection
    first, second = await made(open_index, name, SPEC), await made(open_index, name, OTHER)
    assert len({name, first, second}) == 3, "a different model gets a different collection"
    assert await open_index(name).physical_for(SPEC) == first == await behind(open_index, name)
    done = asyncio.Event()
    reads = 0

    async def read() -> None:
        nonlocal reads
        while not done.is_set():
            await client.count(name)
            reads += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        while not reads:
            await asyncio.sleep(0)
        for physical in (second, first) * 10 + (second,):
            assert await open_index(name).lead_to(physical)
        done.set()
    assert await behind(open_index, name) == second


async def test_a_collection_that_has_the_name_itself_goes_only_when_it_is_empty(
    open_index: Opened, settings: IndexSettings
) -> None:
    name = settings.collection
    await open_index(name).ensure(SPEC)
    assert await open_index(name).physical_for(SPEC) == name, "as versions before 0.2 made it"
    await open_index(name).replace_files(scope(), [file("a.py", "alpha")])
    second = await open_index(name).physical_for(OTHER)
    await open_index(second).ensure(OTHER)

    assert not await open_index(name).lead_to(second)
    assert await open_index(name).count(scope().version_id) == 1

    await open_index(name).remove_version(scope().version_id)
    assert await open_index(name).lead_to(second)
    assert await behind(open_index, name) == second


async def test_a_collection_with_points_of_a_different_installation_is_not_dropped(
    open_index: Opened, settings: IndexSettings
) -> None:
    shared = f"{settings.collection}--a"
    await open_index(shared).ensure(SPEC)
    await open_index(shared).replace_files(scope("foreign"), [file("a.py", "alpha")])

    await open_index(shared).drop_if_empty()
    assert await open_index(shared).count() == 1
    await open_index(shared).remove_version(scope("foreign").version_id)
    await open_index(shared).drop_if_empty()
    assert await open_index(shared).spec() is None
