"""Filters, however nested, select exactly the points that they describe."""

import asyncio
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.vectors.engine.asgi import EngineApp
from reposync.vectors.engine.collections import Collections
from tests.fixtures.folders import quick_folder

WORDS = ["a", "b", "ünï", "x y", ""]
POINTS: dict[int, dict[str, Any]] = {
    number: {
        "word": WORDS[number % 5],
        "number": number - 4,
        **({"some": [number, 1]} if number % 2 else {}),
        **({"none": None} if number % 3 == 0 else {}),
        "in": {"side": WORDS[number % 3]},
    }
    for number in range(12)
}


def value_of(point: dict[str, Any], key: str) -> list[Any]:
    """All values that Qdrant looks at: elements of an array one by one, nothing for null or a missing field."""
    found: Any = point
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, list) else [] if found is None else [found]


def holds(condition: dict[str, Any], number: int) -> bool:
    """What Qdrant's documentation says of each condition, in Python."""
    point = POINTS[number]
    if "has_id" in condition:
        return number in condition["has_id"]
    if "key" not in condition:
        return selects(condition, number)
    values = value_of(point, condition["key"])
    if "range" in condition:
        numbers = [each for each in values if isinstance(each, int)]
        tests = {"gte": int.__ge__, "gt": int.__gt__, "lte": int.__le__, "lt": int.__lt__}
        return any(all(tests[name](each, bound) for name, bound in condition["range"].items()) for each in numbers)
    ((kind, asked),) = condition["match"].items()
    return any(each in asked if kind == "any" else each == asked for each in values)


def selects(condition: dict[str, Any], number: int) -> bool:
    must, should, must_not = (condition.get(name) or [] for name in ("must", "should", "must_not"))
    return (
        all(holds(each, number) for each in must)
        and (not should or any(holds(each, number) for each in should))
        and not any(holds(each, number) for each in must_not)
    )


def field(key: str, kind: str, value: Any) -> dict[str, Any]:
    return {"key": key, "match": {kind: value}}


words = st.sampled_from([*WORDS, "other"])
numbers = st.integers(-6, 10)
leaves = st.one_of(
    st.builds(field, st.sampled_from(["word", "in.side"]), st.just("value"), words),
    st.builds(field, st.sampled_from(["number", "some"]), st.just("value"), numbers),
    st.builds(field, st.just("word"), st.just("any"), st.lists(words, max_size=3)),
    st.builds(field, st.just("number"), st.just("any"), st.lists(numbers, max_size=3)),
    st.builds(
        lambda key, bounds: {"key": key, "range": bounds},
        st.sampled_from(["number", "some"]),
        st.builds(
            lambda lower, upper: lower | upper,
            st.dictionaries(st.sampled_from(["gte", "gt"]), numbers, max_size=1),
            st.dictionaries(st.sampled_from(["lte", "lt"]), numbers, max_size=1),
        ).filter(bool),
    ),
    st.builds(lambda ids: {"has_id": ids}, st.lists(st.integers(0, 14), max_size=4)),
)


def filters_of(conditions: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(conditions, max_size=3)
    return st.fixed_dictionaries({}, optional={"must": some, "should": some, "must_not": some})


filters = st.recursive(filters_of(leaves), lambda inner: filters_of(leaves | inner), max_leaves=6)


@pytest.fixture(scope="module", params=["indexed", "not indexed"])
def engine(request: pytest.FixtureRequest) -> Generator[httpx.ASGITransport, None, None]:
    with quick_folder() as folder:
        collections = Collections(folder)
        collections.create("code", {"sparse_vectors": {"sparse": {}}})
        if request.param == "indexed":
            for key, kind in (("word", "keyword"), ("in.side", "keyword"), ("number", "integer"), ("some", "integer")):
                collections.create_index("code", {"field_name": key, "field_schema": kind})
        transport = httpx.ASGITransport(EngineApp(collections))
        points = [{"id": number, "vector": {}, "payload": payload} for number, payload in POINTS.items()]
        asyncio.run(ask(transport, "PUT", "/collections/code/points", {"points": points}))
        yield transport
        collections.close()


async def ask(transport: httpx.ASGITransport, method: str, path: str, body: Any) -> Any:
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        answer = await client.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]


@given(condition=filters)
def test_a_filter_selects_exactly_the_points_that_it_describes(
    engine: httpx.ASGITransport, condition: dict[str, Any]
) -> None:
    body = {"filter": condition, "limit": 100}
    found = asyncio.run(ask(engine, "POST", "/collections/code/points/scroll", body))
    assert {point["id"] for point in found["points"]} == {number for number in POINTS if selects(condition, number)}
