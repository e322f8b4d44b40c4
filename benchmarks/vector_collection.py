"""The collection of `benchmarks.vector_search`: made, filled and opened by reposync itself, with each setting."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import SecretStr

from benchmarks.qdrant_program import ENGINE, Server, until_green, until_ready
from benchmarks.vector_data import Base, fill, make_chunks
from reposync.config.sections import QdrantConfig, Quantization
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import LOCAL_WINDOW, STATIC_DIMENSION, STATIC_WINDOW
from reposync.vectors.changes import new_collection
from reposync.vectors.connection import EmbeddedTransport
from reposync.vectors.embedded import EmbeddedEngine
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import DENSE, IndexSettings

COLLECTION = "reposync-benchmark"
SPECS = {
    "static": EmbeddingSpec("static", "benchmark", STATIC_DIMENSION, STATIC_WINDOW),
    "local": EmbeddingSpec("local", "benchmark", 384, LOCAL_WINDOW),
}
CONCURRENT = 8
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """How a collection stores its vectors; `int8+disk`: the original ones on disk. `float32`: in twice the bytes that
    the product takes."""

    quantization: Quantization
    on_disk: bool
    is_float32: bool = False

    @property
    def name(self) -> str:
        return self.quantization + ("+disk" if self.on_disk else "") + ("+float32" if self.is_float32 else "")

    @property
    def unquantized(self) -> str:
        """The name of the setting of which a copy can be changed to this one."""
        return Setting("none", False, self.is_float32).name

    @property
    def ways(self) -> dict[str, Params]:
        """Names and parameters of the ways to search it, but for `hnsw_ef`."""
        if self.quantization == "none":
            return {"": {}}
        rescored = {"rescore": True}
        return {
            "no": {"quantization": {"rescore": False}},
            "yes": {"quantization": rescored},
            "yes, of 3 times as many": {"quantization": rescored | {"oversampling": 3.0}},
        }


SETTINGS = {
    each.name: each
    for each in [
        *itertools.starmap(Setting, itertools.product(("none", "int8", "binary", "turbo"), (False, True))),
        Setting("none", False, True),
        Setting("none", True, True),
    ]
}


class Parameters(httpx.AsyncBaseTransport):
    """Below the product: its requests, with `params` instead of its own for the dense part of a search, and a new
    collection as `setting` says."""

    def __init__(self, beneath: httpx.AsyncBaseTransport, setting: Setting) -> None:
        self.params: Params = {}
        self._setting = setting
        self._beneath = beneath

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        is_new = request.method == "PUT" and request.url.path == f"/collections/{COLLECTION}"
        if is_new or request.url.path.endswith("/points/query"):
            body = orjson.loads(await request.aread())
            if is_new and self._setting.is_float32:
                body["vectors"][DENSE]["datatype"] = "float32"
            for query in [] if is_new else body.get("prefetch") or [body]:
                if query["using"] == DENSE:
                    query["params"] = self.params
            headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
            request = httpx.Request(
                request.method, request.url, headers=headers, content=orjson.dumps(body), extensions=request.extensions
            )
        return await self._beneath.handle_async_request(request)

    async def aclose(self) -> None:
        await self._beneath.aclose()


async def fill_collection(
    options: argparse.Namespace, base: Base, setting: Setting, url: str | None, folder: Path
) -> tuple[float, float, int]:
    """Seconds of the upload, seconds from then until indexed, indexed vectors."""
    async with opened(url, setting, folder) as (index, _, client):
        await until_ready(client)
        await client.delete(f"/collections/{COLLECTION}")
        await index.ensure(SPECS[options.model])
        started = time.perf_counter()
        await fill(index, base, make_chunks(base, options.chunks, options.noise))
        uploaded = time.perf_counter()
        description = await until_green(client, COLLECTION)
        done = time.perf_counter()
    return uploaded - started, done - uploaded, description.get("indexed_vectors_count") or 0


async def convert_collection(
    spec: EmbeddingSpec, unquantized: Path, own: Server, setting: Setting, folder: Path
) -> tuple[float, float, int]:
    """A copy of the kept collection without quantization, with the settings of `setting`. As `fill_collection`: seconds
    of that collection's upload, seconds until the server has changed the copy."""
    shutil.rmtree(folder / "storage", ignore_errors=True)
    shutil.copytree(unquantized / "storage", folder / "storage")
    with own:
        async with opened(own.url, setting, folder) as (_, _, client):
            await until_ready(client)
            await until_green(client, COLLECTION)
            started = time.perf_counter()
            made = new_collection(spec, index_settings(own.url, setting, folder))
            quantization = made["quantization_config"]
            changed = {
                "quantization_config": quantization and quantization.model_dump(exclude_none=True, mode="json"),
                "vectors": {DENSE: {"on_disk": setting.on_disk}},
            }
            (await client.patch(f"/collections/{COLLECTION}", json=changed)).raise_for_status()
            description = await until_green(client, COLLECTION)
    uploaded = orjson.loads((unquantized / "filled.json").read_bytes())[0]
    return uploaded, time.perf_counter() - started, description.get("indexed_vectors_count") or 0


@contextlib.asynccontextmanager
async def opened(
    url: str | None, setting: Setting, folder: Path
) -> AsyncIterator[tuple[QdrantIndex, Parameters, httpx.AsyncClient]]:
    """The product's index, what adds parameters to its searches, and a client for what the product never asks.
    `folder`: of the embedded engine, if there is no URL."""
    settings = index_settings(url, setting, folder)

    def transport() -> httpx.AsyncBaseTransport:
        if url is None:
            return EmbeddedTransport(EmbeddedEngine(folder))
        return httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=CONCURRENT))

    with_parameters = Parameters(transport(), setting)
    index = QdrantIndex(settings, transport=with_parameters)
    key = os.environ.get("QDRANT_API_KEY")
    headers = {"api-key": key} if key else {}
    base_url = url or f"http://{ENGINE}"
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=60, transport=transport()) as client:
        try:
            yield index, with_parameters, client
        finally:
            await index.close()


def index_settings(url: str | None, setting: Setting, folder: Path) -> IndexSettings:
    key = os.environ.get("QDRANT_API_KEY")
    config = QdrantConfig(
        url=url,
        api_key=SecretStr(key) if key else None,
        timeout_seconds=600.0,
        quantization=setting.quantization,
        on_disk_vectors=setting.on_disk,
    )
    return IndexSettings(COLLECTION, folder, config)
