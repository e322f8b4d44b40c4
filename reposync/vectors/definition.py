"""What a collection of ours is made of, what it remembers about itself, and whether it fits an embedding model."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexMismatch
from reposync.vectors.filters import BLOB_SHA, CONTENT_HASH, EPOCH, LANGUAGE, PATH, REPOSITORY, REPOSITORY_ID
from reposync.vectors.port import DENSE, SPARSE, IndexSettings

METADATA_KEY = "reposync"
SCHEMA_REVISION = 1

PAYLOAD_INDEXES: Mapping[str, Mapping[str, Any]] = {
    REPOSITORY_ID: {"type": "keyword", "is_tenant": True},
    REPOSITORY: {"type": "keyword"},
    PATH: {"type": "keyword"},
    LANGUAGE: {"type": "keyword"},
    BLOB_SHA: {"type": "keyword"},
    CONTENT_HASH: {"type": "keyword"},
    EPOCH: {"type": "integer", "lookup": True, "range": True},
}


@dataclass(frozen=True, slots=True)
class Behind:
    """What a name leads to: a collection of ours, and what it was made for."""

    physical: str
    spec: EmbeddingSpec | None
    schema: object

    def fits(self, spec: EmbeddingSpec) -> bool:
        return self.spec == spec and self.schema == SCHEMA_REVISION


def behind(collection: Mapping[str, Any], name: str, where: str) -> Behind:
    """Raises IndexMismatch where reposync did not make the collection."""
    metadata = _own_metadata(collection, name, where)
    return Behind(str(metadata.get("physical", name)), recorded_spec(collection), metadata.get("schema"))


def new_collection(spec: EmbeddingSpec, settings: IndexSettings) -> dict[str, Any]:
    """The body of the request that makes it. The identity is made here: with the collection, in one request."""
    request: dict[str, Any] = {
        "vectors": {DENSE: _dense(spec)} if spec.dimension else {},
        "sparse_vectors": {SPARSE: {"modifier": "idf"}},
        "on_disk_payload": settings.on_disk_payload,
        "metadata": {
            METADATA_KEY: {
                "identity": str(uuid.uuid4()),
                "physical": settings.collection,
                "schema": SCHEMA_REVISION,
                **_embedding(spec),
            }
        },
    }
    if settings.url is None:
        return request
    options = {
        "shard_number": settings.shard_number,
        "replication_factor": settings.replication_factor,
        "write_consistency_factor": settings.write_consistency_factor,
        "quantization_config": {"scalar": {"type": "int8", "always_ram": True}}
        if settings.quantization == "int8"
        else None,
    }
    return request | {name: value for name, value in options.items() if value is not None}


def _dense(spec: EmbeddingSpec) -> dict[str, Any]:
    params: dict[str, Any] = {"size": spec.dimension, "distance": "Cosine"}
    return params | {"multivector_config": {"comparator": "max_sim"}} if spec.multivector else params


def _embedding(spec: EmbeddingSpec) -> dict[str, Any]:
    return {
        "provider": spec.provider,
        "model": spec.model,
        "dimension": spec.dimension,
        "window_chars": spec.window_chars,
    }


def recorded_spec(collection: Mapping[str, Any]) -> EmbeddingSpec | None:
    """What an existing collection says that it was made for; None where it does not say so as ours do."""
    metadata = (collection["config"].get("metadata") or {}).get(METADATA_KEY)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("dimension"), int):
        return None
    return EmbeddingSpec(
        str(metadata.get("provider")), str(metadata.get("model")), metadata["dimension"], metadata.get("window_chars")
    )


def identity_of(collection: Mapping[str, Any], spec: EmbeddingSpec, name: str, where: str) -> str:
    """The identity of an existing collection. `collection` is Qdrant's description of it.

    Raises IndexMismatch where it is not ours, or was made for something else than `spec`.
    """
    metadata = _own_metadata(collection, name, where)
    if metadata.get("schema") != SCHEMA_REVISION:
        raise IndexMismatch(
            f"{where}: the collection `{name}` has schema revision {metadata.get('schema')}, and this version of "
            f"reposync writes revision {SCHEMA_REVISION}.",
            remedy="Configure another `collection`, or delete this one: the next sync makes it anew.",
        )
    had = {key: metadata.get(key) for key in _embedding(spec)}
    if had != _embedding(spec) or not _holds(collection, spec):
        raise IndexMismatch(
            f"{where}: the collection `{name}` holds vectors of {_in_words(had)}, but {_in_words(_embedding(spec))} is "
            "expected. Vectors of two kinds must not be mixed.",
            remedy="Somebody made it anew for something else: delete it, and the next sync makes it again.",
        )
    return str(metadata["identity"])


def _own_metadata(collection: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    metadata = (collection["config"].get("metadata") or {}).get(METADATA_KEY)
    if not isinstance(metadata, dict) or "identity" not in metadata:
        raise IndexMismatch(
            f"{where}: the collection `{name}` was not made by reposync (its metadata does not say so).",
            remedy="Configure another `collection`, or delete this one. Where it was made just now, the server is "
            "older than Qdrant 1.16 and forgets metadata: upgrade it.",
        )
    return metadata


def _holds(collection: Mapping[str, Any], spec: EmbeddingSpec) -> bool:
    params = collection["config"]["params"]
    dense = (params.get("vectors") or {}).get(DENSE) or {}
    fits = dense.get("size", 0) == spec.dimension and bool(dense.get("multivector_config")) == (
        spec.multivector and bool(spec.dimension)
    )
    return fits and SPARSE in (params.get("sparse_vectors") or {})


def _in_words(embedding: Mapping[str, Any]) -> str:
    if not embedding["dimension"]:
        return "sparse search alone"
    window = f", windows of {embedding['window_chars']} characters" if embedding["window_chars"] is not None else ""
    return f"{embedding['model']} ({embedding['provider']}, {embedding['dimension']} dimensions{window})"
