"""What a server is asked for by `qdrant.quantization`, `rescore` and `on_disk_vectors`, and when it is too old."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from reposync.embedding.port import EmbeddingSpec, SparseVector
from reposync.errors import IndexUnsupported
from reposync.vectors.collection import new_collection
from reposync.vectors.index import open_index
from reposync.vectors.port import IndexQuery, IndexSettings, Quantization

SPEC = EmbeddingSpec("local", "m", 384, 500)
SERVER = IndexSettings("code", Path("unused"), url="http://qdrant.example", attempts=1)
QUERY = IndexQuery(SparseVector(np.array([1], np.uint32), np.ones(1, np.float32)), np.ones((1, 384), np.float32))


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
    quantization: Quantization, expected: dict[str, Any] | None
) -> None:
    for on_disk in (False, True):
        request = new_collection(SPEC, replace(SERVER, quantization=quantization, on_disk_vectors=on_disk))
        assert request.get("quantization_config") == expected
        assert request["vectors"]["dense"].get("on_disk", False) is on_disk


def test_the_embedded_engine_is_asked_for_neither() -> None:
    settings = replace(SERVER, url=None, quantization="binary", on_disk_vectors=True)
    assert new_collection(SPEC, settings).keys() == new_collection(SPEC, replace(SERVER, url=None)).keys()
    assert "on_disk" not in new_collection(SPEC, settings)["vectors"]["dense"]


@pytest.mark.parametrize(
    ("quantization", "rescore", "expected"),
    [
        ("none", True, {}),
        ("int8", True, {"quantization": {"rescore": True}}),
        ("binary", True, {"quantization": {"rescore": True, "oversampling": 3.0}}),
        ("binary", False, {"quantization": {"rescore": False}}),
        ("turbo", False, {"quantization": {"rescore": False}}),
    ],
)
async def test_a_search_rescores_as_configured(
    quantization: Quantization, rescore: bool, expected: dict[str, Any]
) -> None:
    dense, sparse = await searched(replace(SERVER, quantization=quantization, rescore=rescore))
    assert dense["params"] == {"hnsw_ef": 256} | expected
    assert "params" not in sparse


async def test_a_search_visits_no_more_than_strict_mode_permits() -> None:
    limits = {"enabled": True, "search_max_hnsw_ef": 200, "search_max_oversampling": 2.0}
    dense, _ = await searched(replace(SERVER, quantization="binary"), strict_mode=limits)
    assert dense["params"] == {"hnsw_ef": 200, "quantization": {"rescore": True, "oversampling": 2.0}}


async def searched(settings: IndexSettings, strict_mode: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The dense and the sparse part of a search."""
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            result: dict[str, Any] = {"payload_schema": {}, "config": {"params": {}, "strict_mode_config": strict_mode}}
        else:
            sent.append(json.loads(request.content))
            result = {"points": []}
        return httpx.Response(200, stream=httpx.ByteStream(json.dumps({"result": result}).encode()))

    index = open_index(settings, transport=httpx.MockTransport(answer))
    await index.search(QUERY)
    await index.close()
    return sorted(sent, key=lambda body: str(body["using"]))


async def test_a_server_without_turboquant_is_named_with_the_version_that_has_it() -> None:
    requests = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request.method)
        if request.url.path == "/":
            return httpx.Response(200, stream=httpx.ByteStream(b'{"version": "1.17.1"}'))
        content = {"status": {"error": "Not found: Collection `code` doesn't exist!"}}
        return httpx.Response(404, stream=httpx.ByteStream(json.dumps(content).encode()))

    index = open_index(replace(SERVER, quantization="turbo"), transport=httpx.MockTransport(answer))
    with pytest.raises(IndexUnsupported, match=r"is version 1\.17\.1, and qdrant\.quantization turbo needs 1\.18"):
        await index.ensure(SPEC)
    await index.close()

    assert "PUT" not in requests
