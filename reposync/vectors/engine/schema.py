"""What a collection is made of: the configuration of the REST contract as that of the engine, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import qdrant_edge as edge

from reposync.vectors.engine.refusal import Json, bad, edge_call, fields, flag, need, number, text, unsupported, whole

_DISTANCES = {each: getattr(edge.Distance, each) for each in ("Cosine", "Euclid", "Dot", "Manhattan")}
_CREATE = ("vectors", "sparse_vectors", "hnsw_config", "optimizers_config", "on_disk_payload", "metadata")
_CREATE_SINGLE = ("shard_number", "replication_factor", "write_consistency_factor")
_CREATE_BEYOND = ("sharding_method", "payload", "wal_config", "quantization_config", "strict_mode_config", "init_from")
_VECTOR_BEYOND = ("hnsw_config", "quantization_config", "memory")
_OPTIMIZERS = (
    "deleted_threshold",
    "vacuum_min_vector_number",
    "default_segment_number",
    "max_segment_size",
    "indexing_threshold",
)
_OPTIMIZERS_BEYOND = ("memmap_threshold", "flush_interval_sec", "max_optimization_threads", "prevent_unoptimized")
# Qdrant's own defaults, for what a request leaves open.
_HNSW = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}
# No graph of neighbours unless asked for: at 20,000 points it takes 17 s, in which nobody is answered, to make a
# search of 1.5 ms one of 0.9 ms. What is dead is cleared away when half of a segment is (`Collections.tidy`).
_OPTIMIZED = {"indexing_threshold": 1_000_000_000, "deleted_threshold": 0.5}


@dataclass(frozen=True, slots=True)
class DenseShape:
    size: int
    multivector: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Vectors by name (the unnamed one is ""), and the request that made the collection, to say it again."""

    dense: Mapping[str, DenseShape]
    sparse: frozenset[str]
    request: dict[str, Json]

    @property
    def metadata(self) -> dict[str, Json]:
        return dict(self.request.get("metadata") or {})

    def with_metadata(self, changes: Mapping[str, Json]) -> Schema:
        """Merged as Qdrant merges: a null takes its key out, an empty object changes nothing."""
        merged = {key: value for key, value in (self.metadata | dict(changes)).items() if value is not None}
        return Schema(self.dense, self.sparse, self.request | {"metadata": merged})


def read_schema(request: Json) -> Schema:
    """Raises Refusal for what the engine cannot honour (several shards, replicas, quantization, ...)."""
    present = fields(request, "collection", (*_CREATE, *_CREATE_SINGLE), beyond=_CREATE_BEYOND)
    for name in _CREATE_SINGLE:
        if whole(present.pop(name, 1), name, least=1) != 1:
            raise unsupported(f"`{name}` above 1")
    if not isinstance(present.get("metadata", {}), dict):
        raise bad("metadata must be an object")
    vectors = present.get("vectors", {})
    named = (
        {"": vectors}
        if _is_unnamed(vectors)
        else fields(vectors, "vectors", vectors if isinstance(vectors, dict) else ())
    )
    sparse = present.get("sparse_vectors", {})
    if not isinstance(sparse, dict):
        raise bad("sparse_vectors must be an object")
    if not named and not sparse:
        raise unsupported("a collection without vectors")
    if clash := set(named) & set(sparse):
        raise bad(f"dense and sparse vectors share the name `{min(clash)}`")
    shapes = {name: _dense_shape(params) for name, params in named.items()}
    return Schema(shapes, frozenset(sparse), present)


def _is_unnamed(vectors: Json) -> bool:
    return isinstance(vectors, dict) and isinstance(vectors.get("size"), int)


def _dense_shape(params: Json) -> DenseShape:
    present = fields(
        params,
        "vector parameters",
        ("size", "distance", "on_disk", "datatype", "multivector_config"),
        beyond=_VECTOR_BEYOND,
    )
    size = whole(need(present, "size", "vector parameters"), "size", least=1)
    if size > 65_536:
        raise bad("a vector may have 65536 dimensions")
    if need(present, "distance", "vector parameters") not in _DISTANCES:
        raise bad(f"distance must be one of {', '.join(_DISTANCES)}")
    if present.get("datatype", "float32") != "float32":
        raise unsupported(f"vector datatype `{present['datatype']}`")
    multivector = present.get("multivector_config")
    if (
        multivector is not None
        and fields(multivector, "multivector_config", ("comparator",)).get("comparator") != "max_sim"
    ):
        raise bad("multivector_config.comparator must be max_sim")
    flag(present.get("on_disk", False), "on_disk")
    return DenseShape(size, multivector is not None)


def edge_config(schema: Schema) -> edge.EdgeConfig:
    request = schema.request
    dense = {name: _edge_dense(request["vectors"][name] if name else request["vectors"]) for name in schema.dense}
    sparse = {name: _edge_sparse(params) for name, params in (request.get("sparse_vectors") or {}).items()}
    return edge_call(
        edge.EdgeConfig,
        vectors=dense.get("", dense) or None,
        sparse_vectors=sparse or None,
        on_disk_payload=request.get("on_disk_payload"),
        hnsw_config=_edge_hnsw(request.get("hnsw_config")),
        optimizers=_edge_optimizers(request.get("optimizers_config")),
    )


def _edge_dense(params: Mapping[str, Json]) -> edge.EdgeVectorParams:
    multivector = (
        edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if params.get("multivector_config") else None
    )
    return edge_call(
        edge.EdgeVectorParams,
        params["size"],
        _DISTANCES[params["distance"]],
        on_disk=params.get("on_disk"),
        multivector_config=multivector,
    )


def _edge_sparse(params: Json) -> edge.EdgeSparseVectorParams:
    present = fields(params, "sparse vector parameters", ("index", "modifier"))
    index = fields(
        present.get("index", {}), "sparse index", ("full_scan_threshold", "on_disk"), beyond=("memory", "datatype")
    )
    modifier = present.get("modifier", "none")
    if modifier not in ("none", "idf"):
        raise bad("modifier must be none or idf")
    return edge_call(edge.EdgeSparseVectorParams, **index, modifier=edge.Modifier.Idf if modifier == "idf" else None)


def _edge_hnsw(params: Json) -> edge.HnswIndexConfig:
    known = (*_HNSW, "max_indexing_threads", "on_disk", "payload_m")
    return edge_call(
        edge.HnswIndexConfig,
        **(_HNSW | fields(params or {}, "hnsw_config", known, beyond=("memory", "inline_storage"))),
    )


def _edge_optimizers(params: Json) -> edge.EdgeOptimizersConfig:
    present = _OPTIMIZED | fields(params or {}, "optimizers_config", _OPTIMIZERS, beyond=_OPTIMIZERS_BEYOND)
    for name, value in present.items():
        number(value, name)
    return edge_call(edge.EdgeOptimizersConfig, **present)


_INDEXES: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "keyword": (edge.KeywordIndexParams, ("is_tenant", "on_disk")),
    "integer": (edge.IntegerIndexParams, ("lookup", "range", "is_principal", "on_disk")),
    "float": (edge.FloatIndexParams, ("is_principal", "on_disk")),
    "datetime": (edge.DatetimeIndexParams, ("is_principal", "on_disk")),
    "uuid": (edge.UuidIndexParams, ("is_tenant", "on_disk")),
    "bool": (edge.BoolIndexParams, ("on_disk",)),
}


def read_index(request: Json) -> tuple[str, Any]:
    """Field and parameters of a payload index."""
    present = fields(request, "index", ("field_name", "field_schema"))
    asked = need(present, "field_schema", "index")
    params = {"type": asked} if isinstance(asked, str) else asked
    kind = params.get("type") if isinstance(params, dict) else ""
    if kind in ("text", "geo"):
        raise unsupported(f"a payload index of type `{kind}`")
    if not isinstance(kind, str) or kind not in _INDEXES:
        raise bad(f"field_schema must be one of {', '.join(_INDEXES)}")
    make, known = _INDEXES[kind]
    options = fields(params, "field_schema", ("type", *known), beyond=("memory", "enable_hnsw", "prefix"))
    options.pop("type")
    if kind == "integer":
        # Both unset means neither in the engine, and both in Qdrant.
        options = {"lookup": True, "range": True} | options
    for name, value in options.items():
        flag(value, name)
    field_name = text(need(present, "field_name", "index"), "field_name")
    return field_name, edge_call(make, **options)


def _describe_index(index: edge.PayloadIndexInfo) -> Json:
    kind = str(index.data_type).rpartition(".")[2].lower()
    options = {name: getattr(index.params, name, None) for name in _INDEXES.get(kind, (None, ()))[1]}
    set_options = {name: value for name, value in options.items() if value is not None}
    return {"data_type": kind, "params": {"type": kind, **set_options}, "points": index.points}


def describe(schema: Schema, shard: edge.EdgeShard) -> Json:
    """The answer to "what is this collection?"."""
    info = shard.info()
    request = schema.request
    params = {
        "vectors": request.get("vectors") or {},
        "sparse_vectors": request.get("sparse_vectors") or {},
        "shard_number": 1,
        "replication_factor": 1,
        "write_consistency_factor": 1,
        "on_disk_payload": request.get("on_disk_payload", True),
    }
    optimizer = {
        **_OPTIMIZED,
        "vacuum_min_vector_number": 1000,
        "default_segment_number": 0,
        "flush_interval_sec": 5,
    }
    return {
        "status": "green",
        "optimizer_status": "ok",
        "points_count": info.points_count,
        "indexed_vectors_count": info.indexed_vectors_count,
        "segments_count": info.segments_count,
        "config": {
            "params": params,
            "hnsw_config": _HNSW | (request.get("hnsw_config") or {}),
            "optimizer_config": optimizer | (request.get("optimizers_config") or {}),
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
            "metadata": schema.metadata or None,
        },
        "payload_schema": {name: _describe_index(each) for name, each in info.payload_schema.items()},
    }
