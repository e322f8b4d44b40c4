"""A collection of reposync: its name, what its metadata records, and what it was made for.

`collection: code` is an alias. There is a physical collection for each embedding model, so the model can change while
`code` stays searchable: the next physical collection grows beside the live one, and when every repository is in it, the
alias moves in one request. A collection that a version before 0.2 made has the name itself, until its model changes.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexMismatch
from reposync.vectors.port import Payload, ResolvedCollection

SCHEMA_REVISION = 4
"""The revision of the points. 2: they have symbols, whose names count more in sparse vectors. 3: these are the
definitions of the whole file, not of each chunk alone. 4: they have the names that are called in them; in sparse
vectors paths count more, and lengths less. A version of the index with points of an earlier revision is searched until
a run has built the next one, in the same collection."""
WORDS_SCHEMA = 2
"""The first revision in which the terms of a point are those of its text."""
CALLS_SCHEMA = 4
"""The first revision in which points have the names that are called in them."""
LAYOUT = 1
"""The revision of the collections: which vectors they have. Programs that expect a different one refuse the
collection."""
_METADATA_KEY = "reposync"

# Searches of vectors are filtered by the version; links of the graph for each other value only take memory and time.
_KEYWORD: Mapping[str, Any] = {"type": "keyword", "enable_hnsw": False}
PAYLOAD_INDEXES: Mapping[str, Mapping[str, Any]] = {
    Payload.VERSION_ID: {"type": "keyword", "is_tenant": True},
    Payload.REPOSITORY: _KEYWORD,
    Payload.PATH: {**_KEYWORD, "on_disk": True},
    Payload.PATH_TOKENS: _KEYWORD,
    Payload.LANGUAGE: _KEYWORD,
    Payload.CONTENT_HASH: {**_KEYWORD, "on_disk": True},
    Payload.SYMBOL_NAME: _KEYWORD,
    Payload.SYMBOL_KIND: _KEYWORD,
    Payload.CALLS: _KEYWORD,
    Payload.EPOCH: {"type": "integer", "lookup": True, "range": True, "enable_hnsw": False},
}
"""The payload indexes of new collections. Existing ones keep theirs."""


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


def new_metadata(spec: EmbeddingSpec, name: str) -> dict[str, Any]:
    """The metadata that the collection `name` is made with."""
    return {_METADATA_KEY: {"identity": str(uuid.uuid4()), "physical": name, "schema": LAYOUT, **spec.as_json()}}


def _describe(spec: EmbeddingSpec | None) -> str:
    if spec is None:
        return "an unknown model"
    if not spec.dimension:
        return "sparse search alone"
    window = f", windows of {spec.window_chars} characters" if spec.window_chars is not None else ""
    prompt = "".join(f", documents with {each!r}" for each in (spec.document_prefix, spec.document_options) if each)
    return f"{spec.model} ({spec.provider}, {spec.dimension} dimensions{window}{prompt})"


def physical_name(name: str, spec: EmbeddingSpec) -> str:
    """The name of a new collection for this model."""
    made_for = json.dumps([spec.as_json(), LAYOUT], sort_keys=True)
    return f"{name}--{hashlib.sha256(made_for.encode()).hexdigest()[:10]}"
