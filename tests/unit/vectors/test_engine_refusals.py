"""What the embedded engine cannot do right it refuses: it never answers a question that nobody asked."""

import json
from typing import Any

import httpx
import pytest

DENSE = {"query": [1, 0], "using": "dense"}


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


async def refused(code: httpx.AsyncClient, method: str, path: str, body: Any, status: int) -> str:
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


UNSUPPORTED_FILTERS = [
    {"must": [{"key": "a", "match": {"phrase": "x y"}}]},
    {"must": [{"key": "a", "match": {"text_any": "x y"}}]},
    {"must": [{"key": "a", "match": {"prefix": "x"}}]},
    {"must": [{"key": "yes", "match": {"value": True}}]},
    {"must": [{"key": "a", "geo_radius": {"center": {"lon": 1, "lat": 1}, "radius": 5}}]},
    {
        "must_not": {
            "key": "a",
            "geo_bounding_box": {"top_left": {"lon": 1, "lat": 1}, "bottom_right": {"lon": 1, "lat": 1}},
        }
    },
    {"should": [{"must": [{"slice": {"total": 2, "index": 1}}]}]},
]
WRONG_FILTERS = [
    {"mustt": []},
    {"must": [{"key": "a"}]},
    {"must": [{"key": "a", "match": {"value": 1}, "range": {"gte": 1}}]},
    {"must": [{"key": "a", "match": {}}]},
    {"must": [{"key": "a", "match": {"value": 1, "any": [1]}}]},
    {"must": [{"key": "a", "match": {"value": 1.5}}]},
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
    {"must": [{"is_empty": "a"}]},
    {"must": ["a"]},
    {"must": 1},
    {"min_should": {"conditions": [{"has_id": [1]}]}},
    {"min_should": {"conditions": [{"has_id": [1]}], "min_count": 2}},
    {"min_should": {"conditions": [{"has_id": [1]}], "min_count": -1}},
    [],
    "all",
]


@pytest.mark.parametrize("condition", UNSUPPORTED_FILTERS, ids=json.dumps)
async def test_a_filter_that_the_engine_would_not_honour_is_refused_as_unsupported(
    code: httpx.AsyncClient, condition: Any
) -> None:
    for method, path, body in (
        ("POST", "/points/count", {"filter": condition}),
        ("POST", "/points/query", DENSE | {"filter": condition}),
        ("POST", "/points/delete?wait=true", {"filter": condition}),
    ):
        assert "A Qdrant server can do this" in await refused(code, method, path, body, 501)


@pytest.mark.parametrize("condition", WRONG_FILTERS, ids=json.dumps)
async def test_a_filter_that_makes_no_sense_is_refused(code: httpx.AsyncClient, condition: Any) -> None:
    for path, body in (
        ("/points/count", {"filter": condition}),
        ("/points/delete?wait=true", {"filter": condition}),
        ("/points/query", {"prefetch": [DENSE | {"filter": condition}], "query": {"fusion": "rrf"}}),
    ):
        await refused(code, "POST", path, body, 400)


@pytest.mark.parametrize(
    "empty",
    [
        {},
        {"must": []},
        {"should": [], "must_not": None},
        {"must": [{"should": []}]},
        {"must": {}},
        {"min_should": {"conditions": [], "min_count": 0}},
        {"min_should": {"conditions": [{"has_id": [1]}], "min_count": 0}},
    ],
    ids=json.dumps,
)
async def test_an_empty_filter_deletes_and_changes_nothing(code: httpx.AsyncClient, empty: Any) -> None:
    for method, path, more in (
        ("POST", "/points/delete", {}),
        ("POST", "/points/payload", {"payload": {"a": 0}}),
        ("PUT", "/points/payload", {"payload": {"a": 0}}),
        ("POST", "/points/payload/delete", {"keys": ["a"]}),
        ("POST", "/points/payload/clear", {}),
        ("POST", "/points/vectors/delete", {"vector": ["dense"]}),
    ):
        message = await refused(code, method, path + "?wait=true", {"filter": empty, **more}, 400)
        assert "every point" in message
    batch = {"operations": [{"delete": {"points": [1]}}, {"delete": {"filter": empty}}]}
    assert "every point" in await refused(code, "POST", "/points/batch?wait=true", batch, 400)


@pytest.mark.parametrize(
    "query",
    [
        {"query": 1},
        {"query": "00000000-0000-0000-0000-000000000001"},
        {"query": {"recommend": {"positive": [1]}}},
        {"query": {"discover": {"target": 1, "context": []}}},
        {"query": {"context": []}},
        {"query": {"order_by": "a"}},
        {"query": {"sample": "random"}},
        {"query": {"formula": {"sum": ["$score"]}}},
        {"query": {"text": "hello", "model": "bm25"}},
        {"query": {"nearest": 1}, "using": "dense"},
        DENSE | {"params": {"quantization": {"rescore": True}}},
        DENSE | {"params": {"acorn": {"enable": True}}},
        DENSE | {"shard_key": "a"},
        DENSE | {"lookup_from": {"collection": "other"}},
        {"prefetch": DENSE | {"lookup_from": {"collection": "other"}}, "query": {"fusion": "rrf"}},
    ],
    ids=json.dumps,
)
async def test_a_query_beyond_the_engine_is_refused_as_unsupported(code: httpx.AsyncClient, query: Any) -> None:
    await refused(code, "POST", "/points/query", query, 501)
    await refused(code, "POST", "/points/query/batch", {"searches": [DENSE, query]}, 501)


@pytest.mark.parametrize(
    "query",
    [
        DENSE | {"limit": 0},
        DENSE | {"limit": "10"},
        DENSE | {"offset": -1},
        DENSE | {"score_threshold": "high"},
        DENSE | {"params": {"exact": "yes"}},
        DENSE | {"params": {"ef": 1}},
        DENSE | {"with_payload": {"include": ["a"], "exclude": ["b"]}},
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
        {"query": {"fusion": "rrf"}},
        {"query": {"fusion": "best"}, "prefetch": [DENSE]},
        {"query": {"fusion": "rrf"}, "prefetch": [DENSE], "using": "dense"},
        {"query": {"rrf": {"weights": [1]}}, "prefetch": [DENSE, DENSE]},
        {"query": {"rrf": {"k": 0}}, "prefetch": [DENSE]},
        {"prefetch": [DENSE]},
        {"query": {"nearest": [1, 0], "farthest": [0, 1]}, "using": "dense"},
        {"query": {"nearest": [1, 0], "mmr": {"diversity": 2}}, "using": "dense"},
        {"query": {"nearest": [1, 0], "mmr": {"lambda": 0.5}}, "using": "dense"},
        {"query": {"nearest": None}, "using": "dense"},
    ],
    ids=json.dumps,
)
async def test_a_query_that_makes_no_sense_is_refused(code: httpx.AsyncClient, query: Any) -> None:
    await refused(code, "POST", "/points/query", query, 400)


@pytest.mark.parametrize(
    ("vector", "status"),
    [
        ({"dense": [1, 0, 0]}, 400),
        ({"dense": []}, 400),
        ({"dense": [[1, 0]]}, 400),
        ({"dense": [1, "x"]}, 400),
        ({"dense": [1, None]}, 400),
        ({"dense": "x"}, 400),
        ({"nope": [1, 0]}, 400),
        ([1, 0], 400),
        ({"many": []}, 400),
        ({"many": [[1, 0], []]}, 400),
        ({"sparse": [1, 0]}, 400),
        ({"dense": {"indices": [1], "values": [1]}}, 400),
        ({"sparse": {"indices": [1, 2], "values": [1]}}, 400),
        ({"sparse": {"indices": [2, 2], "values": [1, 1]}}, 400),
        ({"sparse": {"indices": [4294967296], "values": [1]}}, 400),
        ({"sparse": {"indices": [1], "values": ["x"]}}, 400),
        ({"dense": {"text": "hello", "model": "m"}}, 501),
        ({"text": "hello", "model": "m"}, 501),
    ],
    ids=str,
)
async def test_a_vector_that_does_not_fit_stores_nothing_of_its_request(
    code: httpx.AsyncClient, vector: Any, status: int
) -> None:
    good = {"id": 8, "vector": {"dense": [1, 0]}}
    wrong = {"id": 9, "vector": vector}
    await refused(code, "PUT", "/points?wait=true", {"points": [good, wrong]}, status)
    batch = {
        "operations": [{"upsert": {"points": [good]}}, {"delete": {"points": [1]}}, {"upsert": {"points": [wrong]}}]
    }
    await refused(code, "POST", "/points/batch?wait=true", batch, status)


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
        ("PUT", "/points", {"batch": {"ids": [8, 9], "vectors": {"dense": [[1, 0]]}}}, 400),
        ("PUT", "/points", {"points": [], "shard_key": "a"}, 501),
        ("POST", "/points/delete", {}, 400),
        ("POST", "/points/delete", {"points": [1], "filter": {"must": [{"has_id": [2]}]}}, 400),
        ("PUT", "/points/payload", {"points": [1], "payload": {"x": 1}, "key": "a"}, 501),
        ("POST", "/points/payload", {"points": [1, 77], "payload": {"x": 1}}, 404),
        ("PUT", "/points/vectors", {"points": [{"id": 1, "vector": {"dense": [0, 1]}}, {"id": 77, "vector": {}}]}, 404),
        ("POST", "/points/vectors/delete", {"points": [1], "vector": ["nope"]}, 400),
        ("POST", "/points/batch", {"operations": [{"sync_points": {}}]}, 501),
        ("POST", "/points/batch", {"operations": [{}]}, 400),
        ("POST", "/points/query/groups", DENSE | {"group_by": "a"}, 501),
        ("POST", "/points/search/matrix/pairs", {}, 501),
        ("POST", "/points/scroll", {"order_by": "a"}, 501),
        ("POST", "/points/scroll", {"limit": 0}, 400),
        ("POST", "/points/scroll", {"offset": "x"}, 400),
        ("POST", "/facet", {"key": "a"}, 400),
        ("POST", "/points", {"ids": ["x"]}, 400),
        ("GET", "/points/77", None, 404),
        ("PUT", "/index", {"field_name": "a", "field_schema": "text"}, 501),
        ("PUT", "/index", {"field_name": "a", "field_schema": "geo"}, 501),
        ("PUT", "/index", {"field_name": "a", "field_schema": "string"}, 400),
        ("PUT", "/index", {"field_name": "a"}, 400),
        ("PATCH", "", {"vectors": {"dense": {"on_disk": True}}}, 501),
        ("PATCH", "", {"optimizers_config": {"indexing_threshold": 1}}, 501),
        ("POST", "/snapshots", {}, 501),
        ("PUT", "", {"vectors": {"size": 2, "distance": "Dot"}}, 409),
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
        ({"shard_number": 2}, 501),
        ({"replication_factor": 3}, 501),
        ({"quantization_config": {"scalar": {"type": "int8"}}}, 501),
        ({"sharding_method": "custom"}, 501),
        ({"strict_mode_config": {"enabled": True}}, 501),
        ({"vectors": {"a": {"size": 2, "distance": "Dot", "datatype": "float16"}}}, 501),
        ({"vectors": {"a": {"size": 2, "distance": "Dot", "quantization_config": {"scalar": {"type": "int8"}}}}}, 501),
        ({"vectors": {"a": {"size": 0, "distance": "Dot"}}}, 400),
        ({"vectors": {"a": {"size": 2, "distance": "Near"}}}, 400),
        ({"vectors": {"a": {"size": 2}}}, 400),
        ({"vectors": [1]}, 400),
        ({"vectors": {}}, 501),
        ({"sparse_vectors": {"s": {"modifier": "bm25"}}}, 400),
        ({"sparse_vectors": {"s": {"index": {"datatype": "uint8"}}}}, 501),
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
    answer = await http.put(url, json={"vectors": {"size": 2, "distance": "Dot"}})
    assert answer.status_code == 400, answer.text


async def test_a_missing_collection_is_not_found(http: httpx.AsyncClient) -> None:
    for method, path in (("GET", ""), ("POST", "/points/count"), ("PUT", "/points"), ("PATCH", "")):
        answer = await http.request(method, f"/collections/none{path}", json={})
        assert answer.status_code == 404
        assert "`none` doesn't exist" in answer.json()["status"]["error"]
    assert (await http.delete("/collections/none")).json()["result"] is False


async def test_aliases_that_lead_nowhere_are_refused_and_none_of_the_request_is_done(code: httpx.AsyncClient) -> None:
    good = {"create_alias": {"collection_name": "code", "alias_name": "x"}}
    for wrong, status in (
        ({"create_alias": {"collection_name": "none", "alias_name": "y"}}, 404),
        ({"create_alias": {"collection_name": "code", "alias_name": "code"}}, 409),
        ({"rename_alias": {"old_alias_name": "none", "new_alias_name": "y"}}, 404),
        ({"drop_alias": {}}, 400),
    ):
        answer = await code.post("/collections/aliases", json={"actions": [good, wrong]})
        assert answer.status_code == status, answer.text
        assert (await code.get("/aliases")).json()["result"]["aliases"] == []


@pytest.mark.parametrize(
    "body", [b"{", b"[1, NaN]", b"\xff", b'{"filter": ' + b'{"must":' * 500 + b"1" + b"}" * 501, b"null", b"[]"]
)
async def test_rubbish_is_refused(code: httpx.AsyncClient, body: bytes) -> None:
    answer = await code.post("/collections/code/points/delete", content=body)
    assert answer.status_code == 400, answer.text
    answer = await code.post("/collections/code/points/batch", content=body)
    assert answer.status_code == 400, answer.text


async def test_a_body_above_the_limit_of_a_server_is_refused(code: httpx.AsyncClient) -> None:
    answer = await code.put("/collections/code/points", content=b" " * (32 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert "33554432" in answer.json()["status"]["error"]
