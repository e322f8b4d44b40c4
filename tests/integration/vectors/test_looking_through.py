"""What `verify` asks of an index: every point, whose they are, and which epochs they have."""

from __future__ import annotations

import pytest
from qdrant_client import models

from reposync.errors import LeaseLost
from reposync.vectors.connection import open_client
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import LATEST_EPOCH, IndexSettings
from tests.fixtures.points import SPEC, file, scope

MINE = scope().repository_id


async def test_every_point_is_read_once_with_its_payload(index: QdrantIndex, settings: IndexSettings) -> None:
    await index.ensure(SPEC)
    await index.replace_files(
        scope(), [file(f"{n}.py", *(f"text {n} {chunk}" for chunk in range(5))) for n in range(250)]
    )
    await index.replace_files(scope("billing"), [file("a.py", "theirs")])

    pages = [page async for page in index.points(MINE)]

    assert [len(page) for page in pages] == [500, 500, 250]
    points = [point for page in pages for point in page]
    assert len({point.id for point in points}) == 1250
    assert {point.payload["page_content"] for point in points} == {
        f"text {n} {chunk}" for n in range(250) for chunk in range(5)
    }
    assert [page async for page in index.points("nobody")] == []
    lacking = [point.id for point in points[:2]]
    client = open_client(settings)
    bare = [models.PointStruct(id=point.id, vector={}, payload=dict(point.payload)) for point in points[:2]]
    await client.upsert(settings.collection, bare, wait=True)
    await client.close()
    found = {point.id async for page in index.points(MINE, without_vector=True) for point in page}
    assert found == set(lacking)


async def test_the_highest_epoch_beyond_one_is_told_and_what_is_none_is_not(
    index: QdrantIndex, settings: IndexSettings
) -> None:
    await index.ensure(SPEC)
    for epoch in (1, 7, 4):
        await index.replace_files(scope(epoch=epoch), [file(f"{epoch}.py", "text")])
    await index.replace_files(scope("billing", epoch=90), [file("a.py", "text")])
    assert [await index.later_epoch(MINE, epoch) for epoch in (0, 4, 7)] == [7, 7, None]

    client = open_client(settings)
    points, _ = await client.scroll(settings.collection, limit=10)
    for point, epoch in zip(points, (LATEST_EPOCH, "later", None, 2**60), strict=True):
        await client.set_payload(settings.collection, {"epoch": epoch}, [point.id], key="metadata", wait=True)
    await client.close()
    assert await index.later_epoch(MINE, 0) is None


async def test_whose_points_there_are_is_counted(index: QdrantIndex, settings: IndexSettings) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [file("a.py", "one", "two")])
    await index.replace_files(scope("billing"), [file("a.py", "one")])
    client = open_client(settings)
    nobodys = models.PointStruct(id=7, vector={}, payload={"note": "somebody else's"})
    await client.upsert(settings.collection, [nobodys], wait=True)
    await client.close()

    assert await index.repositories() == {MINE: 2, "id-of-billing": 1}
    assert await index.count() == 4
    assert (await index.names_of(MINE), await index.names_of("nobody")) == (["payments"], [])
    await index.rename_repository(MINE, "renamed")
    assert await index.names_of(MINE) == ["renamed"]
    await index.remove_repository(MINE)
    assert await index.repositories() == {"id-of-billing": 1}


async def test_points_with_numbers_and_without_an_epoch_are_removed_by_their_ids(
    index: QdrantIndex, settings: IndexSettings
) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(epoch=3), [file("a.py", "one")])
    client = open_client(settings)
    ours = {"repository_id": MINE, "path": "a.py"}
    for number, epoch in (
        (1, {}),
        (2, {"epoch": None}),
        (3, {"epoch": "x"}),
        (4, {"epoch": LATEST_EPOCH}),
        (5, {"epoch": 9}),
    ):
        point = models.PointStruct(id=number, vector={}, payload={"metadata": ours | epoch})
        await client.upsert(settings.collection, [point], wait=True)
    await client.close()

    await index.remove_points(scope(epoch=8), [1, 2, 3, 4, 5])

    left = [point.id async for page in index.points(MINE) for point in page if isinstance(point.id, int)]
    assert left == [5], "what a later run wrote stays"


async def test_a_repository_is_not_removed_by_who_lost_the_right_to(index: QdrantIndex) -> None:
    await index.ensure(SPEC)
    await index.replace_files(scope(), [file("a.py", "one")])

    def lost() -> None:
        raise LeaseLost("Somebody else has it.")

    with pytest.raises(LeaseLost):
        await index.remove_repository(MINE, check=lost)
    assert await index.count(MINE) == 1
