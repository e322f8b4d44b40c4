"""Filters of the REST contract as filters of the engine: those that reposync uses."""

from __future__ import annotations

import qdrant_edge as edge

from reposync.vectors.engine.validation import Json, bad, edge_call, fields, items, need, point_id, text

_CLAUSES = ("must", "should", "must_not")
_BOUNDS = ("gte", "gt", "lte", "lt")
# A filter is read recursively: a body of 32 MB of brackets must not end the process.
_MAX_DEPTH = 32

Condition = edge.FieldCondition | edge.HasIdCondition | edge.HasVectorCondition | edge.Filter


def read_filter(value: Json, *, depth: int = 0) -> edge.Filter | None:
    """None if there is none. Raises Refusal for what the engine would not honour."""
    if value is None:
        return None
    if depth > _MAX_DEPTH:
        raise bad(f"a filter may be nested {_MAX_DEPTH} deep")
    present = fields(value, "filter", _CLAUSES)
    return edge_call(edge.Filter, **{name: _conditions(clause, depth) for name, clause in present.items()})


def read_selecting_filter(value: Json) -> edge.Filter:
    """A filter that selects points for a change. An empty one, which selects every point, is refused."""
    parsed = read_filter(value)
    if parsed is None or not _restricts(value):
        raise bad("an empty filter would select every point of the collection; name a condition")
    return parsed


def _restricts(value: Json) -> bool:
    """Whether a valid filter has a condition at all."""
    clauses = [each if isinstance(each, list) else [each] for each in map(value.get, _CLAUSES) if each]
    return any(not set(one) <= set(_CLAUSES) or _restricts(one) for clause in clauses for one in clause)


def _conditions(value: Json, depth: int) -> list[Condition]:
    return items(value if isinstance(value, list) else [value], "filter clause", lambda one: _condition(one, depth + 1))


def _condition(value: Json, depth: int) -> Condition:
    if not isinstance(value, dict):
        raise bad("a filter condition must be an object")
    if "key" in value:
        return _field(value)
    if "has_id" in value:
        ids = need(fields(value, "condition", ("has_id",)), "has_id", "condition")
        return edge_call(edge.HasIdCondition, set(items(ids, "has_id", point_id)))
    if "has_vector" in value:
        name = need(fields(value, "condition", ("has_vector",)), "has_vector", "condition")
        return edge_call(edge.HasVectorCondition, text(name, "has_vector"))
    inner = read_filter(value, depth=depth)
    assert inner is not None  # noqa: S101 - for the type checker: an object is a filter or refused
    return inner


def _field(value: Json) -> edge.FieldCondition:
    present = fields(value, "condition", ("key", "match", "range"))
    key = text(present.pop("key", None), "key")
    if len(present) != 1:
        # The engine would silently use the first of several.
        raise bad(f"the condition on `{key}` must have exactly one of match, range")
    if "match" in present:
        return edge_call(edge.FieldCondition, key, match=_match(present["match"]))
    return edge_call(edge.FieldCondition, key, range=_range(present["range"]))


def _match(value: Json) -> edge.MatchValue | edge.MatchAny:
    present = fields(value, "match", ("value", "any"))
    if len(present) != 1:
        raise bad("match must have exactly one of value, any")
    ((kind, wanted),) = present.items()
    # The engine takes true for the integer 1: it would find the wrong points.
    if kind == "value" and not isinstance(wanted, bool):
        return edge_call(edge.MatchValue, wanted)
    if not isinstance(wanted, list) or any(isinstance(each, bool) for each in wanted):
        raise bad(f"match.{kind} must hold strings or integers")
    return edge_call(edge.MatchAny, wanted)


def _range(value: Json) -> edge.RangeFloat:
    present = fields(value, "range", _BOUNDS)
    if not present:
        raise bad("a range needs a bound")
    if {"gt", "gte"} <= set(present) or {"lt", "lte"} <= set(present):
        raise bad("a range may have one lower and one upper bound")  # an index would honour one of two
    for name, bound in present.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise bad(f"range.{name} must be a number")
    return edge_call(edge.RangeFloat, **{name: float(bound) for name, bound in present.items()})
