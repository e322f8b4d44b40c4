"""Points and their vectors: checked and handed to the engine, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import qdrant_edge as edge

from reposync.vectors.engine.filters import read_id
from reposync.vectors.engine.refusal import Json, bad, edge_call, fields, need, unsupported
from reposync.vectors.engine.schema import DenseShape, Schema

_INFERENCE = ({"text", "model"}, {"image", "model"}, {"object", "model"})


def read_points(request: Mapping[str, Json], schema: Schema) -> list[edge.Point]:
    """Of an upsert, as a list (`points`) or in columns (`batch`).

    Every vector is checked here: an upsert that the engine itself rejects stands in its log already, and comes back
    half-applied after a crash.
    """
    rows = _columns(request["batch"]) if "batch" in request else need(request, "points", "upsert")
    if not isinstance(rows, list):
        raise bad("points must be an array")
    return [_point(row, schema) for row in rows]


def _columns(batch: Json) -> list[Json]:
    present = fields(batch, "batch", ("ids", "vectors", "payloads"))
    ids, vectors = need(present, "ids", "batch"), need(present, "vectors", "batch")
    if isinstance(vectors, dict):
        if any(not isinstance(column, list) or len(column) != len(ids) for column in vectors.values()):
            raise bad("number of ids and vectors must be equal")
        vectors = [{name: column[at] for name, column in vectors.items()} for at in range(len(ids))]
    payloads = present.get("payloads", [None] * len(ids))
    if not len(ids) == len(vectors) == len(payloads):
        raise bad("number of ids, vectors and payloads must be equal")
    return [{"id": i, "vector": v, "payload": p} for i, v, p in zip(ids, vectors, payloads, strict=True)]


def _point(row: Json, schema: Schema) -> edge.Point:
    present = fields(row, "point", ("id", "vector", "payload"))
    payload = present.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise bad("payload must be an object")
    vectors = read_vectors(need(present, "vector", "point"), schema)
    return edge_call(edge.Point, read_id(need(present, "id", "point")), vectors, payload)


def read_point_vectors(row: Json, schema: Schema) -> edge.PointVectors:
    present = fields(row, "point vectors", ("id", "vector"))
    vectors = read_vectors(need(present, "vector", "point vectors"), schema)
    return edge_call(edge.PointVectors, read_id(need(present, "id", "point vectors")), vectors)


def read_vectors(value: Json, schema: Schema) -> Any:
    """The vectors of one point as the engine wants them. Raises Refusal where name, dimension or kind do not fit."""
    if isinstance(value, list):
        return _dense(value, "", schema)
    if not isinstance(value, dict):
        raise bad("vector must be an array or an object")
    if set(value) in _INFERENCE:
        raise unsupported("inference (text or images in place of a vector)")
    return {name: _vector(each, name, schema) for name, each in value.items()}


def _vector(value: Json, name: str, schema: Schema) -> Any:
    if isinstance(value, list):
        return _dense(value, name, schema)
    if isinstance(value, dict) and set(value) == {"indices", "values"}:
        if name not in schema.sparse:
            raise bad(f"Not existing vector name error: {name}")
        return sparse_vector(value)
    if isinstance(value, dict):
        raise unsupported("inference (text or images in place of a vector)")
    raise bad(f"vector `{name}` must be an array or a sparse vector")


def _dense(value: list[Json], name: str, schema: Schema) -> list[Json]:
    shape = schema.dense.get(name)
    if shape is None:
        raise bad(f"Not existing vector name error: {name}")
    check_dense(value, shape, name)
    return value


def check_dense(value: list[Json], shape: DenseShape, name: str) -> None:
    rows: Iterable[Json] = value if value and isinstance(value[0], list) else (value,)
    if not shape.multivector and rows is value:
        raise bad(f"vector `{name}` is not a multivector")
    for row in rows:
        if not isinstance(row, list) or len(row) != shape.size:
            got = len(row) if isinstance(row, list) else type(row).__name__
            raise bad(f"Vector dimension error: expected dim: {shape.size}, got {got}")


def sparse_vector(value: Mapping[str, Json]) -> edge.SparseVector:
    """The engine takes lists of unequal length and indices named twice without a word, and finds nonsense."""
    indices, values = value["indices"], value["values"]
    if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
        raise bad("a sparse vector needs as many indices as values")
    vector = edge_call(edge.SparseVector, indices, values)
    if len(set(indices)) != len(indices):
        raise bad("the indices of a sparse vector must be unique")
    return vector


def record(found: edge.Record) -> dict[str, Json]:
    return {"id": answer_id(found.id), "payload": found.payload, "vector": _answer_vector(found.vector)}


def scored(found: edge.ScoredPoint) -> dict[str, Json]:
    return {**record(found), "version": found.version, "score": found.score}  # type: ignore[arg-type]


def answer_id(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _answer_vector(value: Any) -> Json:
    if not isinstance(value, dict):
        return value
    return {
        name: {"indices": each.indices, "values": each.values} if isinstance(each, edge.SparseVector) else each
        for name, each in value.items()
    }
