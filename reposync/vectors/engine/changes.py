"""Changes to points: requests of the REST contract as operations of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import qdrant_edge as edge

from reposync.vectors.engine.collection_schema import Schema
from reposync.vectors.engine.conditions import read_selecting_filter
from reposync.vectors.engine.validation import Json, bad, edge_call, fields, items, need, point_id, unsupported


@dataclass(frozen=True, slots=True)
class Change:
    """One operation, and the points that must exist for it: the engine stops halfway at the first that does not."""

    operation: edge.UpdateOperation
    points: Sequence[int | str] = ()


def upsert(request: Json, schema: Schema) -> list[Change]:
    """Every vector is checked here: an upsert that the engine itself rejects is in its log already, and comes back
    half-applied after a crash."""
    present = fields(request, "upsert", ("points",))
    points = items(need(present, "points", "upsert"), "points", lambda row: _point(row, schema))
    return [Change(edge.UpdateOperation.upsert_points(points))] if points else []


def delete(request: Json, schema: Schema) -> list[Change]:
    ids, condition = _selected(fields(request, "delete", ("points", "filter")), "delete")
    if condition is not None:
        return [Change(edge.UpdateOperation.delete_points_by_filter(condition))]
    return [Change(edge_call(edge.UpdateOperation.delete_points, ids))] if ids else []


def set_payload(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "set_payload", ("payload", "points", "filter", "key"))
    payload, key = _payload(need(present, "payload", "set_payload")), present.get("key")
    ids, condition = _selected(present, "set_payload")
    if condition is not None:
        return [Change(edge_call(edge.UpdateOperation.set_payload_by_filter, condition, payload, key))]
    return [Change(edge_call(edge.UpdateOperation.set_payload, ids, payload, key), ids)] if ids else []


_OPERATIONS: Mapping[str, Callable[[Json, Schema], list[Change]]] = {
    "upsert": upsert,
    "delete": delete,
    "set_payload": set_payload,
}


def batch(request: Json, schema: Schema) -> list[list[Change]]:
    """Changes of each operation, in order. All are read before the first is carried out."""
    operations = need(fields(request, "batch", ("operations",)), "operations", "batch")
    return items(operations, "operations", lambda one: _operation(one, schema))


def _operation(value: Json, schema: Schema) -> list[Change]:
    if not isinstance(value, dict) or len(value) != 1:
        raise bad(f"each operation must be an object with one of {', '.join(_OPERATIONS)}")
    ((kind, request),) = value.items()
    if kind not in _OPERATIONS:
        raise unsupported(f"the operation `{kind}`")
    return _OPERATIONS[kind](request, schema)


def _selected(present: Mapping[str, Json], where: str) -> tuple[list[int | str], edge.Filter | None]:
    """Ids or a filter. A server accepts both and uses one of them; here that is refused."""
    if ("points" in present) == ("filter" in present):
        raise bad(f"{where} needs either points or filter")
    if "filter" in present:
        return [], read_selecting_filter(present["filter"])
    return items(present["points"], "points", point_id), None


def _point(row: Json, schema: Schema) -> edge.Point:
    present = fields(row, "point", ("id", "vector", "payload"))
    payload = _payload(present["payload"]) if "payload" in present else None
    vectors = need(present, "vector", "point")
    if not isinstance(vectors, dict):
        raise bad("vector must be an object of named vectors")
    named = {name: schema.vector(each, name) for name, each in vectors.items()}
    return edge_call(edge.Point, point_id(need(present, "id", "point")), named, payload)


def _payload(value: Json) -> Json:
    if not isinstance(value, dict):
        raise bad("payload must be an object")
    return value
