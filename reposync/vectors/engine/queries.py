"""Queries of the REST contract as queries of the engine."""

from __future__ import annotations

from typing import Any

import qdrant_edge as edge

from reposync.vectors.engine.filters import read_filter
from reposync.vectors.engine.points import check_dense, sparse_vector
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
    texts,
    unsupported,
    whole,
)
from reposync.vectors.engine.schema import Schema

# The engine sorts this many at most; a server's default is as high.
_MAX_DEPTH = 8
_RRF_K = 2  # Qdrant's default
_QUERY = (
    "prefetch",
    "query",
    "using",
    "filter",
    "params",
    "score_threshold",
    "limit",
    "offset",
    "with_vector",
    "with_payload",
)
_KINDS_BEYOND = (
    "recommend",
    "discover",
    "context",
    "order_by",
    "formula",
    "sample",
    "relevance_feedback",
    "text",
    "image",
    "object",
)


def read_query(request: Json, schema: Schema) -> edge.QueryRequest:
    present = fields(request, "query", _QUERY, beyond=("shard_key", "lookup_from"))
    prefetches = _prefetches(present.get("prefetch"), schema, 1)
    limit = whole(present.get("limit", 10), "limit", least=1)
    query = _scoring(present.get("query"), present.get("using"), schema, fused=bool(prefetches), limit=limit)
    if prefetches and query is None:
        raise bad("a query with prefetches needs a query that ranks them")
    return edge_call(
        edge.QueryRequest,
        limit=limit,
        offset=whole(present.get("offset", 0), "offset"),
        query=query,
        prefetches=prefetches,
        filter=read_filter(present.get("filter")),
        score_threshold=_threshold(present.get("score_threshold")),
        params=_params(present.get("params")),
        with_payload=payload_selector(present.get("with_payload", False)),
        with_vector=vector_selector(present.get("with_vector", False), schema),
    )


def _prefetches(value: Json, schema: Schema, depth: int) -> list[edge.Prefetch]:
    if value is None:
        return []
    if depth > _MAX_DEPTH:
        raise bad(f"prefetches may be nested {_MAX_DEPTH} deep")
    each = value if isinstance(value, list) else [value]
    return items(each, "prefetch", lambda one: _prefetch(one, schema, depth))


def _prefetch(value: Json, schema: Schema, depth: int) -> edge.Prefetch:
    present = fields(
        value,
        "prefetch",
        ("prefetch", "query", "using", "filter", "params", "score_threshold", "limit"),
        beyond=("lookup_from",),
    )
    inner = _prefetches(present.get("prefetch"), schema, depth + 1)
    limit = whole(present.get("limit", 10), "limit", least=1)
    query = _scoring(present.get("query"), present.get("using"), schema, fused=bool(inner), limit=limit)
    if inner and query is None:
        raise bad("a prefetch with prefetches needs a query that ranks them")
    return edge_call(
        edge.Prefetch,
        limit=limit,
        query=query,
        prefetches=inner,
        params=_params(present.get("params")),
        filter=read_filter(present.get("filter")),
        score_threshold=_threshold(present.get("score_threshold")),
    )


def _scoring(value: Json, using: Json, schema: Schema, *, fused: bool, limit: int) -> Any:
    """How points are ranked; None: not at all. `limit` is that of the query around it."""
    if value is None:
        return None
    if isinstance(value, int | str):
        raise unsupported("a point id in place of a vector to search by")
    if isinstance(value, dict) and set(value) & {"fusion", "rrf"}:
        return _fusion(value, using, fused=fused)
    name = "" if using is None else text(using, "using")
    if not isinstance(value, dict) or "nearest" not in value:
        return edge_call(edge.Query.Nearest, _query_vector(value, name, schema), using=name or None)
    present = fields(value, "query", ("nearest", "mmr"))
    vector = _query_vector(need(present, "nearest", "query"), name, schema)
    if "mmr" not in present:
        return edge_call(edge.Query.Nearest, vector, using=name or None)
    mmr = fields(present["mmr"], "mmr", ("diversity", "candidates_limit"))
    diversity = number(mmr.get("diversity", 0.5), "diversity")
    if not 0 <= diversity <= 1:
        raise bad("diversity must be between 0 and 1")
    candidates = whole(mmr.get("candidates_limit", limit), "candidates_limit")
    return edge_call(edge.Mmr, vector, 1 - diversity, candidates, using=name or None)


def _query_vector(value: Json, name: str, schema: Schema) -> Any:
    if isinstance(value, list):
        shape = schema.dense.get(name)
        if shape is None:
            raise bad(f"Not existing vector name error: {name}")
        check_dense(value, shape, name)
        return value
    if isinstance(value, dict) and set(value) == {"indices", "values"}:
        if name not in schema.sparse:
            raise bad(f"Not existing vector name error: {name}")
        return sparse_vector(value)
    if isinstance(value, int | str):
        raise unsupported("a point id in place of a vector to search by")
    fields(value, "query", (), beyond=_KINDS_BEYOND)
    raise bad("a query must be a vector, or say how to fuse prefetches")


def _fusion(value: Json, using: Json, *, fused: bool) -> Any:
    if using is not None:
        raise bad("a fusion ranks the prefetches: `using` has no meaning there")
    if not fused:
        raise bad("cannot apply Fusion without prefetches")
    if "rrf" in value:
        rrf = fields(fields(value, "query", ("rrf",)).get("rrf"), "rrf", ("k", "weights"))
        weights = items(rrf["weights"], "weights", lambda one: number(one, "a weight")) if "weights" in rrf else None
        return edge_call(edge.Fusion.Rrf, k=whole(rrf.get("k", _RRF_K), "k", least=1), weights=weights)
    kind = fields(value, "query", ("fusion",)).get("fusion")
    if kind not in ("rrf", "dbsf"):
        raise bad("fusion must be rrf or dbsf")
    return edge.Fusion.Rrf(k=_RRF_K) if kind == "rrf" else edge.Fusion.Dbsf()


def _threshold(value: Json) -> float | None:
    return None if value is None else number(value, "score_threshold")


def _params(value: Json) -> edge.SearchParams | None:
    if value is None:
        return None
    present = fields(value, "params", ("hnsw_ef", "exact", "indexed_only"), beyond=("quantization", "acorn", "idf"))
    if "hnsw_ef" in present:
        whole(present["hnsw_ef"], "hnsw_ef")
    for name in ("exact", "indexed_only"):
        if name in present:
            flag(present[name], name)
    return edge_call(edge.SearchParams, **present)


def payload_selector(value: Json) -> Any:
    """true, false, a list of fields, or {include: [...]}, {exclude: [...]}."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return edge_call(edge.PayloadSelector.Include, texts(value, "with_payload"))
    present = fields(value, "with_payload", ("include", "exclude"))
    if len(present) != 1:
        raise bad("with_payload must have one of include, exclude")
    ((kind, keys),) = present.items()
    make = edge.PayloadSelector.Include if kind == "include" else edge.PayloadSelector.Exclude
    return edge_call(make, texts(keys, kind))


def vector_selector(value: Json, schema: Schema) -> bool | list[str]:
    if isinstance(value, bool):
        return value
    names = texts(value, "with_vector")
    for name in names:
        if name not in schema.dense and name not in schema.sparse:
            raise bad(f"Not existing vector name error: {name}")
    return names


def read_scroll(request: Json, schema: Schema) -> edge.ScrollRequest:
    known = ("offset", "limit", "filter", "with_payload", "with_vector")
    present = fields(request, "scroll", known, beyond=("shard_key", "order_by"))
    return edge_call(
        edge.ScrollRequest,
        offset=present.get("offset"),
        limit=whole(present.get("limit", 10), "limit", least=1),
        filter=read_filter(present.get("filter")),
        with_payload=payload_selector(present.get("with_payload", True)),
        with_vector=vector_selector(present.get("with_vector", False), schema),
    )


def read_count(request: Json) -> edge.CountRequest:
    present = fields(request, "count", ("filter", "exact"), beyond=("shard_key",))
    return edge.CountRequest(exact=flag(present.get("exact", True), "exact"), filter=read_filter(present.get("filter")))


def read_facet(request: Json) -> edge.FacetRequest:
    present = fields(request, "facet", ("key", "limit", "filter", "exact"), beyond=("shard_key",))
    return edge_call(
        edge.FacetRequest,
        text(need(present, "key", "facet"), "key"),
        limit=whole(present.get("limit", 10), "limit", least=1),
        exact=flag(present.get("exact", False), "exact"),
        filter=read_filter(present.get("filter")),
    )
