"""A collection of reposync: what it is made of, what its metadata records, and the name that leads to it.

`collection: code` is an alias. The points are in a physical collection, one for each embedding model. So the model can
change while `code` stays searchable: the next physical collection grows beside the live one, and when every repository
is in it, the alias moves in one request. A collection that a version before 0.2 made has the name itself, until its
model changes.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexMismatch
from reposync.vectors.port import (
    DENSE,
    SPARSE,
    Index,
    IndexSettings,
    Payload,
    Quantization,
    ResolvedCollection,
)

SCHEMA_REVISION = 2
"""Of points. 2: they have symbols, whose names count more in sparse vectors. A version of the index with points of 1 is
searched until a run has built the next one from them, in the same collection."""
FIRST_SCHEMA = 1
"""What programs before 0.2 write."""
_LAYOUT = 1
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
QUANTIZATION_SINCE: Mapping[Quantization, tuple[int, int]] = {"turbo": (1, 18)}
"""The Qdrant version that a quantization needs."""


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
    if found.schema != _LAYOUT:
        raise IndexMismatch(
            f"{where}: the collection `{name}` has schema revision {found.schema}, and this version of reposync writes "
            f"revision {_LAYOUT}.",
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
    dense: dict[str, Any] = {"size": spec.dimension, "distance": "Cosine"}
    if settings.url is not None and settings.on_disk_vectors:
        dense["on_disk"] = True
    if spec.multivector:
        dense["multivector_config"] = {"comparator": "max_sim"}
    metadata = {
        "identity": str(uuid.uuid4()),
        "physical": settings.collection,
        "schema": _LAYOUT,
        **spec.as_json(),
    }
    request: dict[str, Any] = {
        "vectors": {DENSE: dense} if spec.dimension else {},
        "sparse_vectors": {SPARSE: {"modifier": "idf"}},
        "on_disk_payload": settings.on_disk_payload,
        "metadata": {_METADATA_KEY: metadata},
    }
    if settings.url is None:
        return request
    options = {
        "shard_number": settings.shard_number,
        "replication_factor": settings.replication_factor,
        "write_consistency_factor": settings.write_consistency_factor,
        "quantization_config": _QUANTIZATIONS[settings.quantization],
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


# The name ------------------------------------------------------------------------------------------------------------


async def physical_collection(open_index: Callable[[str], Index], name: str, spec: EmbeddingSpec) -> str:
    """The collection behind `name` for this model, whether it exists yet or not. Writes nothing. Raises IndexMismatch
    if reposync did not make what has the name."""
    resolved = await open_index(name).resolve()
    if resolved is not None and resolved.spec == spec and resolved.schema == _LAYOUT:
        return resolved.physical
    made_for = json.dumps([spec.as_json(), _LAYOUT], sort_keys=True)
    return f"{name}--{hashlib.sha256(made_for.encode()).hexdigest()[:10]}"


async def give_name(open_index: Callable[[str], Index], name: str, physical: str) -> None:
    """Make `name` lead to `physical` if it is free. Two processes may do so at once."""
    if physical != name and await open_index(name).resolve() is None:
        await open_index(physical).take_name(name)


async def move_name(open_index: Callable[[str], Index], name: str, physical: str) -> bool:
    """Make `name` lead to `physical`; whether it does. An alias moves in one request. A collection that has the name
    itself is dropped first, once it is empty."""
    resolved = await open_index(name).resolve()
    if resolved is None or resolved.physical == physical:
        await give_name(open_index, name, physical)
        return True
    if resolved.physical == name:
        if await open_index(name).count():
            return False
        await open_index(name).drop()
    await open_index(physical).take_name(name)
    return True


async def drop_if_empty(open_index: Callable[[str], Index], physical: str) -> None:
    """A collection that a different installation uses as well is not empty, and stays."""
    index = open_index(physical)
    if await index.spec() is not None and not await index.count():
        await index.drop()
