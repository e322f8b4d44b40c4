"""Requests to one collection: their limits and time-outs, listings in pages, and writes whose outcome is unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from reposync.errors import IndexAnswerUnreadable, VectorIndexError
from reposync.vectors.collection import PAYLOAD_INDEXES
from reposync.vectors.connection import QdrantConnection
from reposync.vectors.limits import RequestLimits, limits_of, within
from reposync.vectors.port import DENSE, CollectionMissing, IndexSettings, no_check
from reposync.vectors.request_bodies import Filter

_IDS_PER_PAGE = 4_000
# A write whose outcome is unknown is awaited as long as the server has writes in its queue, at most so long.
_LONGEST_QUEUE_SECONDS = 600.0
_QUEUE_POLL_SECONDS = 1.0


class CollectionClient:
    """Every method raises IndexUnavailable (retryable) or VectorIndexError."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._path = f"/collections/{quote(settings.collection, safe='')}"
        self._known_limits = RequestLimits() if settings.url is None else None

    async def describe(self) -> dict[str, Any]:
        found = await self.request("describe the collection", "GET", "")
        if not isinstance(found, dict) or not {"config", "payload_schema"} <= found.keys():
            raise IndexAnswerUnreadable(
                f"{self._connection.where} sent a description of a collection without its parts."
            )
        return found

    async def limits(self) -> RequestLimits:
        if self._known_limits is not None:
            return self._known_limits
        try:
            return self.learn_limits(await self.describe())
        except CollectionMissing:
            return RequestLimits()

    def learn_limits(self, collection: Mapping[str, Any]) -> RequestLimits:
        name, where = self._settings.collection, self._connection.where
        is_complete = PAYLOAD_INDEXES.keys() <= collection["payload_schema"].keys()
        self._known_limits = limits_of(collection, name, where, 0 if is_complete else len(PAYLOAD_INDEXES))
        return self._known_limits

    def forget_limits(self) -> None:
        if self._settings.url is not None:
            self._known_limits = None

    async def write(
        self,
        what: str,
        method: str,
        path: str,
        body: Any,
        is_done: Callable[[], Awaitable[bool]] | None,
        check: Callable[[], None] = no_check,
    ) -> Any:
        """The result; None if a write of unknown outcome turned out to be applied. `is_done`: reads whether it is; None
        for a write that may as well be sent again. In a collection with replicas it always is sent again: one of them
        may have it and answer the read, while a different one missed it and stays in service."""
        settled = None if is_done is None else partial(self._settled, is_done)
        return await self.request(what, method, path, body, is_write=True, is_done=settled, check=check)

    async def _settled(self, is_done: Callable[[], Awaitable[bool]]) -> bool:
        deadline = time.monotonic() + _LONGEST_QUEUE_SECONDS
        while True:
            queued = (await self.describe()).get("update_queue") or {}
            if (await self.limits()).replicas == 1 and await is_done():
                return True
            if not queued.get("length") or time.monotonic() > deadline:
                return False
            await asyncio.sleep(_QUEUE_POLL_SECONDS)

    async def request(
        self, what: str, method: str, path: str, body: Any = None, *, consistency: str | None = None, **options: Any
    ) -> Any:
        parameters: dict[str, object] = {"wait": "true"} if options.get("is_write") else {}
        if consistency is not None:
            parameters["consistency"] = consistency
        if body is not None and self._settings.url is not None:
            longest = self._known_limits.seconds if self._known_limits is not None else None
            parameters["timeout"] = within(self._connection.server_seconds, longest)
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            return await self._connection.request(what, method, self._path + path, body, parameters=query, **options)
        except VectorIndexError:
            self.forget_limits()  # they may have changed
            raise

    async def count(self, selected: Filter | None, *, consistency: str | None = None) -> int:
        if not (await self.limits()).exact:
            return sum([len(page) async for page in self.scrolled(selected, False)])
        body = {"filter": selected, "exact": True}
        answer = await self.request("count points", "POST", "/points/count", body, consistency=consistency)
        return int(answer["count"])

    async def facet(self, key: str, selected: Filter | None, limit: int) -> dict[str, int]:
        limits = await self.limits()
        body = {"key": key, "filter": selected, "exact": limits.exact, "limit": within(limit, limits.results)}
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
        limit = within(limit, (await self.limits()).results)
        vectors = [DENSE] if with_dense else False
        request = {"filter": selected, "limit": limit, "with_payload": payload, "with_vector": vectors}
        offset: Any = None
        while True:
            page = await self.request("list points", "POST", "/points/scroll", request | {"offset": offset})
            if page["points"]:
                yield page["points"]
            if (offset := page["next_page_offset"]) is None:
                return
