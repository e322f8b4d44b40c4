"""What the embedded engine cannot do right it refuses, and changes nothing."""

import json
from typing import Any

import httpx
import pytest

DENSE = {"query": [1, 0], "using": "dense"}
RRF = {"query": {"fusion": "rrf"}}


@pytest.fixture
async def code(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A collection `code` with two points."""
    body = {
        "vectors": {
            "dense": {"size": 2, "distance": "Cosine"},
            "many": {"size": 2, "distance": "Dot", "multivector_config": {"comparator": "max_sim"}},
        },
        "sparse_vectors": {"sparse": {"modifier": "idf"}},
    }
    assert (await http.put("/collections/code", json=body)).status_code == 200
    points = [{"id": each, "vector": {"dense": [1, each]}, "payload": {"a": each, "yes": True}} for each in (1, 2)]
    assert (await http.put("/collections/code/points?wait=true", json={"points": points})).status_code == 200
    return http


async def refused(code: httpx.AsyncClient, method: str, path: str, body: Any, status: int = 400) -> str:
    answer = await code.request(method, f"/collections/code{path}", json=body)
    assert answer.status_code == status, answer.text
    message = answer.json()["status"]["error"]
    assert isinstance(message, str)
    found = (await code.post("/collections/code/points/scroll", json={"with_vector": True})).json()["result"]["points"]
    assert [(point["id"], point["payload"]) for point in found] == [
        (1, {"a": 1, "yes": True}),
        (2, {"a": 2, "yes": True}),
    ]
    return message


@pytest.mark.parametrize(
    "condition",
    [
        {"mustt": []},
        {"must": [{"key": "a", "match": {"value": 1}, "range": {"gte": 1}}]},
        {"must": [{"key": "a", "match": {"value": 1, "any": [1]}}]},
        {"must": [{"key": "yes", "match": {"value": True}}]},
        {"must": [{"key": "a", "match": {"like": "x"}}]},
        {"must": [{"key": "a", "range": {}}]},
        {"must": [{"key": "a[", "match": {"value": 1}}]},
        {"must": [{"has_id": ["not-a-uuid"]}]},
        {"must": [{"has_id": [1], "key": "a"}]},
        {"must": [{"is_null": {"key": "a"}}]},
        {"must": [{"is_empty": {"field": "a"}}]},
        [],
    ],
    ids=json.dumps,
)
async def test_a_filter_that_the_engine_does_not_know_is_refused(code: httpx.AsyncClient, condition: Any) -> None:
    for path, body in (
        ("/points/count", {"filter": condition}),
        ("/points/delete?wait=true", {"filter": condition}),
        ("/points/query", {"prefetch": [DENSE | {"filter": condition}], **RRF}),
    ):
        await refused(code, "POST", path, body)


@pytest.mark.parametrize(
    "empty", [{}, {"must": []}, {"should": [], "must_not": None}, {"must": [{"should": []}]}], ids=json.dumps
)
async def test_an_empty_filter_deletes_and_changes_nothing(code: httpx.AsyncClient, empty: Any) -> None:
    batch = {"operations": [{"delete": {"points": [1]}}, {"delete": {"filter": empty}}]}
    for path, body in (
        ("/points/delete", {"filter": empty}),
        ("/points/payload", {"filter": empty, "payload": {"a": 0}}),
        ("/points/batch", batch),
    ):
        assert "every point" in await refused(code, "POST", path + "?wait=true", body)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"query": {"recommend": {"positive": [1]}}, "using": "dense"},
        {"query": {"nearest": [1, 0], "farthest": [0, 1]}, "using": "dense"},
        DENSE | {"limit": 0},
        DENSE | {"with_vector": ["unknown"]},
        {"query": [1, 0], "using": "unknown"},
        {"query": [1, 0]},
        {"query": [1, "0"], "using": "dense"},
        {"query": [[1, 0], [0]], "using": "many"},
        {"query": {"indices": [1, 1], "values": [1, 1]}, "using": "sparse"},
        RRF,
        RRF | {"prefetch": [DENSE], "using": "dense"},
        RRF | {"prefetch": [{"prefetch": [DENSE], **RRF}]},
    ],
    ids=json.dumps,
)
async def test_a_query_that_the_engine_does_not_know_is_refused(code: httpx.AsyncClient, query: Any) -> None:
    await refused(code, "POST", "/points/query", query)


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
    good = {"id": 8, "vector": {"dense": [1, 0]}}
    wrong = {"id": 9, "vector": vector}
    await refused(code, "PUT", "/points?wait=true", {"points": [good, wrong]})
    batch = {
        "operations": [{"upsert": {"points": [good]}}, {"delete": {"points": [1]}}, {"upsert": {"points": [wrong]}}]
    }
    await refused(code, "POST", "/points/batch?wait=true", batch)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/points", {"points": [{"id": -1, "vector": {}}]}, 400),
        ("PUT", "/points", {"points": [{"id": 9, "vector": {}, "paylod": {}}]}, 400),
        ("POST", "/points/delete", {}, 400),
        ("POST", "/points/delete", {"points": [1], "filter": {"must": [{"has_id": [2]}]}}, 400),
        ("POST", "/points/payload", {"points": [77], "payload": {"x": 1}}, 400),
        ("POST", "/points/batch", {"operations": [{"sync_points": {}}]}, 400),
        ("POST", "/points/scroll", {"order_by": "a"}, 400),
        ("POST", "/facet", {"key": "a"}, 400),
        ("PUT", "/index", {"field_name": "a", "field_schema": "text"}, 400),
        ("PATCH", "", {"metadata": {}}, 501),
        ("PUT", "", {"vectors": {"a": {"size": 2, "distance": "Dot"}}}, 409),
        ("PUT", "/points", {"points": " " * (32 * 1024 * 1024)}, 413),
    ],
    ids=lambda each: str(each)[:80],
)
async def test_other_requests_that_cannot_be_carried_out_are_refused(
    code: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    await refused(code, method, path, body, status)


@pytest.mark.parametrize(
    "change",
    [
        {"shard_number": 2},
        {"vectors": {"a": {"size": 2, "distance": "Dot", "datatype": "float16"}}},
        {"vectors": {"a": {"size": 2, "distance": "Dot", "multivector_config": {"comparator": "sum"}}}},
        {"vectors": {"size": 2, "distance": "Dot"}},
        {"metdata": {}},
    ],
    ids=str,
)
async def test_a_collection_that_the_engine_cannot_hold_or_name_is_not_made(
    http: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    body = {"vectors": {"a": {"size": 2, "distance": "Dot"}}}
    for name, request in (("code", body | change), ("a%2Fb", body), ("x" * 256, body)):
        answer = await http.put(f"/collections/{name}", json=request)
        assert answer.status_code == 400, answer.text
    assert answer.json()["status"]["error"]
    assert (await http.get("/collections")).json()["result"]["collections"] == []


async def test_a_missing_collection_is_not_found(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("POST", "/points/count"), ("PUT", "/points")):
        answer = await http.request(method, f"/collections/none{path}", json={})
        assert answer.status_code == 404
        assert "`none` doesn't exist" in answer.json()["status"]["error"]


async def test_aliases_that_lead_nowhere_are_refused_and_none_of_the_request_is_done(code: httpx.AsyncClient) -> None:
    good = {"create_alias": {"collection_name": "code", "alias_name": "x"}}
    for wrong, status in (
        ({"create_alias": {"collection_name": "none", "alias_name": "y"}}, 404),
        ({"create_alias": {"collection_name": "code", "alias_name": "code"}}, 409),
        ({"drop_alias": {}}, 400),
    ):
        answer = await code.post("/collections/aliases", json={"actions": [good, wrong]})
        assert answer.status_code == status, answer.text
        assert (await code.get("/collections/x/exists")).json()["result"] == {"exists": False}


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'{"filter": ' + b'{"must":[' * 500 + b"1" + b"]}" * 500 + b"}", b"null", b"[]"]
)
async def test_a_body_that_is_not_a_request_is_refused(code: httpx.AsyncClient, body: bytes) -> None:
    for path in ("delete", "batch"):
        answer = await code.post(f"/collections/code/points/{path}", content=body)
        assert answer.status_code == 400, answer.text
