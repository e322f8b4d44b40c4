"""Changes of a collection by Qdrant's own client, on our connections. Imported in a thread at the first change, because
the client's import takes 1.3 s; what is not here, and why, is in `raw_requests`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException

from reposync.config.sections import Quantization
from reposync.embedding.port import EmbeddingSpec
from reposync.http_client import TransientFailure
from reposync.vectors.collection import new_metadata
from reposync.vectors.connection import AlreadyExists, QdrantConnection, require_applied
from reposync.vectors.port import DENSE, SPARSE, IndexSettings, PointId, no_check
from reposync.vectors.raw_requests import CollectionRequests

# In memory also if the original vectors are on disk: they are what a search compares.
_QUANTIZATIONS: Mapping[Quantization, models.QuantizationConfig | None] = {
    "none": None,
    "int8": models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    ),
    "binary": models.BinaryQuantization(binary=models.BinaryQuantizationConfig(always_ram=True)),
    "turbo": models.TurboQuantization(
        turbo=models.TurboQuantQuantizationConfig(bits=models.TurboQuantBitSize.BITS4, always_ram=True)
    ),
}
_QUANTIZATION_SINCE: Mapping[Quantization, tuple[int, int]] = {"turbo": (1, 18)}
"""The Qdrant version that a quantization needs."""


class CollectionChanges:
    """Every method raises IndexUnavailable (retryable) or VectorIndexError. `check`: see WriteScope."""

    def __init__(self, settings: IndexSettings, connection: QdrantConnection, requests: CollectionRequests) -> None:
        self._settings = settings
        self._name = settings.collection
        self._connection = connection
        self._requests = requests
        self._client = AsyncQdrantClient(
            url="http://qdrant", port=None, check_compatibility=False, transport=_Transport(connection), trust_env=False
        )

    async def make(self, spec: EmbeddingSpec) -> None:
        """If two processes make it at once, the second uses what the first made: one identity."""
        await self._connection.check_version()
        quantization = self._settings.qdrant.quantization
        if (since := _QUANTIZATION_SINCE.get(quantization)) is not None:
            await self._connection.check_version(f"qdrant.quantization {quantization}", since)
        parts = new_collection(spec, self._settings)
        with contextlib.suppress(AlreadyExists):
            await self._change(
                "make the collection",
                lambda seconds: self._client.create_collection(self._name, timeout=seconds, **parts),
            )

    async def index_field(self, field: str, schema: Mapping[str, Any]) -> None:
        """Index a payload field. `schema`: one of PAYLOAD_INDEXES."""
        kind = models.IntegerIndexParams if schema["type"] == "integer" else models.KeywordIndexParams
        await self._write(
            f"index the payload field {field}",
            lambda seconds: self._client.create_payload_index(self._name, field, kind(**schema), timeout=seconds),
        )

    async def lead_to(self, physical: str) -> None:
        """Make the name an alias of the collection `physical`, in one request."""
        created = models.CreateAlias(collection_name=physical, alias_name=self._name)
        actions: list[models.AliasOperations] = [
            models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self._name)),
            models.CreateAliasOperation(create_alias=created),
        ]
        await self._change(
            f"name the collection {physical}",
            lambda seconds: self._client.update_collection_aliases(actions, timeout=seconds),
        )

    async def drop(self) -> None:
        await self._change(
            "drop the collection", lambda seconds: self._client.delete_collection(self._name, timeout=seconds)
        )
        self._requests.forget_limits()

    async def set_metadata(self, changes: Mapping[PointId, Mapping[str, Any]], check: Callable[[], None]) -> None:
        """Set these keys of the metadata of points, those of each point its own."""
        sets = [models.SetPayload(payload=keys, key="metadata", points=[number]) for number, keys in changes.items()]
        operations = [models.SetPayloadOperation(set_payload=one) for one in sets]
        await self._write(
            "change payloads",
            lambda seconds: self._client.batch_update_points(self._name, operations, timeout=seconds),
            check,
        )

    async def close(self) -> None:
        await self._client.close()

    async def _write(
        self,
        what: str,
        request: Callable[[int | None], Awaitable[models.UpdateResult | list[models.UpdateResult]]],
        check: Callable[[], None] = no_check,
    ) -> None:
        """A change of points, applied on return; it may as well be sent again."""

        async def applied(seconds: int | None) -> None:
            results = await request(seconds)
            require_applied(each.status for each in (results if isinstance(results, list) else [results]))

        await self._change(what, applied, is_settled=self._requests.settled(None), check=check)

    async def _change(self, what: str, request: Callable[[int | None], Awaitable[object]], **options: Any) -> None:
        """`request` gets the time-out that the server is given."""

        async def exchange() -> None:
            try:
                await request(self._requests.server_seconds)
            except ResponseHandlingException as error:
                if not isinstance(error.source, ValueError):
                    raise error.source from error  # of `_Transport`
                raise _unreadable() from error
            except (ValueError, RecursionError, AssertionError) as error:
                raise _unreadable() from error

        await self._requests.repeat(what, exchange, **options)


def _unreadable() -> TransientFailure:
    """For an answer that the client's models do not know. Whether the change was made is unknown then."""
    return TransientFailure("the answer is not Qdrant's", overloaded=True, corrupt=True)


class _Transport(httpx.AsyncBaseTransport):
    """Below Qdrant's client: the requests of a QdrantConnection, to whichever node answers."""

    def __init__(self, connection: QdrantConnection) -> None:
        self._connection = connection

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode("ascii")
        content = await self._connection.send(request.method, path, await request.aread())
        return httpx.Response(200, content=content, request=request)


def new_collection(spec: EmbeddingSpec, settings: IndexSettings) -> dict[str, Any]:
    """What `create_collection` gets; its identity is created with it, in one request."""
    config = settings.qdrant
    vectors = {}
    if spec.dimension:
        multivector = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        vectors[DENSE] = models.VectorParams(
            size=spec.dimension,
            distance=models.Distance.COSINE,
            on_disk=True if config.on_disk_vectors and not settings.is_embedded else None,
            # Half the memory and disk; an exact search finds the same. The embedded engine compares codes first.
            datatype=None if settings.is_embedded else models.Datatype.FLOAT16,
            multivector_config=multivector if spec.multivector else None,
        )
    parts = {
        "vectors_config": vectors,
        "sparse_vectors_config": {SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
        "on_disk_payload": config.on_disk_payload,
        "metadata": new_metadata(spec, settings.collection),
    }
    if settings.is_embedded:
        return parts
    return parts | {
        "shard_number": config.shard_number,
        "replication_factor": config.replication_factor,
        "write_consistency_factor": config.write_consistency_factor,
        "quantization_config": _QUANTIZATIONS[config.quantization],
        # A server may hide points until they are in the HNSW index: counts would contradict the manifest.
        "optimizers_config": models.OptimizersConfigDiff(prevent_unoptimized=False),
    }
