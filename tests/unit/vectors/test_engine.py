"""The embedded engine: what it carries out, and what it refuses without a change."""

import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from reposync.vectors.engine.asgi import EngineApp
from reposync.vectors.engine.collections import Collections
from tests.fixtures.contract import ContractTransport
from tests.fixtures.folders import quick_folder

ONE, TWO = (f"00000000-0000-0000-0000-00000000000{each}" for each in (1, 2))
MADE_OF = {
    "vectors": {
        "dense": {"size": 2, "distance": "Cosine"},
        "many": {"size": 2, "distance": "Cosine", "multivector_config": {"comparator": "max_sim"}},
    },
    "sparse_vectors": {"sparse": {"modifier": "idf"}},
    "metadata": {"made_by": "a test"},
}
POINTS = [
    {
        "id": ONE,
        "vector": {"dense": [1, 0], "many": [[1, 0], [0, 1]], "sparse": {"indices": [1], "values": [1]}},
        "payload": {"lang": "python", "epoch": 1, "symbols": [{"name": "f", "kind": "class"}]},
    },
    {
        "id": TWO,
        "vector": {"dense": [0, 1], "many": [[1, 0]], "sparse": {"indices": [2], "values": [1]}},
        "payload": {
            "lang": "rust",
            "epoch": 2,
            "symbols": [{"name": "f", "kind": "method"}, {"name": "g", "kind": "class"}],
        },
    },
    {"id": 3, "vector": {"dense": [0.6, 0.8]}, "payload": {"lang": "python", "epoch": 3}},
]
INDEXES = {"lang": {"type": "keyword"}, "epoch": {"type": "integer", "lookup": True, "range": True}}
DENSE = {"query": [1, 0], "using": "dense"}


@pytest.fixture
async def http() -> AsyncGenerator[httpx.AsyncClient, None]:
    """The engine's application in the test's own process. Every exchange has to keep Qdrant's contract."""
    with quick_folder() as folder:
        collections = Collections(folder)
        watched = ContractTransport(httpx.ASGITransport(EngineApp(collections)))
        async with httpx.AsyncClient(transport=watched, base_url="http://engine") as client:
            yield client
        collections.close()
    assert watched.violations == []


async def done(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await http.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


@pytest.fixture
async def code(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A collection `code` with three points."""
    await done(http, "PUT", "/collections/code", MADE_OF)
    for name, schema in INDEXES.items():
        await done(http, "PUT", "/collections/code/index", {"field_name": name, "field_schema": schema})
    await done(http, "PUT", "/collections/code/points?wait=true", {"points": POINTS})
    return http


async def points(http: httpx.AsyncClient, selected: Any = None, name: str = "code") -> dict[Any, Any]:
    request = {"limit": 100, "filter": selected, "with_vector": True}
    return {
        each["id"]: each for each in (await done(http, "POST", f"/collections/{name}/points/scroll", request))["points"]
    }


async def refused(code: httpx.AsyncClient, method: str, path: str, body: Any, status: int = 400) -> str:
    before = await points(code)
    answer = await code.request(method, f"/collections/code{path}", json=body)
    assert answer.status_code == status, answer.text
    assert await points(code) == before
    return str(answer.json()["status"]["error"])


async def test_operations_of_a_batch_are_carried_out_in_order(code: httpx.AsyncClient) -> None:
    operations = [
        {"upsert": {"points": [{"id": 4, "vector": {"dense": [1, 0]}, "payload": {"a": {"b": 1}}}]}},
        {"set_payload": {"payload": {"c": 2}, "key": "a", "points": [4]}},
        {"delete": {"points": [3, 99]}},
        {"delete": {"filter": {"must_not": [{"has_id": [4, ONE]}]}}},
    ]
    results = await done(code, "POST", "/collections/code/points/batch?wait=true", {"operations": operations})
    assert [each["status"] for each in results] == ["completed"] * 4
    found = await points(code)
    assert found.keys() == {4, ONE}
    assert found[4]["payload"] == {"a": {"b": 1, "c": 2}}
    assert (found[ONE]["payload"], found[ONE]["vector"]) == (POINTS[0]["payload"], POINTS[0]["vector"])


def in_epoch(**bounds: int) -> dict[str, Any]:
    return {"key": "epoch", "range": bounds}


def in_languages(*names: str) -> dict[str, Any]:
    return {"key": "lang", "match": {"any": list(names)}}


CLASS_F = [{"key": "name", "match": {"value": "f"}}, {"key": "kind", "match": {"value": "class"}}]


@pytest.mark.parametrize(
    ("selected", "expected"),
    [
        ({"must": []}, {ONE, TWO, 3}),
        ({"must": [in_languages("python"), in_epoch(gt=1, lte=3)]}, {3}),
        ({"must": [in_epoch(gte=2, lt=3)]}, {TWO}),
        ({"must": [in_languages()]}, set()),
        ({"should": [in_epoch(lt=2), in_languages("rust")]}, {ONE, TWO}),
        ({"must_not": [in_languages("python", "go")]}, {TWO}),
        ({"must": [{"must_not": [in_epoch(lte=1)]}, in_languages("python")]}, {3}),
        ({"must": [{"has_id": [TWO, 3, 99]}], "should": None}, {TWO, 3}),
        ({"must_not": [{"has_vector": "sparse"}]}, {3}),
        ({"must": [{"is_empty": {"key": "symbols"}}]}, {3}),
        ({"must": [{"key": "epoch", "match": {"value": 2}}]}, {TWO}),
        ({"must": [{"nested": {"key": "symbols", "filter": {"must": CLASS_F}}}]}, {ONE}),
    ],
)
async def test_a_filter_selects_exactly_the_points_that_it_describes(
    code: httpx.AsyncClient, selected: Any, expected: set[object]
) -> None:
    assert (await points(code, selected)).keys() == expected


@pytest.mark.parametrize(
    "condition",
    [
        {"mustt": [{"has_id": [1]}]},
        {"must": [{"key": "epoch", "match": {"value": 1}, "range": {"gte": 1}}]},
        {"must": [{"key": "epoch", "match": {"value": 1, "any": [1]}}]},
        {"must": [{"key": "epoch", "match": {"like": "x"}}]},
        {"must": [{"key": "epoch", "range": {"above": 1}}]},
        {"must": [{"key": "a[", "match": {"value": 1}}]},
        {"must": [{"has_id": ["not-a-uuid"]}]},
        {"must": [{"has_id": [1], "key": "epoch"}]},
        {"must": [{"is_null": {"key": "epoch"}}]},
        {"must": [{"is_empty": {"field": "epoch"}}]},
        [],
    ],
    ids=json.dumps,
)
async def test_a_filter_that_the_engine_does_not_know_is_refused(code: httpx.AsyncClient, condition: Any) -> None:
    for path, body in (("/points/count", {}), ("/points/delete?wait=true", {}), ("/points/query", DENSE)):
        await refused(code, "POST", path, body | {"filter": condition})


@pytest.mark.parametrize(
    "empty", [{}, {"must": []}, {"should": [], "must_not": None}, {"must": [{"should": []}]}], ids=json.dumps
)
async def test_an_empty_filter_deletes_nothing(code: httpx.AsyncClient, empty: Any) -> None:
    batch = {"operations": [{"delete": {"points": [3]}}, {"delete": {"filter": empty}}]}
    for path, body in (("/points/delete", {"filter": empty}), ("/points/batch", batch)):
        assert "every point" in await refused(code, "POST", path + "?wait=true", body)


@pytest.mark.parametrize(
    "vector",
    [
        {"dense": [1, 0, 0]},
        {"dense": [[1, 0]]},
        {"dense": [1, None]},
        {"unknown": [1, 0]},
        [1, 0],
        {"many": [[1, 0], []]},
        {"dense": {"indices": [1], "values": [1]}},
        {"sparse": {"indices": [1, 2], "values": [1]}},
        {"sparse": {"indices": [2, 2], "values": [1, 1]}},
    ],
    ids=str,
)
async def test_a_vector_that_does_not_fit_stores_nothing_of_its_request(code: httpx.AsyncClient, vector: Any) -> None:
    good, wrong = {"id": 8, "vector": {"dense": [1, 0]}}, {"id": 9, "vector": vector}
    await refused(code, "PUT", "/points?wait=true", {"points": [good, wrong]})
    operations = [
        {"upsert": {"points": [good]}},
        {"delete": {"points": [3]}},
        {"upsert": {"points": [wrong]}},
    ]
    await refused(code, "POST", "/points/batch?wait=true", {"operations": operations})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/points/query", {"query": {"recommend": {"positive": [1]}}, "using": "dense"}, 400),
        ("POST", "/points/query", {"query": [1, 0]}, 400),
        ("POST", "/points/query", DENSE | {"prefetch": [DENSE]}, 400),
        ("PUT", "/points", {"points": [{"id": -1, "vector": {}}]}, 400),
        ("PUT", "/points", {"points": [{"id": 9, "vector": {}, "paylod": {}}]}, 400),
        ("POST", "/points/delete", {}, 400),
        ("POST", "/points/delete", {"points": [3], "filter": {"must": [{"has_id": [2]}]}}, 400),
        ("POST", "/points/batch", {"operations": [{"sync_points": {}}]}, 400),
        ("POST", "/points/scroll", {"order_by": "a"}, 400),
        ("POST", "/points/scroll", None, 400),
        ("POST", "/facet", {"key": "a"}, 400),
        ("PUT", "/index", {"field_name": "a", "field_schema": {"type": "text"}}, 400),
        ("PATCH", "", {"metadata": {}}, 501),
        ("PUT", "", MADE_OF, 409),
        ("PUT", "/points", {"points": " " * (32 * 1024 * 1024)}, 413),
    ],
    ids=lambda each: str(each)[:80],
)
async def test_other_requests_that_cannot_be_carried_out_are_refused(
    code: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    await refused(code, method, path, body if body is not None else [], status)


@pytest.mark.parametrize(
    "change",
    [{"shard_number": 2}, {"vectors": {"a": {"size": 2, "distance": "Dot"}}}, {"vectors": {"size": 2}}, {"metdata": 1}],
    ids=str,
)
async def test_a_collection_that_the_engine_cannot_hold_is_not_made(
    http: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    assert (await http.put("/collections/code", json=MADE_OF | change)).status_code == 400
    assert (await http.get("/collections/code")).status_code == 404
    assert await done(http, "GET", "/collections") == {"collections": []}


async def test_aliases_that_lead_nowhere_are_refused_and_none_of_the_request_is_done(code: httpx.AsyncClient) -> None:
    good = {"create_alias": {"collection_name": "code", "alias_name": "x"}}
    for wrong, status in (
        ({"create_alias": {"collection_name": "none", "alias_name": "y"}}, 404),
        ({"create_alias": {"collection_name": "code", "alias_name": "code"}}, 409),
        ({"drop_alias": {}}, 400),
    ):
        answer = await code.post("/collections/aliases", json={"actions": [good, wrong]})
        assert answer.status_code == status, answer.text
        assert await done(code, "GET", "/collections/x/exists") == {"exists": False}
    await done(code, "POST", "/collections/aliases", {"actions": [good]})
    assert (await points(code, name="x")).keys() == {ONE, TWO, 3}
    await done(code, "DELETE", "/collections/code")
    assert await done(code, "GET", "/collections/x/exists") == {"exists": False}


async def test_names_of_collections_may_be_odd_and_everything_is_there_after_a_restart() -> None:
    names = ["code%2Fx", "Ünïcode 日本", "..a", "CODE", "code"]
    described = []
    with quick_folder() as folder:
        for start in range(2):
            collections = Collections(folder)
            transport = httpx.ASGITransport(EngineApp(collections))
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
                for number, name in enumerate(names if start == 0 else []):
                    await done(http, "PUT", f"/collections/{name}", MADE_OF)
                    await done(http, "PUT", f"/collections/{name}/points", {"points": POINTS[:number]})
                if start == 0:
                    index = {"field_name": "lang", "field_schema": INDEXES["lang"]}
                    await done(http, "PUT", "/collections/code/index", index)
                    alias = {"create_alias": {"collection_name": "code", "alias_name": "alias"}}
                    await done(http, "POST", "/collections/aliases", {"actions": [alias]})
                described.append([await done(http, "GET", f"/collections/{name}") for name in [*names, "alias"]])
            collections.close()
    assert described[0] == described[1]
    assert [each["points_count"] for each in described[0]] == [0, 1, 2, 3, 3, 3]
    assert described[0][-1]["payload_schema"].keys() == {"lang"}
    assert {each["config"]["metadata"]["made_by"] for each in described[0]} == {"a test"}


async def test_points_are_ranked_by_their_original_vectors(http: httpx.AsyncClient) -> None:
    draw, answers = random.Random(4), []
    rows = [[[draw.gauss(0, 1) for _ in range(32)] for _ in range(3)] for _ in range(500)]
    await done(http, "PUT", "/collections/code", {"vectors": {"many": MADE_OF["vectors"]["many"] | {"size": 32}}})  # type: ignore[index]
    made = [{"id": number, "vector": {"many": each}} for number, each in enumerate(rows)]
    await done(http, "PUT", "/collections/code/points", {"points": made})

    query = {"query": [draw.gauss(0, 1) for _ in range(32)], "using": "many", "limit": 20}
    for exact in (False, True):
        found = await done(http, "POST", "/collections/code/points/query", query | {"params": {"exact": exact}})
        answers.append([(point["id"], point["score"]) for point in found["points"]])

    assert answers[0] == answers[1]


async def test_queries_that_are_sent_together_are_answered_as_if_they_were_sent_alone(http: httpx.AsyncClient) -> None:
    await done(http, "PUT", "/collections/code", MADE_OF)
    await done(http, "PUT", "/collections/code/points", {"points": POINTS})
    searches = [DENSE, DENSE | {"limit": 1}, DENSE | {"filter": {"must": [{"has_id": [1]}]}}]

    together = await done(http, "POST", "/collections/code/points/query/batch", {"searches": searches})

    assert together == [await done(http, "POST", "/collections/code/points/query", each) for each in searches]
    wrong = {"searches": [DENSE, {"using": "dense"}]}
    assert (await http.post("/collections/code/points/query/batch", json=wrong)).status_code == 400


async def test_use_keeps_an_engine_alive_and_a_probe_does_not() -> None:
    with quick_folder() as folder:
        collections = Collections(folder)
        app = EngineApp(collections)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
            made = app.last_used
            await done(http, "GET", "/readyz")
            assert app.last_used == made
            await done(http, "GET", "/collections")
            assert app.last_used > made
        collections.close()


async def test_an_exchange_that_breaks_the_contract_is_noticed() -> None:
    watched = ContractTransport(httpx.MockTransport(lambda _: httpx.Response(200, json={"result": {"count": "many"}})))
    async with httpx.AsyncClient(transport=watched, base_url="http://qdrant") as client:
        await client.post("/collections/code/points/count", json={"wrong": True})
    assert {each.split(": ")[1] for each in watched.violations} == {"request", "answer"}
