"""What a person can do with Qdrant's own client on the embedded engine."""

from pathlib import Path

import httpx
import pytest
from qdrant_client import AsyncQdrantClient, models

from reposync.vectors.engine.app import EngineApp
from reposync.vectors.engine.collections import Collections

ONE = "00000000-0000-0000-0000-000000000001"
TWO = "00000000-0000-0000-0000-000000000002"
THREE = "00000000-0000-0000-0000-000000000003"


async def make(client: AsyncQdrantClient, name: str = "code") -> None:
    await client.create_collection(
        name,
        vectors_config={
            "dense": models.VectorParams(size=2, distance=models.Distance.COSINE),
            "many": models.VectorParams(
                size=2,
                distance=models.Distance.DOT,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            ),
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        metadata={"made_by": "a test"},
    )
    await client.create_payload_index(name, "lang", models.PayloadSchemaType.KEYWORD)
    await client.create_payload_index(
        name, "tenant", models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
    )
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


async def ids(client: AsyncQdrantClient, condition: models.Filter | None = None, name: str = "code") -> set[object]:
    points, _ = await client.scroll(name, scroll_filter=condition, limit=100)
    return {point.id for point in points}


def where(key: str, value: str | int) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchValue(value=value))])


async def test_a_collection_tells_how_it_was_made(client: AsyncQdrantClient) -> None:
    await make(client)
    assert await client.collection_exists("code")
    assert not await client.collection_exists("other")
    assert [each.name for each in (await client.get_collections()).collections] == ["code"]
    found = await client.get_collection("code")
    assert found.config.metadata == {"made_by": "a test"}
    assert found.config.params.vectors["many"].multivector_config.comparator == "max_sim"  # type: ignore[index,union-attr]
    assert found.config.params.sparse_vectors["sparse"].modifier is models.Modifier.IDF  # type: ignore[index]
    assert found.payload_schema["tenant"].params.is_tenant is True  # type: ignore[union-attr]
    assert found.points_count == 0


async def test_metadata_is_merged_and_a_null_takes_its_key_out(client: AsyncQdrantClient) -> None:
    await make(client)
    await client.update_collection("code", metadata={"more": [1], "made_by": None})
    assert (await client.get_collection("code")).config.metadata == {"more": [1]}


async def test_points_come_back_as_they_were_stored(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    (point,) = await client.retrieve("code", [ONE], with_vectors=True)
    assert point.payload == {"lang": "python", "epoch": 1}
    assert point.vector == {
        "dense": [1.0, 0.0],
        "many": [[1.0, 0.0], [0.0, 1.0]],
        "sparse": models.SparseVector(indices=[1], values=[1.0]),
    }
    assert (await client.retrieve("code", [3, 4], with_payload=["lang"]))[0].payload == {"lang": "python"}
    assert (await client.count("code")).count == 3


async def test_points_can_be_given_in_columns(client: AsyncQdrantClient) -> None:
    await make(client)
    columns = models.Batch(ids=[1, TWO], vectors={"dense": [[1, 0], [0, 1]]}, payloads=[{"a": 1}, {}])
    await client.upsert("code", columns, wait=True)
    found = await client.retrieve("code", [1, TWO], with_vectors=["dense"])
    assert {point.id: (point.vector, point.payload) for point in found} == {
        1: ({"dense": [1.0, 0.0]}, {"a": 1}),
        TWO: ({"dense": [0.0, 1.0]}, {}),
    }


async def test_an_unnamed_vector_needs_no_name(client: AsyncQdrantClient) -> None:
    await client.create_collection("plain", models.VectorParams(size=2, distance=models.Distance.EUCLID))
    await client.upsert("plain", [models.PointStruct(id=1, vector=[1, 0]), models.PointStruct(id=2, vector=[5, 5])])
    found = await client.query_points("plain", [1, 0.5], with_vectors=True, limit=1)
    assert [(point.id, point.vector) for point in found.points] == [(1, [1.0, 0.0])]


async def test_scrolling_in_pages_sees_each_point_once(client: AsyncQdrantClient) -> None:
    await make(client)
    await client.upsert("code", [models.PointStruct(id=each, vector={"dense": [1, each]}) for each in range(25)])
    seen: list[object] = []
    offset: object = 0
    while offset is not None:
        points, offset = await client.scroll("code", limit=7, offset=offset)  # type: ignore[arg-type]
        seen += [point.id for point in points]
    assert seen == list(range(25))


async def test_each_kind_of_vector_can_be_searched(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)

    async def best(query: object, using: str) -> list[object]:
        found = await client.query_points("code", query, using=using, with_payload=True)  # type: ignore[arg-type]
        return [point.id for point in found.points]

    assert await best([0.0, 1.0], "dense") == [TWO, 3, ONE]
    assert await best([[1.0, 0.0], [0.0, 1.0]], "many") == [ONE, TWO]
    assert await best(models.SparseVector(indices=[2], values=[1.0]), "sparse") == [TWO]


@pytest.mark.parametrize(
    "fusion",
    [
        models.FusionQuery(fusion=models.Fusion.RRF),
        models.FusionQuery(fusion=models.Fusion.DBSF),
        models.RrfQuery(rrf=models.Rrf(k=3)),
    ],
)
async def test_fusion_ranks_what_the_prefetches_found(client: AsyncQdrantClient, fusion: models.Query) -> None:
    await make(client)
    await fill(client)
    found = await client.query_points(
        "code",
        prefetch=[
            models.Prefetch(query=[0.0, 1.0], using="dense", limit=2),
            models.Prefetch(query=models.SparseVector(indices=[2], values=[1.0]), using="sparse", limit=2),
        ],
        query=fusion,
        limit=2,
        with_payload=True,
    )
    assert [point.id for point in found.points] == [TWO, 3]


async def test_weights_of_a_fusion_are_honoured(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    prefetch = [
        models.Prefetch(query=[1.0, 0.0], using="dense", limit=1),
        models.Prefetch(query=models.SparseVector(indices=[2], values=[1.0]), using="sparse", limit=1),
    ]

    async def first(weights: list[float]) -> object:
        query = models.RrfQuery(rrf=models.Rrf(weights=weights))
        return (await client.query_points("code", prefetch=prefetch, query=query)).points[0].id

    assert (await first([3, 1]), await first([1, 3])) == (ONE, TWO)


async def test_a_score_threshold_an_offset_and_a_filter_are_honoured(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    query = {"query": [0.0, 1.0], "using": "dense"}
    above = await client.query_points("code", **query, score_threshold=0.7)  # type: ignore[arg-type]
    assert [point.id for point in above.points] == [TWO, 3]
    second = await client.query_points("code", **query, offset=1, limit=1)  # type: ignore[arg-type]
    assert [point.id for point in second.points] == [3]
    python = await client.query_points("code", **query, query_filter=where("lang", "python"))  # type: ignore[arg-type]
    assert [point.id for point in python.points] == [3, ONE]


@pytest.mark.parametrize(("diversity", "expected"), [(0.0, [1, 2]), (1.0, [1, 3])])
async def test_diversity_is_traded_for_relevance_as_asked(
    client: AsyncQdrantClient, diversity: float, expected: list[int]
) -> None:
    await make(client)
    vectors = {1: [1.0, 0.0], 2: [0.99, 0.1], 3: [0.5, 0.9], 4: [0.0, 1.0]}
    await client.upsert("code", [models.PointStruct(id=each, vector={"dense": v}) for each, v in vectors.items()])
    query = models.NearestQuery(nearest=[1.0, 0.0], mmr=models.Mmr(diversity=diversity, candidates_limit=3))
    found = await client.query_points("code", query, using="dense", limit=2)
    assert [point.id for point in found.points] == expected


async def test_several_queries_in_one_request_are_answered_in_order(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    answers = await client.query_batch_points(
        "code",
        [
            models.QueryRequest(query=[1.0, 0.0], using="dense", limit=1),
            models.QueryRequest(query=[0.0, 1.0], using="dense", limit=1),
        ],
    )
    assert [answer.points[0].id for answer in answers] == [ONE, TWO]


async def test_facets_count_values(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    facet = await client.facet("code", "lang", exact=True)
    assert {hit.value: hit.count for hit in facet.hits} == {"python": 2, "rust": 1}


async def test_points_are_deleted_by_id_and_by_filter(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    await client.delete("code", models.PointIdsList(points=[3, 99]))
    assert await ids(client) == {ONE, TWO}
    await client.delete("code", models.FilterSelector(filter=where("lang", "rust")))
    assert await ids(client) == {ONE}


async def test_payloads_are_set_overwritten_deleted_and_cleared(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)

    async def payload() -> object:
        return (await client.retrieve("code", [ONE]))[0].payload

    await client.set_payload("code", {"a": {"b": 1}}, [ONE])
    assert await payload() == {"lang": "python", "epoch": 1, "a": {"b": 1}}
    await client.set_payload("code", {"c": 2}, where("epoch", 1), key="a")
    assert await payload() == {"lang": "python", "epoch": 1, "a": {"b": 1, "c": 2}}
    await client.delete_payload("code", ["a", "epoch"], [ONE])
    assert await payload() == {"lang": "python"}
    await client.overwrite_payload("code", {"z": 1}, [ONE])
    assert await payload() == {"z": 1}
    await client.clear_payload("code", [ONE])
    assert await payload() == {}
    assert (await client.retrieve("code", [TWO]))[0].payload == {"lang": "rust", "epoch": 2}


async def test_vectors_are_updated_and_deleted(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    await client.update_vectors("code", [models.PointVectors(id=3, vector={"dense": [1, 0]})])
    await client.delete_vectors("code", ["dense"], [ONE])
    found = await client.query_points("code", [1.0, 0.0], using="dense")
    assert [point.id for point in found.points] == [3, TWO]


async def test_operations_of_a_batch_are_carried_out_in_order(client: AsyncQdrantClient) -> None:
    await make(client)
    point = models.PointStruct(id=1, vector={"dense": [1, 0]}, payload={"lang": "go"})
    results = await client.batch_update_points(
        "code",
        [
            models.UpsertOperation(upsert=models.PointsList(points=[point, point.model_copy(update={"id": 2})])),
            models.SetPayloadOperation(set_payload=models.SetPayload(payload={"seen": 1}, points=[2])),
            models.DeleteOperation(
                delete=models.FilterSelector(filter=models.Filter(must_not=[models.HasIdCondition(has_id=[2])]))
            ),
        ],
    )
    assert [result.status for result in results] == [models.UpdateStatus.COMPLETED] * 3
    assert await ids(client) == {2}
    assert (await client.retrieve("code", [2]))[0].payload == {"lang": "go", "seen": 1}


async def test_a_conditional_upsert_leaves_newer_points_alone(client: AsyncQdrantClient) -> None:
    await make(client)
    await fill(client)
    older = models.Filter(must=[models.FieldCondition(key="epoch", range=models.Range(lte=1))])
    points = [models.PointStruct(id=each, vector={}, payload={"epoch": 9}) for each in (ONE, TWO)]
    await client.upsert("code", points, update_filter=older)
    assert {point.id: point.payload["epoch"] for point in await client.retrieve("code", [ONE, TWO])} == {ONE: 9, TWO: 2}  # type: ignore[index]


async def test_an_alias_stands_for_its_collection_and_moves_in_one_request(client: AsyncQdrantClient) -> None:
    await make(client, "old")
    await make(client, "new")
    await fill(client, "new")
    create = models.CreateAlias(collection_name="old", alias_name="code")
    await client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    assert (await client.count("code")).count == 0
    await client.update_collection_aliases(
        [
            models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name="code")),
            models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name="new", alias_name="code")),
        ]
    )
    assert (await client.count("code")).count == 3
    assert [(each.alias_name, each.collection_name) for each in (await client.get_aliases()).aliases] == [
        ("code", "new")
    ]
    assert (await client.get_collection_aliases("old")).aliases == []
    rename = models.RenameAlias(old_alias_name="code", new_alias_name="source")
    await client.update_collection_aliases([models.RenameAliasOperation(rename_alias=rename)])
    assert await ids(client, name="source") == {ONE, TWO, 3}


async def test_a_deleted_collection_is_gone_with_its_aliases(client: AsyncQdrantClient) -> None:
    await make(client)
    create = models.CreateAlias(collection_name="code", alias_name="alias")
    await client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
    assert await client.delete_collection("code")
    assert not await client.collection_exists("alias")
    await make(client)
    assert (await client.count("code")).count == 0


@pytest.mark.parametrize("name", ["c d", "code%2Fx", "Ünïcode 日本", "..a", "a.b", "CODE"])
async def test_names_of_collections_may_be_odd(client: AsyncQdrantClient, name: str) -> None:
    await make(client)
    await client.create_collection(name, models.VectorParams(size=2, distance=models.Distance.DOT))
    await client.upsert(name, [models.PointStruct(id=7, vector=[1, 0])])
    assert (await client.count(name)).count == 1
    assert (await client.count("code")).count == 0


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    for start in range(2):
        collections = Collections(folder)
        client = AsyncQdrantClient(
            url="http://engine",
            port=None,
            check_compatibility=False,
            transport=httpx.ASGITransport(EngineApp(collections)),
        )
        if start == 0:
            await make(client)
            await fill(client)
            create = models.CreateAlias(collection_name="code", alias_name="alias")
            await client.update_collection_aliases([models.CreateAliasOperation(create_alias=create)])
        before, after = await client.get_collection("code"), await client.get_collection("alias")
        assert before == after
        assert after.config.metadata == {"made_by": "a test"}
        assert set(after.payload_schema) == {"lang", "tenant", "epoch"}
        assert await ids(client) == {ONE, TWO, 3}
        await client.close()
        collections.close()
