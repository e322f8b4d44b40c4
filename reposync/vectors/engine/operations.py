"""Changes to points: each request of the REST contract becomes operations of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import qdrant_edge as edge

from reposync.vectors.engine.filters import read_filter, read_ids, read_selecting_filter
from reposync.vectors.engine.points import read_point_vectors, read_points
from reposync.vectors.engine.refusal import Json, bad, edge_call, fields, items, need, texts, unsupported
from reposync.vectors.engine.schema import Schema

_Make = edge.UpdateOperation
_SHARD = ("shard_key",)
_MODES = {"upsert": None, "insert_only": edge.UpdateMode.InsertOnly, "update_only": edge.UpdateMode.UpdateOnly}


@dataclass(frozen=True, slots=True)
class Change:
    """One operation, and the points that must exist for it: the engine stops halfway at the first that does not."""

    operation: edge.UpdateOperation
    points: Sequence[int | str] = ()


def upsert(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "upsert", ("points", "batch", "update_filter", "update_mode"), beyond=_SHARD)
    if ("points" in present) == ("batch" in present):
        raise bad("an upsert needs either points or batch")
    mode = present.get("update_mode", "upsert")
    if mode not in _MODES:
        raise bad(f"update_mode must be one of {', '.join(_MODES)}")
    points = read_points(present, schema)
    if not points:
        return []
    condition = read_filter(present.get("update_filter"))
    return [Change(_Make.upsert_points(points, condition=condition, update_mode=_MODES[mode]))]


def delete(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "delete", ("points", "filter"), beyond=_SHARD)
    ids, condition = _selected(present, "delete")
    if condition is not None:
        return [Change(_Make.delete_points_by_filter(condition))]
    return [Change(edge_call(_Make.delete_points, ids))] if ids else []


def set_payload(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "set_payload", ("payload", "points", "filter", "key"), beyond=_SHARD)
    payload, key = _payload(present), present.get("key")
    ids, condition = _selected(present, "set_payload")
    if condition is not None:
        return [Change(edge_call(_Make.set_payload_by_filter, condition, payload, key))]
    return [Change(edge_call(_Make.set_payload, ids, payload, key), ids)] if ids else []


def overwrite_payload(request: Json, schema: Schema) -> list[Change]:
    # `key`: the engine would replace the whole payload all the same.
    present = fields(request, "overwrite_payload", ("payload", "points", "filter"), beyond=(*_SHARD, "key"))
    payload = _payload(present)
    ids, condition = _selected(present, "overwrite_payload")
    if condition is not None:
        return [Change(edge_call(_Make.overwrite_payload_by_filter, condition, payload))]
    return [Change(edge_call(_Make.overwrite_payload, ids, payload), ids)] if ids else []


def delete_payload(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "delete_payload", ("keys", "points", "filter"), beyond=_SHARD)
    keys = texts(need(present, "keys", "delete_payload"), "keys")
    ids, condition = _selected(present, "delete_payload")
    if condition is not None:
        return [Change(edge_call(_Make.delete_payload_by_filter, condition, keys))]
    return [Change(edge_call(_Make.delete_payload, ids, keys), ids)] if ids else []


def clear_payload(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "clear_payload", ("points", "filter"), beyond=_SHARD)
    ids, condition = _selected(present, "clear_payload")
    if condition is not None:
        return [Change(_Make.clear_payload_by_filter(condition))]
    return [Change(edge_call(_Make.clear_payload, ids), ids)] if ids else []


def update_vectors(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "update_vectors", ("points", "update_filter"), beyond=_SHARD)
    rows = need(present, "points", "update_vectors")
    vectors = items(rows, "points", lambda row: read_point_vectors(row, schema))
    if not vectors:
        return []
    condition = read_filter(present.get("update_filter"))
    return [Change(_Make.update_vectors(vectors, condition=condition), [row["id"] for row in rows])]


def delete_vectors(request: Json, schema: Schema) -> list[Change]:
    present = fields(request, "delete_vectors", ("points", "filter", "vector"), beyond=_SHARD)
    names = texts(need(present, "vector", "delete_vectors"), "vector")
    for name in names:
        if name not in schema.dense and name not in schema.sparse:
            raise bad(f"Not existing vector name error: {name}")
    ids, condition = _selected(present, "delete_vectors")
    if condition is not None:
        return [Change(_Make.delete_vectors_by_filter(condition, names))]
    return [Change(edge_call(_Make.delete_vectors, ids, names), ids)] if ids else []


OPERATIONS: Mapping[str, Callable[[Json, Schema], list[Change]]] = {
    "upsert": upsert,
    "delete": delete,
    "set_payload": set_payload,
    "overwrite_payload": overwrite_payload,
    "delete_payload": delete_payload,
    "clear_payload": clear_payload,
    "update_vectors": update_vectors,
    "delete_vectors": delete_vectors,
}


def batch(request: Json, schema: Schema) -> list[list[Change]]:
    """Changes of each operation, in order. All are read before the first is carried out."""
    present = fields(request, "batch", ("operations",))
    return items(need(present, "operations", "batch"), "operations", lambda one: _one(one, schema))


def _one(value: Json, schema: Schema) -> list[Change]:
    if not isinstance(value, dict) or len(value) != 1:
        raise bad(f"each operation must be an object with one of {', '.join(OPERATIONS)}")
    ((kind, request),) = value.items()
    if kind not in OPERATIONS:
        raise unsupported(f"the operation `{kind}`")
    return OPERATIONS[kind](request, schema)


def _selected(present: Mapping[str, Json], where: str) -> tuple[list[int | str], edge.Filter | None]:
    """Ids or a filter. A server takes both and uses one of them; here that is refused."""
    if ("points" in present) == ("filter" in present):
        raise bad(f"{where} needs either points or filter")
    if "filter" in present:
        return [], read_selecting_filter(present["filter"])
    return list(read_ids(present["points"], "points")), None


def _payload(present: Mapping[str, Json]) -> Json:
    payload = need(present, "payload", "payload operation")
    if not isinstance(payload, dict):
        raise bad("payload must be an object")
    return payload
