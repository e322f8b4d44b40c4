"""Requests of Qdrant's REST contract as reposync sends them: checked, and as the engine takes them.

A field that the engine would ignore is refused. What the engine's own objects check is left to them. A wrong request
raises TypeError, ValueError, OverflowError or KeyError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import qdrant_edge as edge
from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

Json = Any
"""A value as orjson reads it."""

PointId = int | str
Options = dict[str, Any]
_RESCORED = 4_000
"""Points whose original vectors a search compares: those with the best codes (`DenseParams`). Of the 10 best of 100,000
it finds 9.97 (docs/sizing.md); up to as many points are searched exactly."""
_RRF_K = 2  # Qdrant's default
_DISTANCES = {each: getattr(edge.Distance, each) for each in ("Cosine", "Euclid", "Dot", "Manhattan")}
_HNSW: Options = {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000}  # Qdrant's own defaults
# No HNSW graph: at 20,000 points building it takes 17 s, in which no request is answered. Deleted points are cleared
# when they are half of a segment (`Collections.tidy`).
_OPTIMIZERS: Options = {"indexing_threshold": 1_000_000_000, "deleted_threshold": 0.5}


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Json) -> Json:
        """Clients send null for what is not set."""
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


# Filters -------------------------------------------------------------------------------------------------------------


class Matches(Request):
    key: str
    match: Annotated[dict[Literal["value"], int | str] | dict[Literal["any"], list[int] | list[str]], Len(1)]


class InRange(Request):
    key: str
    range: Annotated[dict[Literal["gte", "gt", "lte", "lt"], float], Len(1, 2)]


class HasId(Request):
    has_id: list[PointId]


class HasVector(Request):
    has_vector: str


class Key(Request):
    key: str


class IsEmpty(Request):
    is_empty: Key


class AllOf(Request):
    must: Annotated[list[Matches], Len(1)]


class OfArray(Request):
    """An element of the array fulfils the filter, whose keys are relative to the element."""

    key: str
    filter: AllOf


class Nested(Request):
    nested: OfArray


class Filter(Request):
    must: list[Matches | InRange | HasId | HasVector | IsEmpty | Nested | Filter] = []
    should: list[Matches | InRange | HasId | HasVector | IsEmpty | Nested | Filter] = []
    must_not: list[Matches | InRange | HasId | HasVector | IsEmpty | Nested | Filter] = []

    def restricts(self) -> bool:
        """Whether it has a condition at all."""
        conditions = [*self.must, *self.should, *self.must_not]
        return any(not isinstance(each, Filter) or each.restricts() for each in conditions)


def edge_filter(value: Filter | None) -> Any:
    return None if value is None else _condition(value)


def _condition(value: Request) -> Any:
    match value:
        case Matches(key=key, match=match):
            kind: Any = edge.MatchValue if "value" in match else edge.MatchAny
            return edge.FieldCondition(key, match=kind(*match.values()))
        case InRange(key=key, range=bounds):
            return edge.FieldCondition(key, range=edge.RangeFloat(**bounds))
        case HasId(has_id=ids):
            return edge.HasIdCondition(set(ids))
        case HasVector(has_vector=name):
            return edge.HasVectorCondition(name)
        case IsEmpty(is_empty=field):
            return edge.IsEmptyCondition(field.key)
        case Nested(nested=array):
            return edge.NestedCondition(array.key, edge.Filter(must=[_condition(each) for each in array.filter.must]))
        case Filter():
            clauses: Options = {name: [_condition(each) for each in conditions] for name, conditions in value}
            return edge.Filter(**{name: conditions for name, conditions in clauses.items() if conditions})
    raise TypeError(f"{value!r} is not a condition")


# Collections ---------------------------------------------------------------------------------------------------------


class DenseParams(Request):
    size: int = Field(ge=1, le=65_536)
    distance: Literal["Cosine", "Euclid", "Dot", "Manhattan"]
    multivector_config: dict[Literal["comparator"], Literal["max_sim"]] | None = None

    def to_edge(self) -> edge.EdgeVectorParams:
        """Codes of one bit per dimension stay in memory: reading all vectors takes twice as long. The kernel may
        drop the vectors from memory."""
        multivector = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if self.multivector_config else None
        return edge.EdgeVectorParams(
            self.size,
            _DISTANCES[self.distance],
            multivector_config=multivector,
            quantization_config=edge.BinaryQuantizationConfig(memory=edge.Memory.Pinned),
            memory=edge.Memory.Cold,
        )


class SparseParams(Request):
    modifier: Literal["none", "idf"] = "none"

    def to_edge(self) -> edge.EdgeSparseVectorParams:
        return edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if self.modifier == "idf" else None)


class CollectionRequest(Request):
    """What a collection is made of. Stored, to open and to describe it."""

    vectors: dict[str, DenseParams] = {}
    sparse_vectors: dict[str, SparseParams] = {}
    on_disk_payload: bool = True
    metadata: dict[str, Json] | None = None
    # What a server is asked for; nothing here is ever hidden.
    optimizers_config: dict[Literal["prevent_unoptimized"], Literal[False]] | None = Field(None, exclude=True)

    def to_edge(self) -> edge.EdgeConfig:
        return edge.EdgeConfig(
            vectors={name: each.to_edge() for name, each in self.vectors.items()} or None,
            sparse_vectors={name: each.to_edge() for name, each in self.sparse_vectors.items()} or None,
            on_disk_payload=self.on_disk_payload,
            hnsw_config=edge.HnswIndexConfig(**_HNSW),
            optimizers=edge.EdgeOptimizersConfig(**_OPTIMIZERS),
        )

    def check_name(self, name: str) -> None:
        if name not in self.vectors and name not in self.sparse_vectors:
            raise ValueError(f"Not existing vector name error: {name}")

    def vector(self, value: Json, name: str) -> Any:
        """The vector as the engine takes it. Raises ValueError if name, dimension or kind do not fit."""
        self.check_name(name)
        if name in self.sparse_vectors:
            return _sparse_vector(value)
        params = self.vectors[name]
        is_multivector = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        if is_multivector and params.multivector_config is None:
            raise ValueError(f"vector `{name}` is not a multivector")
        for row in value if is_multivector else [value]:
            if not isinstance(row, list) or len(row) != params.size:
                got = len(row) if isinstance(row, list) else type(row).__name__
                raise ValueError(f"Vector dimension error: expected dim: {params.size}, got {got}")
        return value

    def describe(self, shard: edge.EdgeShard) -> dict[str, Json]:
        """The answer to `GET /collections/{name}`."""
        info = shard.info()
        made_of = self.model_dump(exclude_unset=True, exclude={"metadata"})
        optimizers = {"vacuum_min_vector_number": 1000, "default_segment_number": 0, "flush_interval_sec": 5}
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": info.points_count,
            # The engine counts sparse vectors only.
            "indexed_vectors_count": 0 if self.vectors else info.indexed_vectors_count,
            "segments_count": info.segments_count,
            "config": {
                "params": {"vectors": {}, "sparse_vectors": {}, "on_disk_payload": True} | made_of,
                "hnsw_config": _HNSW,
                "optimizer_config": _OPTIMIZERS | optimizers,
                "metadata": self.metadata,
            },
            "payload_schema": {name: _describe_index(each) for name, each in info.payload_schema.items()},
        }


def _sparse_vector(value: Json) -> edge.SparseVector:
    """The engine accepts lists of different lengths and repeated indices without an error, and finds wrong points."""
    indices, values = value["indices"], value["values"]
    if len(indices) != len(values) or len(set(indices)) != len(indices):
        raise ValueError("a sparse vector needs as many indices as values, and no index twice")
    return edge.SparseVector(indices, values)


class IndexParams(Request):
    """Integers are indexed for matches and for ranges: both unset means both in Qdrant, and neither in the engine."""

    type: Literal["keyword", "integer"]
    is_tenant: bool | None = None
    lookup: Literal[True] = True
    range: Literal[True] = True


class IndexRequest(Request):
    field_name: str
    field_schema: Literal["keyword", "integer"] | IndexParams

    def operation(self) -> edge.UpdateOperation:
        params = IndexParams(type=self.field_schema) if isinstance(self.field_schema, str) else self.field_schema
        if params.type == "keyword":
            index: Any = edge.KeywordIndexParams(is_tenant=params.is_tenant)
        else:
            index = edge.IntegerIndexParams(lookup=True, range=True)
        return edge.UpdateOperation.create_field_index(self.field_name, index)


def _describe_index(index: edge.PayloadIndexInfo) -> Json:
    kind = str(index.data_type).rpartition(".")[2].lower()
    tenant = {"is_tenant": True} if getattr(index.params, "is_tenant", None) else {}
    return {"data_type": kind, "params": {"type": kind, **tenant}, "points": index.points}


class AliasesRequest(Request):
    actions: list[Annotated[dict[Literal["create_alias", "delete_alias"], dict[str, str]], Len(1, 1)]]


# Changes -------------------------------------------------------------------------------------------------------------


class ChangeRequest(Request):
    def operations(self, schema: CollectionRequest) -> list[edge.UpdateOperation]:
        raise NotImplementedError


class Point(Request):
    id: PointId
    vector: dict[str, Json]
    payload: dict[str, Json] | None = None


class Upsert(ChangeRequest):
    points: list[Point]

    def operations(self, schema: CollectionRequest) -> list[edge.UpdateOperation]:
        """Every vector is checked here: an upsert that the engine itself rejects is in its log already, and comes back
        half-applied after a crash."""
        points = [
            edge.Point(each.id, {name: schema.vector(one, name) for name, one in each.vector.items()}, each.payload)
            for each in self.points
        ]
        return [edge.UpdateOperation.upsert_points(points)]


class Delete(ChangeRequest):
    """By ids or by a filter. A server accepts both and uses one of them; here that is refused."""

    points: list[PointId] | None = None
    filter: Filter | None = None

    @model_validator(mode="after")
    def _selects(self) -> Delete:
        if (self.points is None) == (self.filter is None):
            raise ValueError("either points or filter is needed")
        if self.filter is not None and not self.filter.restricts():
            raise ValueError("an empty filter would select every point of the collection; name a condition")
        return self

    def operations(self, schema: CollectionRequest) -> list[edge.UpdateOperation]:
        if self.points is not None:
            return [edge.UpdateOperation.delete_points([*self.points])]
        return [edge.UpdateOperation.delete_points_by_filter(edge_filter(self.filter))]


class SetPayload(Delete):
    payload: dict[str, Json]
    key: str | None = None

    def operations(self, schema: CollectionRequest) -> list[edge.UpdateOperation]:
        if self.points is not None:
            return [edge.UpdateOperation.set_payload([*self.points], self.payload, self.key)]
        return [edge.UpdateOperation.set_payload_by_filter(edge_filter(self.filter), self.payload, self.key)]


_OPERATIONS: Mapping[str, type[ChangeRequest]] = {"upsert": Upsert, "delete": Delete, "set_payload": SetPayload}


class Batch(ChangeRequest):
    """Operations in order. All are read before the first is carried out."""

    steps: list[Annotated[dict[Literal["upsert", "delete", "set_payload"], Json], Len(1, 1)]] = Field(
        alias="operations"
    )

    def operations(self, schema: CollectionRequest) -> list[edge.UpdateOperation]:
        requests = [_OPERATIONS[kind].model_validate(body) for each in self.steps for kind, body in each.items()]
        return [operation for request in requests for operation in request.operations(schema)]


# Reads ---------------------------------------------------------------------------------------------------------------


class ReadRequest(Request):
    """`with_payload` and `with_vector`: all, nothing, or fields and vectors by name."""

    with_payload: bool | list[str] = True
    with_vector: bool | list[str] = False
    filter: Filter | None = None
    limit: int = Field(default=10, ge=1)

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        raise NotImplementedError

    def _selectors(self, schema: CollectionRequest) -> Options:
        for name in self.with_vector if isinstance(self.with_vector, list) else ():
            schema.check_name(name)
        payload = self.with_payload
        include = payload if isinstance(payload, bool) else edge.PayloadSelector.Include(payload)
        return {"with_payload": include, "with_vector": self.with_vector}


class Retrieve(ReadRequest):
    ids: list[PointId]

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        return [_record(each) for each in shard.retrieve(list(dict.fromkeys(self.ids)), **self._selectors(schema))]


class Scroll(ReadRequest):
    offset: PointId | None = None

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        selected = {"filter": edge_filter(self.filter), **self._selectors(schema)}
        found, offset = shard.scroll(edge.ScrollRequest(offset=self.offset, limit=self.limit, **selected))
        next_offset = None if offset is None else _answer_id(offset)
        return {"points": [_record(each) for each in found], "next_page_offset": next_offset}


class Count(ReadRequest):
    exact: bool = True

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        return {"count": shard.count(edge.CountRequest(exact=self.exact, filter=edge_filter(self.filter)))}


class Facet(ReadRequest):
    key: str
    exact: bool = False

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        selected = edge_filter(self.filter)
        found = shard.facet(edge.FacetRequest(self.key, limit=self.limit, exact=self.exact, filter=selected))
        return {"hits": [{"value": each.value, "count": each.count} for each in found.hits]}


class SearchParams(Request):
    hnsw_ef: PositiveInt | None = None  # for servers: there is no HNSW index here
    exact: bool = False

    def to_edge(self, limit: int) -> edge.SearchParams:
        rescored = edge.QuantizationSearchParams(rescore=True, oversampling=max(_RESCORED / limit, 2.0))
        return edge.SearchParams(exact=self.exact, quantization=rescored)


class Prefetch(Request):
    query: Json
    using: str
    limit: int = Field(default=10, ge=1)
    filter: Filter | None = None
    params: SearchParams = SearchParams()

    def to_edge(self, schema: CollectionRequest) -> edge.Prefetch:
        query = _nearest(self.query, self.using, schema)
        options: Options = {"filter": edge_filter(self.filter), "params": self.params.to_edge(self.limit)}
        return edge.Prefetch(limit=self.limit, query=query, prefetches=[], **options)


class Query(ReadRequest):
    query: Json
    prefetch: list[Prefetch] = []
    using: str | None = None
    offset: int = Field(default=0, ge=0)
    with_payload: bool | list[str] = False
    params: SearchParams = SearchParams()

    def answer(self, shard: edge.EdgeShard, schema: CollectionRequest) -> Json:
        if self.using is not None and not self.prefetch:
            query = _nearest(self.query, self.using, schema)
        elif self.using is None and self.prefetch and self.query == {"fusion": "rrf"}:
            query = edge.Fusion.Rrf(k=_RRF_K)
        else:
            raise ValueError('a query needs `using`, or prefetches and the query {"fusion": "rrf"}')
        prefetches = [each.to_edge(schema) for each in self.prefetch]
        selected: Options = {"filter": edge_filter(self.filter), "offset": self.offset, **self._selectors(schema)}
        options: Options = {"limit": self.limit, "params": self.params.to_edge(self.limit), **selected}
        found = shard.query(edge.QueryRequest(query=query, prefetches=prefetches, **options))
        return {"points": [{**_record(each), "version": each.version, "score": each.score} for each in found]}


def _nearest(value: Json, using: str, schema: CollectionRequest) -> Any:
    """By a vector: as it is, or as Qdrant's client sends it, `{"nearest": ...}`."""
    vector = value["nearest"] if isinstance(value, dict) and set(value) == {"nearest"} else value
    return edge.Query.Nearest(schema.vector(vector, using), using=using)


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
