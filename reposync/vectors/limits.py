"""What a request to a collection may hold: our own sizes, or less where the collection's strict mode says so.

Strict mode is part of a collection's configuration, which its description shows. Its checks: lib/collection/src/
operations/verification of Qdrant's source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reposync.errors import IndexUnsupported

LARGEST_FILTER = 8
"""Conditions of our largest filter: a search with a glob."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """None: no limit. `results`: the `limit` of a request; `values`: of one condition, such as ids; `points`: of an
    upsert; `seconds`: of a time-out; `hnsw_ef`, `oversampling`: of a search. `exact`: exact counts are permitted.
    `replicas`: of each shard."""

    results: int | None = None
    values: int | None = None
    points: int | None = None
    seconds: int | None = None
    hnsw_ef: int | None = None
    oversampling: float | None = None
    exact: bool = True
    has_write_rate_limit: bool = False
    replicas: int = 1


def limits_of(collection: Mapping[str, Any], name: str, where: str, indexes: int) -> RequestLimits:
    """From a collection's description. Raises IndexUnsupported for what no smaller request can avoid. `indexes`: how
    many payload indexes it must have; 0 if it has them."""
    config = collection["config"]
    mode = config.get("strict_mode_config") or {}
    replicas = int(config["params"].get("replication_factor") or 1)
    if not mode.get("enabled"):
        return RequestLimits(replicas=replicas)
    rate = mode.get("write_rate_limit")
    for key, least in (("filter_max_conditions", LARGEST_FILTER), ("max_payload_index_count", indexes)):
        if (limit := mode.get(key)) is not None and limit < least:
            raise IndexUnsupported(
                f"{where}: strict mode of the collection `{name}` has {key}: {limit}, and reposync needs {least}.",
                remedy=f"Raise strict_mode_config.{key} of the collection, or leave it out.",
            )
    return RequestLimits(
        results=mode.get("max_query_limit"),
        values=mode.get("condition_max_size"),
        # A request that costs more than the rate limit of a minute is never accepted; one of a quarter waits 15 s.
        points=_smallest(mode.get("upsert_max_batchsize"), None if rate is None else rate // 4),
        seconds=mode.get("max_timeout"),
        hnsw_ef=mode.get("search_max_hnsw_ef"),
        oversampling=mode.get("search_max_oversampling"),
        exact=mode.get("search_allow_exact") is not False,
        has_write_rate_limit=rate is not None,
        replicas=replicas,
    )


def within(size: int, *limits: int | None) -> int:
    """`size`, or the smallest limit."""
    return max(1, _smallest(size, *limits) or 1)


def _smallest(*limits: int | None) -> int | None:
    return min((each for each in limits if each is not None), default=None)
