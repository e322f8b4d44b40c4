"""What a server is asked for by `qdrant.quantization`, `rescore` and `on_disk_vectors`, and when it is too old."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from reposync.config.sections import QdrantConfig, Quantization
from reposync.embedding.port import EmbeddingSpec, SparseVector
from reposync.errors import IndexUnsupported
from reposync.vectors.changes import new_collection
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexQuery, IndexSettings
from tests.unit.vectors.test_connection import Qdrant, answer

SPEC = EmbeddingSpec("local", "m", 384, 500)
QUERY = IndexQuery(SparseVector(np.array([1], np.uint32), np.ones(1, np.float32)), np.ones((1, 384), np.float32))


def on_server(**settings: Any) -> IndexSettings:
    return IndexSettings("code", Path("unused"), QdrantConfig(url="http://qdrant.example", **settings))


def index_on(qdrant: Qdrant, **settings: Any) -> QdrantIndex:
    return QdrantIndex(on_server(**settings), transport=httpx.MockTransport(qdrant))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ("none", None),
        ("int8", {"scalar": {"type": "int8", "always_ram": True}}),
        ("binary", {"binary": {"always_ram": True}}),
        ("turbo", {"turbo": {"bits": "bits4", "always_ram": True}}),
    ],
)
def test_quantized_vectors_are_in_memory_wherever_the_original_ones_are(
    quantization: Quantization, expected: dict[str, Any] | None, on_disk: bool
) -> None:
    settings = on_server(quantization=quantization, on_disk_vectors=on_disk)
    request = new_collection(SPEC, settings)
    made = request["quantization_config"]
    assert (made and made.model_dump(exclude_none=True, mode="json")) == expected
    assert bool(request["vectors_config"]["dense"].on_disk) is on_disk
    embedded = new_collection(SPEC, replace(settings, qdrant=settings.qdrant.model_copy(update={"url": None})))
    assert "quantization_config" not in embedded and embedded["vectors_config"]["dense"].on_disk is None


@pytest.mark.parametrize(
    ("quantization", "rescore", "strict_mode", "expected"),
    [
        ("none", True, {}, {"hnsw_ef": 384}),
        ("int8", True, {}, {"hnsw_ef": 384, "quantization": {"rescore": True}}),
        ("binary", True, {}, {"hnsw_ef": 384, "quantization": {"rescore": True, "oversampling": 3.0}}),
        ("binary", False, {}, {"hnsw_ef": 384, "quantization": {"rescore": False}}),
        (
            "binary",
            True,
            {"enabled": True, "search_max_hnsw_ef": 200, "search_max_oversampling": 2.0},
            {"hnsw_ef": 200, "quantization": {"rescore": True, "oversampling": 2.0}},
        ),
    ],
)
async def test_a_search_rescores_as_configured_within_strict_mode(
    quantization: Quantization, rescore: bool, strict_mode: dict[str, Any], expected: dict[str, Any]
) -> None:
    qdrant = Qdrant([answer({"points": []})] * 2, strict=strict_mode)
    await index_on(qdrant, quantization=quantization, rescore=rescore).search(QUERY)
    bodies = [json.loads(each.content) for each in qdrant.requests]
    dense, sparse = sorted(bodies, key=lambda body: str(body["using"]))
    assert dense["params"] == expected
    assert "params" not in sparse


async def test_a_server_without_turboquant_is_named_with_the_version_that_has_it() -> None:
    qdrant = Qdrant(version="1.17.1")
    index = index_on(qdrant, quantization="turbo")
    with pytest.raises(IndexUnsupported, match=r"is version 1\.17\.1, and qdrant\.quantization turbo needs 1\.18"):
        await (await index._changes()).make(SPEC)
    assert qdrant.requests == [], "nothing is made"
