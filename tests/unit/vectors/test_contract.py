"""The check of exchanges against the models of Qdrant's client finds what is wrong with them."""

import json
from typing import Any

import httpx
import pytest

from tests.fixtures.contract import ContractTransport, violations

POINTS = "/collections/code/points"
OK = {"status": "ok", "time": 0.1, "result": {"operation_id": 1, "status": "completed"}}
UPSERT = {"points": [{"id": 1, "vector": {"dense": [1.0, 0.0]}, "payload": {"any": ["thing", None]}}]}
FILTER = {"must": [{"key": "a", "match": {"value": 1}}]}


def found(method: str, path: str, request: Any, status: int, answer: Any) -> list[str]:
    return violations(method, path, json.dumps(request).encode(), status, json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("method", "path", "request_body", "status", "answer"),
    [
        ("PUT", POINTS, UPSERT, 200, OK),
        ("POST", POINTS + "/delete", {"filter": FILTER}, 200, OK),
        ("POST", POINTS + "/delete", {"points": ["5c56c793-69f3-4fbf-87e6-c4bf54c28c26", 3]}, 200, OK),
        ("POST", POINTS + "/count", {"filter": None}, 200, {"status": "ok", "time": 0, "result": {"count": 3}}),
        ("POST", POINTS + "/count", {"wrong": 1}, 400, {"status": {"error": "unknown field"}, "time": 0}),
        ("POST", POINTS + "/query/groups", {"wrong": 1}, 501, {"status": {"error": "not here"}, "time": 0}),
        ("GET", "/collections/c%2Fd", None, 404, {"status": {"error": "Not found"}, "time": 0}),
    ],
)
def test_a_right_exchange_passes(method: str, path: str, request_body: Any, status: int, answer: Any) -> None:
    assert found(method, path, request_body, status, answer) == []


@pytest.mark.parametrize(
    ("method", "path", "request_body", "status", "answer", "expected"),
    [
        ("PUT", POINTS, {"points": [{"id": 1}]}, 200, OK, "request"),
        ("PUT", POINTS, {"points": [{"id": 1, "vector": {"dense": ["x"]}}]}, 200, OK, "request"),
        ("POST", POINTS + "/delete", {"filter": {"mustt": []}}, 200, OK, "request"),
        ("POST", POINTS + "/delete", {"filter": {"must": [{"key": "a", "match": {"like": 1}}]}}, 200, OK, "request"),
        ("POST", POINTS + "/batch", {"operations": [{"remove": {}}]}, 200, OK | {"result": []}, "request"),
        ("PUT", POINTS, UPSERT, 200, {"result": {"status": "done"}, "status": "ok", "time": 0}, "answer"),
        ("PUT", POINTS, UPSERT, 200, {"result": {"status": "completed"}, "status": "ok", "time": "soon"}, "answer"),
        ("POST", POINTS + "/count", {}, 200, {"result": {"count": 1, "of": 2}, "status": "ok", "time": 0}, "answer"),
        ("POST", POINTS + "/count", {}, 400, {"error": "no"}, "answer"),
        ("GET", POINTS + "/everything/1", None, 200, OK, "no such operation"),
    ],
)
def test_a_planted_violation_is_found(
    method: str, path: str, request_body: Any, status: int, answer: Any, expected: str
) -> None:
    told = found(method, path, request_body, status, answer)
    assert told
    assert all(f"{method} {path}: {expected}" in each for each in told)


async def test_clients_of_both_kinds_are_watched_and_get_their_answers() -> None:
    inner = httpx.MockTransport(lambda _: httpx.Response(200, json={"result": {"count": "many"}}))
    watched = ContractTransport(inner)
    async with httpx.AsyncClient(transport=watched, base_url="http://qdrant") as client:
        answer = await client.post(f"{POINTS}/count?timeout=3", json={"exact": True})
    assert answer.json() == {"result": {"count": "many"}}
    with httpx.Client(transport=watched, base_url="http://qdrant") as client_without_asyncio:
        client_without_asyncio.post(f"{POINTS}/count", content=b'{"exact":')
    assert watched.exchanges == 2
    assert len(watched.violations) >= 2
