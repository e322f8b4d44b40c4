"""Filters of the REST contract as filters of the engine."""

from __future__ import annotations

from collections.abc import Sequence

import qdrant_edge as edge

from reposync.vectors.engine.refusal import (
    Json,
    bad,
    edge_call,
    fields,
    flag,
    items,
    need,
    number,
    text,
    unsupported,
    whole,
)

CLAUSES = ("must", "should", "must_not", "min_should")
_MATCHES_BEYOND = ("text_any", "phrase", "prefix", "substring")
_FIELD = ("key", "match", "range", "values_count", "is_empty", "is_null")
_GEO = ("geo_bounding_box", "geo_radius", "geo_polygon")
_BOUNDS = ("gte", "gt", "lte", "lt")
# A filter is read recursively: a body of 32 MB of brackets must not end the process.
_MAX_DEPTH = 32

Condition = (
    edge.FieldCondition
    | edge.IsEmptyCondition
    | edge.IsNullCondition
    | edge.HasIdCondition
    | edge.HasVectorCondition
    | edge.NestedCondition
    | edge.Filter
)


def read_filter(value: Json, *, depth: int = 0) -> edge.Filter | None:
    """None where there is none. Raises Refusal for what the engine would not honour."""
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        raise bad(f"a filter may be nested {_MAX_DEPTH} deep")
    present = fields(value, "filter", CLAUSES)
    clauses = {name: _conditions(present[name], depth) for name in ("must", "should", "must_not") if name in present}
    return edge_call(edge.Filter, **clauses, min_should=_min_should(present.get("min_should"), depth))


def read_selecting_filter(value: Json) -> edge.Filter:
    """A filter that chooses what is changed or deleted.

    The engine takes an empty one for every point; nobody means that, so it is refused.
    """
    parsed = read_filter(value)
    if parsed is None or not _restricts(value):
        raise bad("an empty filter would select every point of the collection; name a condition")
    return parsed


def _restricts(value: Json) -> bool:
    """Whether a filter that was read without complaint has a condition at all."""
    at_least = value.get("min_should") or {}
    clauses = [value.get("must"), value.get("should"), value.get("must_not")]
    clauses += [at_least["conditions"]] if at_least.get("min_count") else []
    conditions = [one for each in clauses if each for one in (each if isinstance(each, list) else [each])]
    return any(not set(one) <= set(CLAUSES) or _restricts(one) for one in conditions)


def _conditions(value: Json, depth: int) -> list[Condition]:
    return items(value if isinstance(value, list) else [value], "filter clause", lambda one: _condition(one, depth + 1))


def _min_should(value: Json, depth: int) -> edge.MinShould | None:
    if value is None:
        return None
    present = fields(value, "min_should", ("conditions", "min_count"))
    conditions = _conditions(need(present, "conditions", "min_should"), depth)
    min_count = whole(need(present, "min_count", "min_should"), "min_count")
    if min_count > len(conditions):
        # Never true; but with an index on another field of the filter, the engine finds points by it all the same.
        raise bad("min_should asks for more conditions than it has")
    return edge_call(edge.MinShould, conditions, min_count)


def _condition(value: Json, depth: int) -> Condition:
    if not isinstance(value, dict):
        raise bad("a filter condition must be an object")
    if "key" in value:
        return _field(value)
    if "has_id" in value:
        return edge_call(edge.HasIdCondition, set(read_ids(_only(value, "has_id"), "has_id")))
    if "has_vector" in value:
        return edge_call(edge.HasVectorCondition, text(_only(value, "has_vector"), "has_vector"))
    if "is_empty" in value:
        return edge_call(edge.IsEmptyCondition, text(_only(_only(value, "is_empty"), "key"), "is_empty.key"))
    if "is_null" in value:
        return edge_call(edge.IsNullCondition, text(_only(_only(value, "is_null"), "key"), "is_null.key"))
    if "nested" in value:
        present = fields(_only(value, "nested"), "nested", ("key", "filter"))
        inner = read_filter(need(present, "filter", "nested"), depth=depth + 1)
        return edge_call(edge.NestedCondition, text(need(present, "key", "nested"), "nested.key"), inner)
    if "slice" in value:
        raise unsupported("`slice` in a filter")
    inner = read_filter(value, depth=depth)
    if inner is None:  # an object is never None
        raise bad("a filter condition must be an object")
    return inner


def _only(value: Json, name: str) -> Json:
    return need(fields(value, "condition", (name,)), name, "condition")


def _field(value: Json) -> edge.FieldCondition:
    present = fields(value, "condition", _FIELD, beyond=_GEO)
    key = text(present.pop("key", None), "key")
    if len(present) != 1:
        # The engine quietly takes the first of several, and matches nothing where there is none.
        raise bad(f"the condition on `{key}` must have exactly one of {', '.join(_FIELD[1:])}")
    ((kind, asked),) = present.items()
    if kind in ("is_empty", "is_null"):
        return edge_call(edge.FieldCondition, key, **{kind: flag(asked, kind)})
    readers = {"match": _match, "range": _range, "values_count": _values_count}
    return edge_call(edge.FieldCondition, key, **{kind: readers[kind](asked)})


def _match(value: Json) -> edge.MatchValue | edge.MatchAny | edge.MatchExcept | edge.MatchText:
    present = fields(value, "match", ("value", "any", "except", "text"), beyond=_MATCHES_BEYOND)
    if len(present) != 1:
        raise bad("match must have exactly one of value, any, except, text")
    ((kind, asked),) = present.items()
    if kind == "value":
        if isinstance(asked, bool):
            # The engine takes true for the integer 1: it would find the wrong points.
            raise unsupported("`match` on a truth value")
        return edge_call(edge.MatchValue, asked)
    if kind == "text":
        return edge_call(edge.MatchText, text(asked, "match.text"))
    if not isinstance(asked, list) or any(isinstance(each, bool) for each in asked):
        raise bad(f"match.{kind} must be an array of strings or of integers")
    return edge_call(edge.MatchAny, asked) if kind == "any" else edge_call(edge.MatchExcept, asked)


def _range(value: Json) -> edge.RangeFloat | edge.RangeDateTime:
    present = fields(value, "range", _BOUNDS)
    if not present:
        raise bad("a range needs a bound")
    if {"gt", "gte"} <= set(present) or {"lt", "lte"} <= set(present):
        raise bad("a range may have one lower and one upper bound")  # an index would honour one of two
    if all(isinstance(bound, str) for bound in present.values()):
        return edge_call(edge.RangeDateTime, **present)
    return edge_call(edge.RangeFloat, **{name: number(bound, f"range.{name}") for name, bound in present.items()})


def _values_count(value: Json) -> edge.ValuesCount:
    present = fields(value, "values_count", _BOUNDS)
    return edge_call(
        edge.ValuesCount, **{name: whole(bound, f"values_count.{name}") for name, bound in present.items()}
    )


def read_ids(value: Json, where: str) -> Sequence[int | str]:
    return items(value, where, read_id)


def read_id(value: Json) -> int | str:
    """An unsigned integer or a UUID, as Qdrant has them. (The engine refuses text that is no UUID.)"""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise bad(f"{value!r} is not a point id: it must be an unsigned integer or a UUID")
    return value
