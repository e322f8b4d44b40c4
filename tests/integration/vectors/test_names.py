"""The name of a collection leads to one of its physical collections, and moves without a moment of nothing."""

import asyncio

import pytest

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexMismatch
from reposync.vectors.collection import drop_if_empty, give_name, move_name, physical_collection
from reposync.vectors.connection import open_client
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.points import SPEC, file, scope
from tests.integration.vectors.conftest import OpenIndex

OTHER = EmbeddingSpec("test", "another-model", 4, None)


class Opened:
    """One index for each collection, as the application has them."""

    def __init__(self, opened: OpenIndex) -> None:
        self._opened = opened
        self._indexes: dict[str, QdrantIndex] = {}

    def __call__(self, collection: str) -> QdrantIndex:
        if collection not in self._indexes:
            self._indexes[collection] = self._opened(collection=collection)
        return self._indexes[collection]


@pytest.fixture
def open_index(opened: OpenIndex) -> Opened:
    return Opened(opened)


async def test_a_first_collection_gets_the_name_and_another_model_a_collection_beside_it(
    open_index: Opened, settings: IndexSettings
) -> None:
    name = settings.collection
    first = await physical_collection(open_index, name, SPEC)
    await open_index(first).ensure(SPEC)
    await give_name(open_index, name, first)

    assert first != name
    assert await physical_collection(open_index, name, SPEC) == first
    second = await physical_collection(open_index, name, OTHER)
    assert second not in (name, first)
    behind = await open_index(name).resolve()
    assert behind is not None and behind.physical == first


async def test_what_an_older_version_called_by_the_name_itself_stays_so(
    open_index: Opened, settings: IndexSettings
) -> None:
    name = settings.collection
    await open_index(name).ensure(SPEC)

    assert await physical_collection(open_index, name, SPEC) == name
    await give_name(open_index, name, name)
    assert (await open_index(name).resolve()).physical == name  # type: ignore[union-attr]


async def test_a_name_moves_while_it_is_read_and_never_leads_nowhere(
    open_index: Opened, settings: IndexSettings
) -> None:
    name = settings.collection
    for spec, repository in ((SPEC, "old"), (OTHER, "new")):
        physical = await physical_collection(open_index, name, spec)
        await open_index(physical).ensure(spec)
        await give_name(open_index, name, physical)
        if spec is SPEC:
            await open_index(physical).replace_files(scope(repository), [file("a.py", "alpha")])
    second = await physical_collection(open_index, name, OTHER)
    first = await physical_collection(open_index, name, SPEC)
    done = asyncio.Event()
    asked = 0

    async def read() -> None:
        nonlocal asked
        client = open_client(settings)
        while not done.is_set():
            await client.count(name)
            asked += 1
        await client.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        while not asked:
            await asyncio.sleep(0)
        for physical in (second, first) * 10 + (second,):
            assert await move_name(open_index, name, physical)
        done.set()
    behind = await open_index(name).resolve()
    assert behind is not None and behind.physical == second


async def test_a_collection_that_has_the_name_itself_goes_only_when_it_is_empty(
    open_index: Opened, settings: IndexSettings
) -> None:
    name = settings.collection
    await open_index(name).ensure(SPEC)
    await open_index(name).replace_files(scope(), [file("a.py", "alpha")])
    second = await physical_collection(open_index, name, OTHER)
    await open_index(second).ensure(OTHER)

    assert not await move_name(open_index, name, second)
    assert await open_index(name).count(scope().repository_id) == 1

    await open_index(name).remove_repository(scope().repository_id)
    assert await move_name(open_index, name, second)
    behind = await open_index(name).resolve()
    assert behind is not None and behind.physical == second


async def test_a_collection_with_points_of_another_installation_is_not_dropped(open_index: Opened) -> None:
    await open_index("shared--a").ensure(SPEC)
    await open_index("shared--a").replace_files(scope("somebody"), [file("a.py", "alpha")])

    await drop_if_empty(open_index, "shared--a")
    assert await open_index("shared--a").count() == 1
    await open_index("shared--a").remove_repository(scope("somebody").repository_id)
    await drop_if_empty(open_index, "shared--a")
    assert await open_index("shared--a").spec() is None


async def test_a_name_that_leads_to_somebody_elses_collection_is_refused(
    open_index: Opened, settings: IndexSettings
) -> None:
    from qdrant_client import models

    client = open_client(settings)
    await client.create_collection(
        settings.collection, {"dense": models.VectorParams(size=8, distance=models.Distance.COSINE)}
    )
    await client.close()
    with pytest.raises(IndexMismatch, match="not made by reposync"):
        await physical_collection(open_index, settings.collection, SPEC)
