"""Reads of the REST contract, answered by the engine."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from reposync.vectors.engine.collection_schema import Schema
from reposync.vectors.engine.conditions import read_filter
from reposync.vectors.engine.validation import (
    Json,
    bad,
    edge_call,
    fields,
    flag,
    items,
    need,
    point_id,
    text,
    texts,
    whole,
)

_RRF_K = 2  # Qdrant's default


def retrieve(request: Json, shard: edge.EdgeShard, schema: Schema) -> Json:
    present = fields(request, "points", ("ids", "with_payload", "with_vector"))
    ids = items(need(present, "ids", "points"), "ids", point_id)
    found = edge_call(shard.retrieve, list(dict.fromkeys(ids)), *_selectors(present, schema, with_payload=True))
    return [_record(each) for each in found]


def scroll(request: Json, shard: edge.EdgeShard, schema: Schema) -> Json:
    present = fields(request, "scroll", ("offset", "limit", "filter", "with_payload", "with_vector"))
    with_payload, with_vector = _selectors(present, schema, with_payload=True)
    read = edge_call(
        edge.ScrollRequest,
        offset=present.get("offset"),
        limit=whole(present.get("limit", 10), "limit", least=1),
        filter=read_filter(present.get("filter")),
        with_payload=with_payload,
        with_vector=with_vector,
    )
    found, offset = shard.scroll(read)
    return {
        "points": [_record(each) for each in found],
        "next_page_offset": None if offset is None else _answer_id(offset),
    }


def count(request: Json, shard: edge.EdgeShard, schema: Schema) -> Json:
    present = fields(request, "count", ("filter", "exact"))
    exact = flag(present.get("exact", True), "exact")
    return {"count": shard.count(edge.CountRequest(exact=exact, filter=read_filter(present.get("filter"))))}


def facet(request: Json, shard: edge.EdgeShard, schema: Schema) -> Json:
    present = fields(request, "facet", ("key", "limit", "filter", "exact"))
    read = edge_call(
        edge.FacetRequest,
        text(need(present, "key", "facet"), "key"),
        limit=whole(present.get("limit", 10), "limit", least=1),
        exact=flag(present.get("exact", False), "exact"),
        filter=read_filter(present.get("filter")),
    )
    return {"hits": [{"value": each.value, "count": each.count} for each in shard.facet(read).hits]}


def query(request: Json, shard: edge.EdgeShard, schema: Schema) -> Json:
    known = ("prefetch", "query", "using", "filter", "limit", "offset", "with_vector", "with_payload")
    present = fields(request, "query", known)
    prefetches = items(present.get("prefetch", []), "prefetch", lambda one: _prefetch(one, schema))
    with_payload, with_vector = _selectors(present, schema, with_payload=False)
    read = edge_call(
        edge.QueryRequest,
        limit=whole(present.get("limit", 10), "limit", least=1),
        offset=whole(present.get("offset", 0), "offset"),
        query=_fusion(present) if prefetches else _nearest(present, schema),
        prefetches=prefetches,
        filter=read_filter(present.get("filter")),
        with_payload=with_payload,
        with_vector=with_vector,
    )
    found = shard.query(read)
    return {"points": [{**_record(each), "version": each.version, "score": each.score} for each in found]}


def _prefetch(value: Json, schema: Schema) -> edge.Prefetch:
    present = fields(value, "prefetch", ("query", "using", "filter", "limit"))
    return edge_call(
        edge.Prefetch,
        limit=whole(present.get("limit", 10), "limit", least=1),
        query=_nearest(present, schema),
        prefetches=[],
        filter=read_filter(present.get("filter")),
    )


def _nearest(present: dict[str, Json], schema: Schema) -> Any:
    """By a vector: as it is, or as Qdrant's client sends it, `{"nearest": ...}`."""
    value = need(present, "query", "query")
    if isinstance(value, dict) and "nearest" in value:
        value = need(fields(value, "query", ("nearest",)), "nearest", "query")
    name = text(need(present, "using", "query"), "using")
    return edge_call(edge.Query.Nearest, schema.vector(value, name), using=name)


def _fusion(present: dict[str, Json]) -> Any:
    """How prefetches are ranked: by reciprocal rank fusion."""
    if present.get("query") != {"fusion": "rrf"} or "using" in present:
        raise bad('a query with prefetches needs the query {"fusion": "rrf"}, without `using`')
    return edge.Fusion.Rrf(k=_RRF_K)


def _selectors(present: dict[str, Json], schema: Schema, *, with_payload: bool) -> tuple[Any, bool | list[str]]:
    """What a point in the answer has: true, false, or an array of names."""
    payload, vector = present.get("with_payload", with_payload), present.get("with_vector", False)
    if not isinstance(payload, bool):
        payload = edge_call(edge.PayloadSelector.Include, texts(payload, "with_payload"))
    if not isinstance(vector, bool):
        vector = texts(vector, "with_vector")
        for name in vector:
            schema.check_name(name)
    return payload, vector


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
