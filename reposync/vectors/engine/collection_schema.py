"""What a collection is made of: the description of the REST contract as the engine's configuration, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import qdrant_edge as edge

from reposync.vectors.engine.validation import Json, bad, edge_call, fields, flag, need, text, unsupported, whole

_DISTANCES = {each: getattr(edge.Distance, each) for each in ("Cosine", "Euclid", "Dot", "Manhattan")}
_HNSW = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}  # Qdrant's own defaults
# No HNSW graph: at 20,000 points building it takes 17 s, in which no request is answered, and a search takes 0.9 ms
# instead of 1.5 ms. Deleted points are cleared when they are half of a segment (`Collections.tidy`).
_OPTIMIZERS = {"indexing_threshold": 1_000_000_000, "deleted_threshold": 0.5}
_MAX_DIMENSION = 65_536


@dataclass(frozen=True, slots=True)
class DenseShape:
    size: int
    multivector: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Vectors by name, and the request that made the collection, to describe it again."""

    dense: Mapping[str, DenseShape]
    sparse: frozenset[str]
    request: dict[str, Json]

    def check_name(self, name: str) -> None:
        if name not in self.dense and name not in self.sparse:
            raise bad(f"Not existing vector name error: {name}")

    def vector(self, value: Json, name: str) -> Any:
        """The vector as the engine takes it. Raises Refusal if name, dimension or kind do not fit."""
        self.check_name(name)
        if name in self.sparse:
            return _sparse_vector(value)
        shape = self.dense[name]
        if not isinstance(value, list):
            raise bad(f"vector `{name}` must be an array")
        rows: Iterable[Json] = value if value and isinstance(value[0], list) else (value,)
        if not shape.multivector and rows is value:
            raise bad(f"vector `{name}` is not a multivector")
        for row in rows:
            if not isinstance(row, list) or len(row) != shape.size:
                got = len(row) if isinstance(row, list) else type(row).__name__
                raise bad(f"Vector dimension error: expected dim: {shape.size}, got {got}")
        return value


def _sparse_vector(value: Json) -> edge.SparseVector:
    """The engine accepts lists of different lengths and repeated indices without an error, and finds wrong points."""
    present = fields(value, "a sparse vector", ("indices", "values"))
    indices, values = need(present, "indices", "a sparse vector"), need(present, "values", "a sparse vector")
    if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
        raise bad("a sparse vector needs as many indices as values")
    vector = edge_call(edge.SparseVector, indices, values)
    if len(set(indices)) != len(indices):
        raise bad("the indices of a sparse vector must be unique")
    return vector


def read_schema(request: Json) -> Schema:
    """Raises Refusal for what the engine cannot honour (several shards, replicas, quantization, ...)."""
    present = fields(request, "collection", ("vectors", "sparse_vectors", "on_disk_payload", "metadata"))
    vectors, sparse = present.get("vectors", {}), present.get("sparse_vectors", {})
    if not all(isinstance(each, dict) for each in (vectors, sparse, present.get("metadata", {}))):
        raise bad("vectors, sparse_vectors and metadata must be objects")
    flag(present.get("on_disk_payload", True), "on_disk_payload")
    if not vectors and not sparse:
        raise unsupported("a collection without vectors")
    if clash := set(vectors) & set(sparse):
        raise bad(f"dense and sparse vectors share the name `{min(clash)}`")
    for params in sparse.values():
        if fields(params, "sparse vector parameters", ("modifier",)).get("modifier", "none") not in ("none", "idf"):
            raise bad("modifier must be none or idf")
    return Schema({name: _shape(params) for name, params in vectors.items()}, frozenset(sparse), present)


def _shape(params: Json) -> DenseShape:
    where = "vector parameters"
    present = fields(params, where, ("size", "distance", "multivector_config"))
    size = whole(need(present, "size", where), "size", least=1)
    if size > _MAX_DIMENSION:
        raise bad(f"a vector may have {_MAX_DIMENSION} dimensions")
    if need(present, "distance", where) not in _DISTANCES:
        raise bad(f"distance must be one of {', '.join(_DISTANCES)}")
    if present.get("multivector_config") not in (None, {"comparator": "max_sim"}):
        raise bad("multivector_config.comparator must be max_sim")
    return DenseShape(size, "multivector_config" in present)


def edge_config(schema: Schema) -> edge.EdgeConfig:
    request = schema.request
    multivector = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    dense = {
        name: edge_call(
            edge.EdgeVectorParams,
            params["size"],
            _DISTANCES[params["distance"]],
            multivector_config=multivector if schema.dense[name].multivector else None,
        )
        for name, params in (request.get("vectors") or {}).items()
    }
    sparse = {
        name: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if params.get("modifier") == "idf" else None)
        for name, params in (request.get("sparse_vectors") or {}).items()
    }
    return edge_call(
        edge.EdgeConfig,
        vectors=dense or None,
        sparse_vectors=sparse or None,
        on_disk_payload=request.get("on_disk_payload"),
        hnsw_config=edge_call(edge.HnswIndexConfig, **_HNSW),
        optimizers=edge_call(edge.EdgeOptimizersConfig, **_OPTIMIZERS),
    )


_INDEXES: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "keyword": (edge.KeywordIndexParams, ("is_tenant",)),
    "integer": (edge.IntegerIndexParams, ("lookup", "range")),
}


def read_index(request: Json) -> tuple[str, Any]:
    """Field and parameters of a payload index."""
    present = fields(request, "index", ("field_name", "field_schema"))
    wanted = need(present, "field_schema", "index")
    params = {"type": wanted} if isinstance(wanted, str) else wanted
    kind = params.get("type") if isinstance(params, dict) else None
    if not isinstance(kind, str) or kind not in _INDEXES:
        raise bad(f"field_schema must be one of {', '.join(_INDEXES)}")
    make, known = _INDEXES[kind]
    options = fields(params, "field_schema", ("type", *known))
    del options["type"]
    if kind == "integer":
        # Both unset means neither in the engine, and both in Qdrant.
        options = {"lookup": True, "range": True} | options
    for name, value in options.items():
        flag(value, name)
    return text(need(present, "field_name", "index"), "field_name"), edge_call(make, **options)


def _describe_index(index: edge.PayloadIndexInfo) -> Json:
    kind = str(index.data_type).rpartition(".")[2].lower()
    options = {name: getattr(index.params, name, None) for name in _INDEXES.get(kind, (None, ()))[1]}
    set_options = {name: value for name, value in options.items() if value is not None}
    return {"data_type": kind, "params": {"type": kind, **set_options}, "points": index.points}


def describe(schema: Schema, shard: edge.EdgeShard) -> Json:
    """The answer to `GET /collections/{name}`."""
    info = shard.info()
    request = schema.request
    params = {
        "vectors": request.get("vectors") or {},
        "sparse_vectors": request.get("sparse_vectors") or {},
        "on_disk_payload": request.get("on_disk_payload", True),
    }
    return {
        "status": "green",
        "optimizer_status": "ok",
        "points_count": info.points_count,
        "indexed_vectors_count": info.indexed_vectors_count,
        "segments_count": info.segments_count,
        "config": {
            "params": params,
            "hnsw_config": _HNSW,
            "optimizer_config": _OPTIMIZERS
            | {"vacuum_min_vector_number": 1000, "default_segment_number": 0, "flush_interval_sec": 5},
            "metadata": request.get("metadata"),
        },
        "payload_schema": {name: _describe_index(each) for name, each in info.payload_schema.items()},
    }
