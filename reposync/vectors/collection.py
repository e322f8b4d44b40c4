"""A collection of reposync: what it is made of, what its metadata records, and requests to it: their limits and
time-outs, and listings in pages.

`collection: code` is an alias. There is a physical collection for each embedding model, so the model can change while
`code` stays searchable: the next physical collection grows beside the live one, and when every repository is in it, the
alias moves in one request. A collection that a version before 0.2 made has the name itself, until its model changes.

What a request may hold is our own sizes, or less if the collection's strict mode says so, which is part of its
description. Its checks: lib/collection/src/operations/verification of Qdrant's source.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from reposync.config.sections import Quantization
from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexAnswerUnreadable, IndexMismatch, IndexUnavailable, IndexUnsupported, VectorIndexError
from reposync.vectors.connection import AlreadyExists, QdrantConnection
from reposync.vectors.port import (
    DENSE,
    SPARSE,
    CollectionMissing,
    IndexSettings,
    Payload,
    ResolvedCollection,
    no_check,
)
from reposync.vectors.request_bodies import Filter

SCHEMA_REVISION = 3
"""Of points. 2: they have symbols, whose names count more in sparse vectors. 3: these are the definitions of the whole
file, not of each chunk alone. A version of the index with points of an earlier revision is searched until a run has
built the next one from them, in the same collection."""
WORDS_SCHEMA = 2
"""The first revision in which the terms of a point are those of its text."""
FIRST_SCHEMA = 1
"""What programs before 0.2 write."""
LAYOUT = 1
"""Of collections: which vectors they have. Programs that expect a different one refuse the collection."""
_METADATA_KEY = "reposync"

PAYLOAD_INDEXES: Mapping[str, Mapping[str, Any]] = {
    Payload.REPOSITORY_ID: {"type": "keyword", "is_tenant": True},
    Payload.REPOSITORY: {"type": "keyword"},
    Payload.PATH: {"type": "keyword"},
    Payload.PATH_TOKENS: {"type": "keyword"},
    Payload.LANGUAGE: {"type": "keyword"},
    Payload.BLOB_SHA: {"type": "keyword"},
    Payload.CONTENT_HASH: {"type": "keyword"},
    Payload.SYMBOL_NAME: {"type": "keyword"},
    Payload.SYMBOL_KIND: {"type": "keyword"},
    Payload.EPOCH: {"type": "integer", "lookup": True, "range": True},
}
# In memory also if the original vectors are on disk: they are what a search compares.
_QUANTIZATIONS: Mapping[Quantization, Mapping[str, Any] | None] = {
    "none": None,
    "int8": {"scalar": {"type": "int8", "always_ram": True}},
    "binary": {"binary": {"always_ram": True}},
    "turbo": {"turbo": {"bits": "bits4", "always_ram": True}},
}
_QUANTIZATION_SINCE: Mapping[Quantization, tuple[int, int]] = {"turbo": (1, 18)}
"""The Qdrant version that a quantization needs."""

_IDS_PER_PAGE = 4_000
# A write of unknown outcome is awaited while the server has writes in its queue, at most so long.
_LONGEST_QUEUE_SECONDS = 600.0
_QUEUE_POLL_SECONDS = 1.0
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


def resolve(collection: Mapping[str, Any], name: str, where: str) -> ResolvedCollection:
    """From Qdrant's description of it. Raises IndexMismatch if reposync did not make the collection."""
    metadata = _metadata(collection)
    if "identity" not in metadata:
        raise IndexMismatch(
            f"{where}: the collection `{name}` was not made by reposync (its metadata does not say so).",
            remedy="Configure a different `collection`, or delete this one. If it was made just now, the server is "
            "older than Qdrant 1.16 and drops metadata: upgrade it.",
        )
    physical = str(metadata.get("physical", name))
    return ResolvedCollection(physical, recorded_spec(collection), metadata.get("schema"), str(metadata["identity"]))


def check_made_for(spec: EmbeddingSpec, found: ResolvedCollection, name: str, where: str) -> None:
    """Raises IndexMismatch."""
    if found.schema != LAYOUT:
        raise IndexMismatch(
            f"{where}: the collection `{name}` has schema revision {found.schema}, and this version of reposync writes "
            f"revision {LAYOUT}.",
            remedy="Configure a different `collection`, or delete this one: the next sync makes it again.",
        )
    if found.spec != spec:
        raise IndexMismatch(
            f"{where}: the collection `{name}` holds vectors of {_describe(found.spec)}, but {_describe(spec)} is "
            "expected. Vectors of two kinds must not be mixed.",
            remedy="It was made for something else: delete it, and the next sync makes it again.",
        )


def recorded_spec(collection: Mapping[str, Any]) -> EmbeddingSpec | None:
    """What an existing collection was made for; None if its metadata is not reposync's."""
    metadata = _metadata(collection)
    if not isinstance(metadata.get("dimension"), int):
        return None
    return EmbeddingSpec(
        str(metadata.get("provider")),
        str(metadata.get("model")),
        metadata["dimension"],
        metadata.get("window_chars"),
        str(metadata.get("document_prefix", "")),
        str(metadata.get("document_options", "")),
    )


def _metadata(collection: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = (collection["config"].get("metadata") or {}).get(_METADATA_KEY)
    return metadata if isinstance(metadata, dict) else {}


def new_collection(spec: EmbeddingSpec, settings: IndexSettings) -> dict[str, Any]:
    """The body of the request that makes it; its identity is created with it, in one request."""
    config = settings.qdrant
    dense: dict[str, Any] = {"size": spec.dimension, "distance": "Cosine"}
    if config.on_disk_vectors and not settings.is_embedded:
        dense["on_disk"] = True
    if spec.multivector:
        dense["multivector_config"] = {"comparator": "max_sim"}
    metadata = {
        "identity": str(uuid.uuid4()),
        "physical": settings.collection,
        "schema": LAYOUT,
        **spec.as_json(),
    }
    request: dict[str, Any] = {
        "vectors": {DENSE: dense} if spec.dimension else {},
        "sparse_vectors": {SPARSE: {"modifier": "idf"}},
        "on_disk_payload": config.on_disk_payload,
        "metadata": {_METADATA_KEY: metadata},
    }
    if settings.is_embedded:
        return request
    options = {
        "shard_number": config.shard_number,
        "replication_factor": config.replication_factor,
        "write_consistency_factor": config.write_consistency_factor,
        "quantization_config": _QUANTIZATIONS[config.quantization],
        # A server may hide points until they are in the HNSW index: counts would contradict the manifest.
        "optimizers_config": {"prevent_unoptimized": False},
    }
    return request | {name: value for name, value in options.items() if value is not None}


def _describe(spec: EmbeddingSpec | None) -> str:
    if spec is None:
        return "an unknown model"
    if not spec.dimension:
        return "sparse search alone"
    window = f", windows of {spec.window_chars} characters" if spec.window_chars is not None else ""
    prompt = "".join(f", documents with {each!r}" for each in (spec.document_prefix, spec.document_options) if each)
    return f"{spec.model} ({spec.provider}, {spec.dimension} dimensions{window}{prompt})"


def physical_name(name: str, spec: EmbeddingSpec) -> str:
    """Of a new collection."""
    made_for = json.dumps([spec.as_json(), LAYOUT], sort_keys=True)
    return f"{name}--{hashlib.sha256(made_for.encode()).hexdigest()[:10]}"


# Requests ------------------------------------------------------------------------------------------------------------


class CollectionClient:
    """Every method raises IndexUnavailable (retryable) or VectorIndexError."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._path = f"/collections/{quote(settings.collection, safe='')}"
        self._known_limits: Limits | None = {} if settings.is_embedded else None
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

    async def request(
        self, what: str, method: str, path: str, body: Any = None, *, consistency: str | None = None, **options: Any
    ) -> Any:
        parameters: dict[str, object] = {"wait": "true"} if options.get("is_write") else {}
        if consistency is not None:
            parameters["consistency"] = consistency
        if body is not None and not self._settings.is_embedded:
            longest = (self._known_limits or {}).get("max_timeout")
            parameters["timeout"] = within(self._connection.server_seconds, longest)
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            return await self._connection.request(what, method, self._path + path, body, parameters=query, **options)
        except VectorIndexError:
            self.forget_limits()  # they may have changed
            raise

    async def write(
        self,
        what: str,
        path: str,
        body: Any,
        is_done: Callable[[], Awaitable[bool]] | None = None,
        check: Callable[[], None] = no_check,
        *,
        method: str = "POST",
    ) -> Any:
        """The result; None if a write of unknown outcome turned out to be applied. `is_done`: reads whether it is; None
        for a write that may as well be sent again. `check`: see WriteScope."""

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

        return await self.request(what, method, path, body, is_write=True, is_settled=is_settled, check=check)

    async def create(self, spec: EmbeddingSpec) -> dict[str, Any]:
        """Its description. If two processes make it at once, the second uses what the first made: one identity."""
        await self._connection.check_version()
        quantization = self._settings.qdrant.quantization
        if (since := _QUANTIZATION_SINCE.get(quantization)) is not None:
            await self._connection.check_version(f"qdrant.quantization {quantization}", since)
        with contextlib.suppress(AlreadyExists):
            await self.request("make the collection", "PUT", "", new_collection(spec, self._settings))
        return await self.describe()

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
