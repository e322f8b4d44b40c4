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


WRONG_FILTERS = [
    {"mustt": []},
    {"must": [{"key": "a"}]},
    {"must": [{"key": "a", "match": {"value": 1}, "range": {"gte": 1}}]},
    {"must": [{"key": "a", "match": {}}]},
    {"must": [{"key": "a", "match": {"value": 1, "any": [1]}}]},
    {"must": [{"key": "a", "match": {"value": 1.5}}]},
    {"must": [{"key": "yes", "match": {"value": True}}]},
    {"must": [{"key": "a", "match": {"any": [1, "x"]}}]},
    {"must": [{"key": "a", "match": {"any": "x"}}]},
    {"must": [{"key": "a", "match": {"like": "x"}}]},
    {"must": [{"key": "a", "range": {"gte": "monday"}}]},
    {"must": [{"key": "a", "range": {"above": 1}}]},
    {"must": [{"key": "a", "range": {}}]},
    {"must": [{"key": "a", "range": {"gt": 1, "gte": 2}}]},
    {"must": [{"key": "a", "range": {"gte": True}}]},
    {"must": [{"key": "a[", "match": {"value": 1}}]},
    {"must": [{"key": 1, "match": {"value": 1}}]},
    {"must": [{"kee": "a", "match": {"value": 1}}]},
    {"must": [{"has_id": None}]},
    {"must": [{"has_id": [True]}]},
    {"must": [{"has_id": ["not-a-uuid"]}]},
    {"must": [{"has_id": [1], "key": "a"}]},
    {"must": [{"is_empty": {"key": "a"}}]},
    {"must": ["a"]},
    {"must": 1},
    [],
    "all",
]


@pytest.mark.parametrize("condition", WRONG_FILTERS, ids=json.dumps)
async def test_a_filter_that_the_engine_does_not_know_is_refused(code: httpx.AsyncClient, condition: Any) -> None:
    for path, body in (
        ("/points/count", {"filter": condition}),
        ("/points/delete?wait=true", {"filter": condition}),
        ("/points/query", {"prefetch": [DENSE | {"filter": condition}], **RRF}),
    ):
        await refused(code, "POST", path, body)


@pytest.mark.parametrize(
    "empty",
    [{}, {"must": []}, {"should": [], "must_not": None}, {"must": [{"should": []}]}, {"must": {}}],
    ids=json.dumps,
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
        {"query": 1, "using": "dense"},
        {"query": {"recommend": {"positive": [1]}}},
        {"query": {"nearest": 1}, "using": "dense"},
        {"query": {"nearest": None}, "using": "dense"},
        {"query": {"nearest": [1, 0], "farthest": [0, 1]}, "using": "dense"},
        DENSE | {"limit": 0},
        DENSE | {"limit": "10"},
        DENSE | {"offset": -1},
        DENSE | {"with_payload": "a"},
        DENSE | {"with_vector": ["nope"]},
        DENSE | {"unheard_of": 1},
        {"query": [1, 0], "using": "nope"},
        {"query": [1, 0]},
        {"query": [1, 0, 0], "using": "dense"},
        {"query": [[1, 0]], "using": "dense"},
        {"query": [1, "0"], "using": "dense"},
        {"query": [[1, 0], [0]], "using": "many"},
        {"query": {"indices": [1], "values": [1]}, "using": "dense"},
        {"query": {"indices": [1, 1], "values": [1, 1]}, "using": "sparse"},
        {"query": {"indices": [1], "values": []}, "using": "sparse"},
        {"query": {"indices": [-1], "values": [1]}, "using": "sparse"},
        RRF,
        {"query": {"fusion": "dbsf"}, "prefetch": [DENSE]},
        RRF | {"prefetch": [DENSE], "using": "dense"},
        RRF | {"prefetch": [{"prefetch": [DENSE], **RRF}]},
        {"prefetch": [DENSE]},
    ],
    ids=json.dumps,
)
async def test_a_query_that_the_engine_does_not_know_is_refused(code: httpx.AsyncClient, query: Any) -> None:
    await refused(code, "POST", "/points/query", query)


@pytest.mark.parametrize(
    "vector",
    [
        {"dense": [1, 0, 0]},
        {"dense": []},
        {"dense": [[1, 0]]},
        {"dense": [1, "x"]},
        {"dense": [1, None]},
        {"dense": "x"},
        {"nope": [1, 0]},
        [1, 0],
        {"many": []},
        {"many": [[1, 0], []]},
        {"sparse": [1, 0]},
        {"dense": {"indices": [1], "values": [1]}},
        {"sparse": {"indices": [1, 2], "values": [1]}},
        {"sparse": {"indices": [2, 2], "values": [1, 1]}},
        {"sparse": {"indices": [4294967296], "values": [1]}},
        {"sparse": {"indices": [1], "values": ["x"]}},
        {"dense": {"text": "hello", "model": "m"}},
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
        ("PUT", "/points", {"points": [{"id": "abc", "vector": {}}]}, 400),
        ("PUT", "/points", {"points": [{"id": 1.5, "vector": {}}]}, 400),
        ("PUT", "/points", {"points": [{"id": 9}]}, 400),
        ("PUT", "/points", {"points": [{"id": 9, "vector": {}, "payload": []}]}, 400),
        ("PUT", "/points", {"points": [{"id": 9, "vector": {}, "paylod": {}}]}, 400),
        ("PUT", "/points", {"points": {}}, 400),
        ("PUT", "/points", {}, 400),
        ("POST", "/points/delete", {}, 400),
        ("POST", "/points/delete", {"points": [1], "filter": {"must": [{"has_id": [2]}]}}, 400),
        ("POST", "/points/payload", {"points": [1], "payload": "x"}, 400),
        ("POST", "/points/payload", {"points": [1, 77], "payload": {"x": 1}}, 404),
        ("POST", "/points/batch", {"operations": [{"sync_points": {}}]}, 501),
        ("POST", "/points/batch", {"operations": [{}]}, 400),
        ("POST", "/points/query/groups", DENSE | {"group_by": "a"}, 501),
        ("POST", "/points/scroll", {"order_by": "a"}, 400),
        ("POST", "/points/scroll", {"limit": 0}, 400),
        ("POST", "/points/scroll", {"offset": "x"}, 400),
        ("POST", "/facet", {"key": "a"}, 400),
        ("POST", "/points", {"ids": ["x"]}, 400),
        ("PUT", "/index", {"field_name": "a", "field_schema": "text"}, 400),
        ("PUT", "/index", {"field_name": "a"}, 400),
        ("PATCH", "", {"metadata": {}}, 501),
        ("PUT", "", {"vectors": {"a": {"size": 2, "distance": "Dot"}}}, 409),
    ],
    ids=str,
)
async def test_other_requests_that_cannot_be_carried_out_are_refused(
    code: httpx.AsyncClient, method: str, path: str, body: Any, status: int
) -> None:
    await refused(code, method, path, body, status)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"shard_number": 2}, 400),
        ({"quantization_config": {"scalar": {"type": "int8"}}}, 400),
        ({"vectors": {"a": {"size": 2, "distance": "Dot", "datatype": "float16"}}}, 400),
        ({"vectors": {"a": {"size": 2, "distance": "Dot", "multivector_config": {"comparator": "sum"}}}}, 400),
        ({"vectors": {"a": {"size": 0, "distance": "Dot"}}}, 400),
        ({"vectors": {"a": {"size": 2, "distance": "Near"}}}, 400),
        ({"vectors": {"a": {"size": 2}}}, 400),
        ({"vectors": {"size": 2, "distance": "Dot"}}, 400),
        ({"vectors": [1]}, 400),
        ({"vectors": {}}, 501),
        ({"sparse_vectors": {"s": {"modifier": "bm25"}}}, 400),
        ({"sparse_vectors": {"a": {}}}, 400),
        ({"metadata": "x"}, 400),
        ({"metdata": {}}, 400),
    ],
    ids=str,
)
async def test_a_collection_that_the_engine_cannot_hold_is_not_made(
    http: httpx.AsyncClient, change: dict[str, Any], status: int
) -> None:
    body = {"vectors": {"a": {"size": 2, "distance": "Dot"}}} | change
    answer = await http.put("/collections/code", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["status"]["error"]
    assert (await http.get("/collections")).json()["result"]["collections"] == []


@pytest.mark.parametrize("name", ["a/b", "a\\b", "nul\0", "x" * 256, "new\nline"])
async def test_a_collection_name_that_qdrant_refuses_is_refused(http: httpx.AsyncClient, name: str) -> None:
    url = httpx.URL("http://engine/collections/" + "".join(f"%{byte:02X}" for byte in name.encode()))
    answer = await http.put(url, json={"vectors": {"a": {"size": 2, "distance": "Dot"}}})
    assert answer.status_code == 400, answer.text


async def test_a_missing_collection_is_not_found(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("POST", "/points/count"), ("PUT", "/points")):
        answer = await http.request(method, f"/collections/none{path}", json={})
        assert answer.status_code == 404
        assert "`none` doesn't exist" in answer.json()["status"]["error"]
    assert (await http.delete("/collections/none")).json()["result"] is False


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
    "body", [b"{", b"[1, NaN]", b"\xff", b'{"filter": ' + b'{"must":' * 500 + b"1" + b"}" * 501, b"null", b"[]"]
)
async def test_rubbish_is_refused(code: httpx.AsyncClient, body: bytes) -> None:
    for path in ("delete", "batch"):
        answer = await code.post(f"/collections/code/points/{path}", content=body)
        assert answer.status_code == 400, answer.text


async def test_a_body_above_the_limit_of_a_server_is_refused(code: httpx.AsyncClient) -> None:
    answer = await code.put("/collections/code/points", content=b" " * (32 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert "33554432" in answer.json()["status"]["error"]
