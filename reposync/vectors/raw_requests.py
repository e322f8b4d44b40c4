"""Requests to Qdrant that its own client does not make. There are three kinds, each with a measured reason:

- What a `search` and a sync without changes need, so descriptions, counts, listings and searches: importing
  `qdrant_client` (its models, gRPC, numpy) takes 1.3 s of CPU and 60 MB, as much as the whole command. In a daemon, its
  layers took 2 ms of a search of 7.
- Deletes of points: with them here, a command that syncs a push with a deleted file takes 1.3 s and 78 MB, and by the
  client 2.1 s and 128 MB.
- Bulk writes of points: encoding 18,000 points takes 0.5 s here and 2.4 s by the client's models (`request_bodies`).

All other changes are made by the client, see `changes`. Daemons and commands send the same.

What a request may hold is our own sizes, or less if the collection's strict mode says so, which is part of its
description. Its checks: lib/collection/src/operations/verification of Qdrant's source.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import orjson

from reposync.config.sections import Quantization
from reposync.errors import IndexAnswerUnreadable, IndexUnavailable, IndexUnsupported, VectorIndexError
from reposync.outgoing import parse_json
from reposync.vectors.collection import PAYLOAD_INDEXES
from reposync.vectors.connection import QdrantConnection, require_applied
from reposync.vectors.port import DENSE, CollectionMissing, IndexSettings, PointId
from reposync.vectors.request_bodies import Filter

T = TypeVar("T")

_IDS_PER_PAGE = 4_000
_VALUES_PER_CONDITION = 1_000
# A write of unknown outcome is awaited while the server has writes in its queue, at most so long.
_LONGEST_QUEUE_SECONDS = 600.0
_QUEUE_POLL_SECONDS = 1.0
# Candidates of a search in the HNSW graph. Of the 10 best of 100,000 chunks it finds 9.6, the server's default of 100
# finds 8.9 (docs/sizing.md).
_HNSW_EF = 384
# So many times the hits are found by quantized vectors, and the best by the original ones are kept. A search ranks 50
# hits for 10 results, which suffices for all but `binary`.
_OVERSAMPLING: Mapping[Quantization, float] = {"int8": 1.0, "turbo": 1.0, "binary": 3.0}
LARGEST_FILTER = 8
"""Conditions of our largest filter: a search with a glob."""
Limits = Mapping[str, Any]
"""The keys of `strict_mode_config` if it is enabled; a key that is missing is no limit."""


class CollectionRequests:
    """Every method raises IndexUnavailable (retryable) or VectorIndexError."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._path = f"/collections/{quote(settings.collection, safe='')}"
        self._known_limits: Limits | None = {} if settings.is_embedded else None
        self._replicas = 1

    async def describe(self, *, once: bool = False) -> dict[str, Any]:
        found = await self.request("describe the collection", "GET", "", once=once)
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

    async def values_at_once(self, size: int = _VALUES_PER_CONDITION) -> int:
        """In one condition."""
        return within(size, (await self.limits()).get("condition_max_size"))

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
        if not self._settings.is_embedded:
            self._known_limits = None

    async def search_params(self) -> Mapping[str, Any]:
        """Parameters of a search of dense vectors; the embedded engine has none."""
        config, limits = self._settings.qdrant, await self.limits()
        if self._settings.is_embedded:
            return {}
        params: dict[str, Any] = {"hnsw_ef": within(_HNSW_EF, limits.get("search_max_hnsw_ef"))}
        if config.quantization != "none":
            oversampling = min(_OVERSAMPLING[config.quantization], limits.get("search_max_oversampling", math.inf))
            params["quantization"] = {"rescore": config.rescore} | (
                {"oversampling": oversampling} if config.rescore and oversampling > 1 else {}
            )
        return params

    @property
    def server_seconds(self) -> int | None:
        """The time-out that requests name; the embedded engine knows none."""
        longest = (self._known_limits or {}).get("max_timeout")
        return None if self._settings.is_embedded else within(self._connection.server_seconds, longest)

    async def request(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        is_write: bool = False,
        consistency: str | None = None,
        **options: Any,
    ) -> Any:
        """The `result` of the answer. `body`: JSON, or what becomes JSON. `is_write`: the answer must say that it is
        applied. `options`: of `repeat`."""
        is_ready = body is None or isinstance(body, bytes)
        content = body if is_ready else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        seconds = None if body is None else self.server_seconds
        parameters = {"wait": "true" if is_write else None, "consistency": consistency, "timeout": seconds}
        query = urlencode({name: value for name, value in parameters.items() if value is not None})

        async def exchange() -> Any:
            answer = parse_json(await self._connection.send(method, f"{self._path}{path}?{query}", content))
            if not isinstance(answer, dict) or "result" not in answer:
                raise VectorIndexError(f"{self._connection.where} answered without a result.")
            result = answer["result"]
            if is_write:
                parts = result if isinstance(result, list) else [result]
                require_applied(part.get("status") if isinstance(part, dict) else None for part in parts)
            return result

        return await self.repeat(what, exchange, **options)

    async def repeat(self, what: str, request: Callable[[], Awaitable[T]], **options: Any) -> T | None:
        """As QdrantConnection has it."""
        try:
            return await self._connection.repeat(what, request, **options)
        except VectorIndexError:
            self.forget_limits()  # they may have changed
            raise

    async def store(self, body: bytes, is_done: Callable[[], Awaitable[bool]], check: Callable[[], None]) -> int | None:
        """Carry out a batch of operations: their number, or None if one of unknown outcome turned out to be applied.
        `is_done`: see `settled`; `check`: see WriteScope."""
        results = await self.request(
            "store points",
            "POST",
            "/points/batch",
            body,
            is_write=True,
            is_settled=self.settled(is_done),
            check=check,
        )
        return None if results is None else len(results)

    async def delete(self, selected: Filter, ids: Sequence[PointId], check: Callable[[], None]) -> None:
        """Delete those of `ids` that are `selected`."""
        some = selected | {"must": [*selected["must"], {"has_id": list(ids)}]}

        async def is_done() -> bool:
            return not await self.count(some)

        await self.request(
            "delete points",
            "POST",
            "/points/delete",
            {"filter": some},
            is_write=True,
            is_settled=self.settled(is_done),
            check=check,
        )

    def settled(self, is_done: Callable[[], Awaitable[bool]] | None) -> Callable[[], Awaitable[bool]]:
        """Whether a write of unknown outcome is applied. `is_done`: reads whether it is; None for a write that may as
        well be sent again."""

        async def is_settled() -> bool:
            # Never sent again while the server has writes in its queue, of which it may be one. In a collection with
            # replicas one of them may have it and answer the read, while a different one missed it.
            deadline = time.monotonic() + _LONGEST_QUEUE_SECONDS
            while True:
                queued = ((await self.describe()).get("update_queue") or {}).get("length")
                if is_done is not None and not await self.has_replicas() and await is_done():
                    return True
                if not queued or time.monotonic() > deadline:
                    return False
                await asyncio.sleep(_QUEUE_POLL_SECONDS)

        return is_settled

    async def count(self, selected: Filter | None, *, expected: int | None = None) -> int:
        number = await self._count(selected)
        if expected in (None, number) or not await self.has_replicas():
            return number
        try:
            return await self._count(selected, consistency="majority")
        except IndexUnavailable:
            # It needs all replicas. Without one of them, only those are read that hold everything.
            return await self._count(selected)

    async def _count(self, selected: Filter | None, *, consistency: str | None = None) -> int:
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
        page_size: Callable[[], int] = lambda: _IDS_PER_PAGE,
        with_dense: bool = False,
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """All selected points, in non-empty pages. `page_size`: called for each."""
        most = (await self.limits()).get("max_query_limit")
        vectors = [DENSE] if with_dense else False
        request = {"filter": selected, "with_payload": payload, "with_vector": vectors}
        offset: Any = None
        while True:
            body = request | {"limit": within(page_size(), most), "offset": offset}
            page = await self.request("list points", "POST", "/points/scroll", body)
            if page["points"]:
                yield page["points"]
            if (offset := page["next_page_offset"]) is None:
                return


def within(size: int, *limits: int | None) -> int:
    """`size`, or the smallest limit."""
    return max(1, min([size, *(each for each in limits if each is not None)]))


def pages(selected: Sequence[T], size: int = _VALUES_PER_CONDITION) -> list[Sequence[T]]:
    return [selected[start : start + size] for start in range(0, len(selected), size)]
