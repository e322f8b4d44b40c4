"""What Qdrant's own client can do on the embedded engine."""

import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx
import pytest
from qdrant_client import AsyncQdrantClient, models

from reposync.vectors.engine.asgi import EngineApp
from reposync.vectors.engine.collections import Collections
from tests.fixtures.contract import ContractTransport

ONE = "00000000-0000-0000-0000-000000000001"
TWO = "00000000-0000-0000-0000-000000000002"


@contextlib.asynccontextmanager
async def client_on(collections: Collections) -> AsyncIterator[AsyncQdrantClient]:
    """Every exchange has to keep Qdrant's contract."""
    watched = ContractTransport(httpx.ASGITransport(EngineApp(collections)))
    client = AsyncQdrantClient(url="http://engine", port=None, check_compatibility=False, transport=watched)
    yield client
    await client.close()
    assert watched.exchanges
    assert watched.violations == []


@pytest.fixture
async def client(collections: Collections) -> AsyncGenerator[AsyncQdrantClient, None]:
    async with client_on(collections) as client:
        yield client


async def make(client: AsyncQdrantClient, name: str = "code") -> None:
    many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    await client.create_collection(
        name,
        vectors_config={
            "dense": models.VectorParams(size=2, distance=models.Distance.COSINE),
            "many": models.VectorParams(size=2, distance=models.Distance.DOT, multivector_config=many),
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        metadata={"made_by": "a test"},
    )
    await client.create_payload_index(name, "lang", models.PayloadSchemaType.KEYWORD)
    tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
    await client.create_payload_index(name, "tenant", tenant)
    await client.create_payload_index(name, "epoch", models.PayloadSchemaType.INTEGER)


async def fill(client: AsyncQdrantClient, name: str = "code") -> None:
    sparse = models.SparseVector
    result = await client.upsert(
        name,
        [
            models.PointStruct(
                id=ONE,
                vector={"dense": [1, 0], "many": [[1, 0], [0, 1]], "sparse": sparse(indices=[1], values=[1])},
                payload={"lang": "python", "epoch": 1},
            ),
            models.PointStruct(
                id=TWO,
                vector={"dense": [0, 1], "many": [[1, 0]], "sparse": sparse(indices=[2], values=[1])},
                payload={"lang": "rust", "epoch": 2},
            ),
            models.PointStruct(id=3, vector={"dense": [0.6, 0.8]}, payload={"lang": "python", "epoch": 3}),
        ],
        wait=True,
    )
    assert result.status is models.UpdateStatus.COMPLETED


async def ids(client: AsyncQdrantClient, name: str = "code") -> set[object]:
    return {point.id for point in (await client.scroll(name, limit=100))[0]}


def where(key: str, value: str | int) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchValue(value=value))])


async def test_points_are_deleted_and_their_payloads_set_by_id_and_by_filter_in_order(
    client: AsyncQdrantClient,
) -> None:
    await make(client)
    await fill(client)
    await client.set_payload("code", {"a": {"b": 1}}, [ONE])
    await client.set_payload("code", {"c": 2}, where("epoch", 1), key="a")
    (changed,) = await client.retrieve("code", [ONE], with_vectors=True)
    assert changed.payload == {"lang": "python", "epoch": 1, "a": {"b": 1, "c": 2}}
    sparse = models.SparseVector(indices=[1], values=[1.0])
    assert changed.vector == {"dense": [1.0, 0.0], "many": [[1.0, 0.0], [0.0, 1.0]], "sparse": sparse}
    await client.delete("code", models.PointIdsList(points=[3, 99]))
    assert await ids(client) == {ONE, TWO}
    point = models.PointStruct(id=1, vector={"dense": [1, 0]}, payload={"lang": "go"})
    others = models.Filter(must_not=[models.HasIdCondition(has_id=[2])])
    results = await client.batch_update_points(
        "code",
        [
            models.UpsertOperation(upsert=models.PointsList(points=[point, point.model_copy(update={"id": 2})])),
            models.SetPayloadOperation(set_payload=models.SetPayload(payload={"seen": 1}, points=[2])),
            models.DeleteOperation(delete=models.FilterSelector(filter=others)),
        ],
    )
    assert [result.status for result in results] == [models.UpdateStatus.COMPLETED] * 3
    (left,), _ = await client.scroll("code")
    assert (left.id, left.payload) == (2, {"lang": "go", "seen": 1})


async def test_a_deleted_collection_takes_its_aliases_along(client: AsyncQdrantClient) -> None:
    await make(client, "new")
    alias = models.CreateAlias(collection_name="new", alias_name="code")
    await client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
    assert (await client.count("code")).count == 0
    assert await client.delete_collection("new")
    assert not await client.collection_exists("code")
    await make(client)
    assert (await client.count("code")).count == 0


def in_epoch(**bounds: int) -> models.FieldCondition:
    return models.FieldCondition(key="epoch", range=models.Range(**bounds))


def in_languages(*names: str) -> models.FieldCondition:
    return models.FieldCondition(key="lang", match=models.MatchAny(any=list(names)))


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        (models.Filter(must=[]), {ONE, TWO, 3}),
        (models.Filter(must=[in_languages("python"), in_epoch(gt=1, lte=3)]), {3}),
        (models.Filter(must=[in_epoch(gte=2, lt=3)]), {TWO}),
        (models.Filter(must=[in_languages()]), set()),
        (models.Filter(should=[in_epoch(lt=2), in_languages("rust")]), {ONE, TWO}),
        (models.Filter(must_not=[in_languages("python", "go")]), {TWO}),
        (models.Filter(must=[models.Filter(must_not=[in_epoch(lte=1)]), in_languages("python")]), {3}),
        (models.Filter(must_not=[models.Filter(must=[in_epoch(gt=1), in_languages("rust")])]), {ONE, 3}),
        (models.Filter(must=[models.HasIdCondition(has_id=[TWO, 3, 99])]), {TWO, 3}),
        (models.Filter(must_not=[models.HasVectorCondition(has_vector="sparse")]), {3}),
        (models.Filter(must=[models.FieldCondition(key="epoch", match=models.MatchValue(value=2))]), {TWO}),
    ],
)
async def test_a_filter_selects_exactly_the_points_that_it_describes(
    client: AsyncQdrantClient, selected: models.Filter, expected: set[object]
) -> None:
    await make(client)
    await fill(client)
    points, _ = await client.scroll("code", scroll_filter=selected, limit=100)
    assert {point.id for point in points} == expected


@pytest.mark.parametrize("name", ["code%2Fx", "Ünïcode 日本", "..a", "CODE"])
async def test_names_of_collections_may_be_odd(client: AsyncQdrantClient, name: str) -> None:
    await make(client)
    await client.create_collection(name, {"dense": models.VectorParams(size=2, distance=models.Distance.DOT)})
    await client.upsert(name, [models.PointStruct(id=7, vector={"dense": [1, 0]})])
    assert (await client.count(name)).count == 1
    assert (await client.count("code")).count == 0


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    for start in range(2):
        collections = Collections(folder)
        async with client_on(collections) as client:
            if start == 0:
                await make(client)
                await fill(client)
                create = models.CreateAlias(collection_name="code", alias_name="alias")
                await client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
            before, after = await client.get_collection("code"), await client.get_collection("alias")
            assert before == after
            assert after.config.metadata == {"made_by": "a test"}
            assert set(after.payload_schema) == {"lang", "tenant", "epoch"}
            assert await ids(client, "alias") == {ONE, TWO, 3}
        collections.close()


async def test_dense_vectors_are_not_counted_as_indexed(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    sparse = {"sparse": models.SparseVectorParams()}
    await client.create_collection("words", vectors_config={}, sparse_vectors_config=sparse)
    await client.upsert(
        "words", [models.PointStruct(id=1, vector={"sparse": models.SparseVector(indices=[1], values=[1])})]
    )

    assert (await client.get_collection("code")).indexed_vectors_count == 0
    assert (await client.get_collection("words")).indexed_vectors_count == 1


async def test_points_are_ranked_by_their_original_vectors(client: AsyncQdrantClient) -> None:
    draw, answers = random.Random(4), []
    rows = [[[draw.gauss(0, 1) for _ in range(32)] for _ in range(3)] for _ in range(500)]
    many = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    params = models.VectorParams(size=32, distance=models.Distance.COSINE, multivector_config=many)
    await client.create_collection("code", vectors_config={"dense": params})
    await client.upsert("code", [models.PointStruct(id=n, vector={"dense": each}) for n, each in enumerate(rows)])

    query = [draw.gauss(0, 1) for _ in range(32)]
    for each in (False, True):
        search = models.SearchParams(exact=each)
        found = await client.query_points("code", query=query, using="dense", search_params=search, limit=20)
        answers.append([(point.id, point.score) for point in found.points])

    assert answers[0] == answers[1]


async def test_an_exchange_that_breaks_the_contract_is_noticed() -> None:
    answers = httpx.MockTransport(lambda _: httpx.Response(200, json={"result": {"count": "many"}}))
    watched = ContractTransport(answers)
    async with httpx.AsyncClient(transport=watched, base_url="http://qdrant") as client:
        await client.post("/collections/code/points/count", json={"wrong": True})
    assert {each.split(": ")[1] for each in watched.violations} == {"request", "answer"}
