"""Requests of Qdrant's REST contract as reposync sends them, as the engine takes them.

The parameters of a function are the fields of a request: one that it does not have is refused, and never ignored. A
wrong request raises TypeError, ValueError, OverflowError, KeyError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import qdrant_edge as edge

Json = Any
"""A value as orjson reads it."""

Operations = list[edge.UpdateOperation]
_RESCORED = 4_000
"""Points whose original vectors a search compares: those with the best codes (`Schema.to_edge`). Of the 10 best of
100,000 it finds 9.97 (docs/sizing.md); up to as many points are searched exactly."""
_HNSW: dict[str, Any] = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}  # Qdrant's own defaults
# No HNSW graph: at 20,000 points building it takes 17 s, in which no request is answered. Deleted points are cleared
# when they are half of a segment (`Collections.tidy`).
_OPTIMIZERS: dict[str, Any] = {"indexing_threshold": 1_000_000_000, "deleted_threshold": 0.5}


def given(value: dict[str, Json]) -> dict[str, Json]:
    """Clients send null for what is not set."""
    return {key: each for key, each in value.items() if each is not None}


# Filters -------------------------------------------------------------------------------------------------------------


def edge_filter(value: Json) -> Any:
    if value is None:
        return None
    clauses: dict[str, Any] = {name: list(map(_condition, each)) for name, each in given(value).items()}
    return edge.Filter(**{name: conditions for name, conditions in clauses.items() if conditions})


def _condition(value: Json) -> Any:
    fields = given(value)
    make = _CONDITIONS.get(frozenset(fields))
    return edge_filter(value) if make is None else make(**fields)


def _match(kind: str, value: Json) -> Any:
    return {"value": edge.MatchValue, "any": edge.MatchAny}[kind](value)


# Fields -> condition. All others are filters, with `must`, `should` and `must_not`.
_CONDITIONS: Mapping[frozenset[str], Callable[..., Any]] = {
    frozenset({"key", "match"}): lambda key, match: edge.FieldCondition(key, match=_match(*_only(match))),
    frozenset({"key", "range"}): lambda key, range: edge.FieldCondition(key, range=edge.RangeFloat(**range)),
    frozenset({"has_id"}): lambda has_id: edge.HasIdCondition(set(has_id)),
    frozenset({"has_vector"}): lambda has_vector: edge.HasVectorCondition(has_vector),
    frozenset({"is_empty"}): lambda is_empty: edge.IsEmptyCondition(is_empty["key"]),
    frozenset({"nested"}): lambda nested: edge.NestedCondition(nested["key"], edge_filter(nested["filter"])),
}


def _only(value: dict[str, Json]) -> tuple[str, Json]:
    (item,) = given(value).items()
    return item


def _restricts(value: dict[str, Json]) -> bool:
    """Whether a filter has a condition at all."""
    conditions = [condition for clause in given(value).values() for condition in clause]
    return any(frozenset(given(each)) in _CONDITIONS or _restricts(each) for each in conditions)


# Collections ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schema:
    """The request for a collection. Stored, to open and to describe it."""

    vectors: dict[str, dict[str, Json]] = field(default_factory=dict)
    sparse_vectors: dict[str, dict[str, Json]] = field(default_factory=dict)
    on_disk_payload: bool = True
    metadata: dict[str, Json] | None = None

    def to_edge(self) -> edge.EdgeConfig:
        sparse = edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)
        return edge.EdgeConfig(
            vectors={name: _dense_params(**each) for name, each in self.vectors.items()} or None,
            sparse_vectors=dict.fromkeys(self.sparse_vectors, sparse) or None,
            on_disk_payload=self.on_disk_payload,
            hnsw_config=edge.HnswIndexConfig(**_HNSW),
            optimizers=edge.EdgeOptimizersConfig(**_OPTIMIZERS),
        )

    def vector(self, value: Json, name: str) -> Any:
        """The vector as the engine takes it. Raises ValueError if name, dimension or kind do not fit."""
        if name in self.sparse_vectors:
            indices, values = value["indices"], value["values"]
            # The engine accepts both without an error, and finds wrong points.
            if len(indices) != len(values) or len(set(indices)) != len(indices):
                raise ValueError("a sparse vector needs as many indices as values, and no index twice")
            return edge.SparseVector(indices, values)
        if name not in self.vectors:
            raise ValueError(f"Not existing vector name error: {name}")
        size = self.vectors[name]["size"]
        is_multivector = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        if is_multivector and not self.vectors[name].get("multivector_config"):
            raise ValueError(f"vector `{name}` is not a multivector")
        for row in value if is_multivector else [value]:
            if not isinstance(row, list) or len(row) != size:
                got = len(row) if isinstance(row, list) else type(row).__name__
                raise ValueError(f"Vector dimension error: expected dim: {size}, got {got}")
        return value

    def describe(self, shard: edge.EdgeShard) -> dict[str, Json]:
        """The answer to `GET /collections/{name}`."""
        info = shard.info()
        optimizers = {"vacuum_min_vector_number": 1000, "default_segment_number": 0, "flush_interval_sec": 5}
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": info.points_count,
            "indexed_vectors_count": 0,
            "segments_count": info.segments_count,
            "config": {
                "params": {
                    "vectors": self.vectors,
                    "sparse_vectors": self.sparse_vectors,
                    "on_disk_payload": self.on_disk_payload,
                },
                "hnsw_config": _HNSW,
                "optimizer_config": _OPTIMIZERS | optimizers,
                "metadata": self.metadata,
            },
            "payload_schema": {name: _describe_index(each) for name, each in info.payload_schema.items()},
        }


_DATATYPES = {"float32": edge.VectorStorageDatatype.Float32, "float16": edge.VectorStorageDatatype.Float16}


def _dense_params(
    *, size: int, distance: str, multivector_config: dict[str, str] | None = None, datatype: str = "float32"
) -> edge.EdgeVectorParams:
    """Codes of one bit per dimension stay in memory: reading all vectors takes twice as long. The kernel may drop the
    vectors from memory."""
    if distance != "Cosine":
        raise ValueError(f"the engine compares vectors by Cosine, not by {distance}")
    return edge.EdgeVectorParams(
        size,
        edge.Distance.Cosine,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if multivector_config else None,
        datatype=_DATATYPES[datatype],
        quantization_config=edge.BinaryQuantizationConfig(memory=edge.Memory.Pinned),
        memory=edge.Memory.Cold,
    )


def create_index(*, field_name: str, field_schema: str | dict[str, Json]) -> edge.UpdateOperation:
    """`field_schema`: parameters with their type, or the type alone, as in Qdrant. Integers are indexed for matches and
    for ranges: both unset means both in Qdrant, and neither in the engine."""
    schema: dict[str, Json] = {"type": field_schema} if isinstance(field_schema, str) else field_schema
    kinds: dict[str, Callable[[], Any]] = {
        "keyword": lambda: edge.KeywordIndexParams(is_tenant=schema.get("is_tenant")),
        "integer": lambda: edge.IntegerIndexParams(lookup=True, range=True),
    }
    return edge.UpdateOperation.create_field_index(field_name, kinds[schema["type"]]())


def _describe_index(index: edge.PayloadIndexInfo) -> Json:
    kind = str(index.data_type).rpartition(".")[2].lower()
    tenant = {"is_tenant": True} if getattr(index.params, "is_tenant", None) else {}
    return {"data_type": kind, "params": {"type": kind, **tenant}, "points": index.points}


@dataclass(slots=True, eq=False)
class Collection:
    """An open collection. `operations` counts changes since it was opened."""

    name: str
    schema: Schema
    shard: edge.EdgeShard
    operations: int = 0

    def apply(self, operation: edge.UpdateOperation) -> int:
        """The operation's number. It survives the end of this process, and a power cut after a flush."""
        self.shard.update(operation)
        self.operations += 1
        return self.operations


# Changes -------------------------------------------------------------------------------------------------------------


def upsert(schema: Schema, *, points: list[dict[str, Json]]) -> Operations:
    """Every vector is checked here: an upsert that the engine itself rejects is in its log already, and comes back
    half-applied after a crash."""
    return [edge.UpdateOperation.upsert_points([_point(schema, **each) for each in points])]


def _point(schema: Schema, *, id: int | str, vector: dict[str, Json], payload: Json = None) -> edge.Point:
    return edge.Point(id, {name: schema.vector(each, name) for name, each in vector.items()}, payload)


def delete(schema: Schema, *, points: Json = None, filter: Json = None) -> Operations:
    """By ids or by a filter. A server accepts both and uses one of them; here that is refused."""
    if (points is None) == (filter is None):
        raise ValueError("either points or filter is needed")
    if filter is None:
        return [edge.UpdateOperation.delete_points(points)]
    if not _restricts(filter):
        raise ValueError("an empty filter would select every point of the collection; name a condition")
    return [edge.UpdateOperation.delete_points_by_filter(edge_filter(filter))]


def set_payload(schema: Schema, *, points: Json, payload: Json, key: str | None = None) -> Operations:
    return [edge.UpdateOperation.set_payload(points, payload, key)]


def update_vectors(schema: Schema, *, points: list[dict[str, Json]], update_filter: Json = None) -> Operations:
    """Set vectors of those existing points that the filter selects; their other vectors and their payload stay. A
    missing one is an error, after which some of the others are changed, as in Qdrant."""
    made = [_vectors(schema, **each) for each in points]
    return [edge.UpdateOperation.update_vectors(made, condition=edge_filter(update_filter))]


def _vectors(schema: Schema, *, id: int | str, vector: dict[str, Json]) -> edge.PointVectors:
    return edge.PointVectors(id, {name: schema.vector(each, name) for name, each in vector.items()})


def batch(schema: Schema, *, operations: list[dict[str, Json]]) -> Operations:
    """In order. All are read before the first is carried out."""
    kinds: dict[str, Callable[..., Operations]] = {
        **{"upsert": upsert, "delete": delete},
        **{"set_payload": set_payload, "update_vectors": update_vectors},
    }
    requests = [_only(each) for each in operations]
    return [made for kind, body in requests for made in kinds[kind](schema, **given(body))]


# Reads ---------------------------------------------------------------------------------------------------------------
# `with_payload` and `with_vector`: all, nothing, or fields and vectors by name.


def _selectors(with_payload: Json, with_vector: Json) -> dict[str, Any]:
    fields = with_payload if isinstance(with_payload, bool) else edge.PayloadSelector.Include(with_payload)
    return {"with_payload": fields, "with_vector": with_vector}


def retrieve(collection: Collection, *, ids: Json, with_payload: Json = True, with_vector: Json = False) -> Json:
    selectors = _selectors(with_payload, with_vector)
    return [_record(each) for each in collection.shard.retrieve(list(dict.fromkeys(ids)), **selectors)]


def scroll(
    collection: Collection,
    *,
    filter: Json = None,
    limit: int = 10,
    offset: Json = None,
    with_payload: Json = True,
    with_vector: Json = False,
) -> Json:
    selectors = _selectors(with_payload, with_vector)
    request = edge.ScrollRequest(offset=offset, limit=limit, filter=edge_filter(filter), **selectors)
    found, next_offset = collection.shard.scroll(request)
    next_id = None if next_offset is None else _answer_id(next_offset)
    return {"points": [_record(each) for each in found], "next_page_offset": next_id}


def count(collection: Collection, *, filter: Json = None, exact: bool = True) -> Json:
    return {"count": collection.shard.count(edge.CountRequest(exact=exact, filter=edge_filter(filter)))}


def facet(collection: Collection, *, key: str, filter: Json = None, limit: int = 10, exact: bool = False) -> Json:
    request = edge.FacetRequest(key, limit=limit, exact=exact, filter=edge_filter(filter))
    found = collection.shard.facet(request)
    return {"hits": [{"value": each.value, "count": each.count} for each in found.hits]}


def query(collection: Collection, **request: Json) -> Json:
    return _query(collection, _RESCORED, **request)


def query_batch(collection: Collection, *, searches: list[dict[str, Json]]) -> Json:
    """The queries of one question share the points whose original vectors are compared."""
    dense = sum(each.get("using") in collection.schema.vectors for each in searches)
    return [_query(collection, _RESCORED // max(1, dense), **given(each)) for each in searches]


def _query(
    collection: Collection,
    rescored: int,
    /,
    *,
    query: Json,
    using: str,
    filter: Json = None,
    params: Mapping[str, Json] | None = None,
    limit: int = 10,
    offset: int = 0,
    with_payload: Json = False,
    with_vector: Json = False,
) -> Json:
    """By a vector: as it is, or as Qdrant's client sends it, `{"nearest": ...}`. `hnsw_ef` is for servers: there is no
    HNSW index here."""
    vector = query.get("nearest", query) if isinstance(query, dict) else query
    quantization = edge.QuantizationSearchParams(rescore=True, oversampling=max(rescored / limit, 2.0))
    request = edge.QueryRequest(
        query=edge.Query.Nearest(collection.schema.vector(vector, using), using=using),
        filter=edge_filter(filter),
        params=edge.SearchParams(exact=(params or {}).get("exact", False), quantization=quantization),
        limit=limit,
        offset=offset,
        **_selectors(with_payload, with_vector),
    )
    found = collection.shard.query(request)
    return {"points": [{**_record(each), "version": each.version, "score": each.score} for each in found]}


def _record(found: edge.Record | edge.ScoredPoint) -> dict[str, Json]:
    vector: Any = found.vector
    if isinstance(vector, dict):
        vector = {
            name: {"indices": each.indices, "values": each.values} if isinstance(each, edge.SparseVector) else each
            for name, each in vector.items()
        }
    return {"id": _answer_id(found.id), "payload": found.payload, "vector": vector}


def _answer_id(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)
