"""Requests to one collection: their limits and time-outs, and listings in pages.

What a request may hold is our own sizes, or less if the collection's strict mode says so, which is part of its
description. Its checks: lib/collection/src/operations/verification of Qdrant's source.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from reposync.errors import IndexAnswerUnreadable, IndexUnsupported, VectorIndexError
from reposync.vectors.collection import PAYLOAD_INDEXES
from reposync.vectors.connection import QdrantConnection
from reposync.vectors.port import DENSE, CollectionMissing, IndexSettings, Quantization
from reposync.vectors.request_bodies import Filter

_IDS_PER_PAGE = 4_000
LARGEST_FILTER = 8
"""Conditions of our largest filter: a search with a glob."""
# Candidates of a search in the HNSW graph. Of the 10 best of 20,000 chunks it finds 9.7, the server's default of 100
# finds 9.3 (docs/sizing.md).
_HNSW_EF = 256
# So many times the hits are found by quantized vectors, and the best by the original ones are kept. A search ranks 50
# hits for 10 results, which suffices for all but `binary`.
_OVERSAMPLING: Mapping[Quantization, float] = {"int8": 1.0, "turbo": 1.0, "binary": 3.0}


Limits = Mapping[str, Any]
"""The keys of `strict_mode_config` if it is enabled; a key that is missing is no limit."""


class CollectionClient:
    """Every method raises IndexUnavailable (retryable) or VectorIndexError."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._path = f"/collections/{quote(settings.collection, safe='')}"
        self._known_limits: Limits | None = {} if settings.url is None else None
        self._replicas = 1

    async def describe(self) -> dict[str, Any]:
        found = await self.request("describe the collection", "GET", "")
        if not isinstance(found, dict) or not {"config", "payload_schema"} <= found.keys():
            raise IndexAnswerUnreadable(
                f"{self._connection.where} sent a description of a collection without its parts."
            )
        return found

    async def limits(self) -> Limits:
        if self._known_limits is not None:
            return self._known_limits
        try:
            return self.learn_limits(await self.describe())
        except CollectionMissing:
            return {}

    async def has_replicas(self) -> bool:
        """Whether a read may miss what another replica has."""
        await self.limits()
        return self._replicas > 1

    def learn_limits(self, collection: Mapping[str, Any]) -> Limits:
        """From a collection's description. Raises IndexUnsupported for what no smaller request can avoid."""
        config = collection["config"]
        self._replicas = int(config["params"].get("replication_factor") or 1)
        mode = config.get("strict_mode_config") or {}
        limits = {key: value for key, value in mode.items() if value is not None} if mode.get("enabled") else {}
        indexes = 0 if PAYLOAD_INDEXES.keys() <= collection["payload_schema"].keys() else len(PAYLOAD_INDEXES)
        for key, least in (("filter_max_conditions", LARGEST_FILTER), ("max_payload_index_count", indexes)):
            if limits.get(key, least) < least:
                raise IndexUnsupported(
                    f"{self._connection.where}: strict mode of the collection `{self._settings.collection}` has "
                    f"{key}: {limits[key]}, and reposync needs {least}.",
                    remedy=f"Raise strict_mode_config.{key} of the collection, or leave it out.",
                )
        self._known_limits = limits
        return limits

    def forget_limits(self) -> None:
        if self._settings.url is not None:
            self._known_limits = None

    async def search_params(self) -> Mapping[str, Any]:
        """Parameters of a search of dense vectors; the embedded engine has none."""
        settings, limits = self._settings, await self.limits()
        if settings.url is None:
            return {}
        params: dict[str, Any] = {"hnsw_ef": within(_HNSW_EF, limits.get("search_max_hnsw_ef"))}
        if settings.quantization != "none":
            oversampling = min(_OVERSAMPLING[settings.quantization], limits.get("search_max_oversampling", math.inf))
            params["quantization"] = {"rescore": settings.rescore} | (
                {"oversampling": oversampling} if settings.rescore and oversampling > 1 else {}
            )
        return params

    async def request(
        self, what: str, method: str, path: str, body: Any = None, *, consistency: str | None = None, **options: Any
    ) -> Any:
        parameters: dict[str, object] = {"wait": "true"} if options.get("is_write") else {}
        if consistency is not None:
            parameters["consistency"] = consistency
        if body is not None and self._settings.url is not None:
            longest = (self._known_limits or {}).get("max_timeout")
            parameters["timeout"] = within(self._connection.server_seconds, longest)
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            return await self._connection.request(what, method, self._path + path, body, parameters=query, **options)
        except VectorIndexError:
            self.forget_limits()  # they may have changed
            raise

    async def count(self, selected: Filter | None, *, consistency: str | None = None) -> int:
        if not (await self.limits()).get("search_allow_exact", True):
            return sum([len(page) async for page in self.scrolled(selected, False)])
        body = {"filter": selected, "exact": True}
        answer = await self.request("count points", "POST", "/points/count", body, consistency=consistency)
        return int(answer["count"])

    async def facet(self, key: str, selected: Filter | None, limit: int) -> dict[str, int]:
        limits = await self.limits()
        exact = limits.get("search_allow_exact", True)
        body = {"key": key, "filter": selected, "exact": exact, "limit": within(limit, limits.get("max_query_limit"))}
        answer = await self.request("count points by a field", "POST", "/facet", body)
        # The embedded engine still lists values whose last point is deleted.
        return {str(hit["value"]): int(hit["count"]) for hit in answer["hits"] if hit["count"]}

    async def scrolled(
        self,
        selected: Filter | None,
        payload: bool | list[str],
        *,
        limit: int = _IDS_PER_PAGE,
        with_dense: bool = False,
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """All selected points, in non-empty pages."""
        limit = within(limit, (await self.limits()).get("max_query_limit"))
        vectors = [DENSE] if with_dense else False
        request = {"filter": selected, "limit": limit, "with_payload": payload, "with_vector": vectors}
        offset: Any = None
        while True:
            page = await self.request("list points", "POST", "/points/scroll", request | {"offset": offset})
            if page["points"]:
                yield page["points"]
            if (offset := page["next_page_offset"]) is None:
                return


def within(size: int, *limits: int | None) -> int:
    """`size`, or the smallest limit."""
    return max(1, min([size, *(each for each in limits if each is not None)]))
