"""The OpenAI-compatible dialect: `POST /v1/embeddings` (OpenAI, vLLM, llama.cpp, LM Studio, ...)."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from reposync.embedding.dialect import (
    Answer,
    Get,
    Nonsense,
    ServedModel,
    beside,
    endpoint,
    float_rows,
    parse_json,
    required_model,
    required_url,
)
from reposync.embedding.settings import EmbedderConfig


class OpenAIDialect:
    provider: Final = "openai"

    def __init__(self, config: EmbedderConfig) -> None:
        self.endpoint = endpoint(required_url("openai", config.url), "/embeddings", default_prefix="/v1")
        self.about = beside(self.endpoint, "/embeddings", "/models")
        self._model = required_model("openai", config.model)
        # base64 is a quarter of the bytes of decimal figures and a tenth of the time to read them
        self._options: dict[str, Any] = {"encoding_format": "base64"}
        if config.dimensions is not None:
            self._options["dimensions"] = config.dimensions

    async def describe(self, get: Get) -> ServedModel:
        return ServedModel(self._model)

    def request(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"model": self._model, "input": list(texts), **self._options})

    def answer(self, body: bytes) -> Answer:
        document = parse_json(body)
        items = document.get("data") if isinstance(document, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) and "embedding" in item for item in items):
            raise Nonsense('no list "data" of objects with an "embedding"')
        if [item.get("index", position) for position, item in enumerate(items)] != list(range(len(items))):
            items = _in_order(items)
        vectors = [item["embedding"] for item in items]
        if vectors and all(isinstance(vector, str) for vector in vectors):
            return Answer(_base64_rows(vectors), _tokens(document))
        return Answer(float_rows(vectors), _tokens(document))

    def concede(self, complaint: str) -> None:
        """Some servers know no `encoding_format`, and say so: they get asked for plain numbers."""
        if "encoding_format" in complaint:
            self._options.pop("encoding_format", None)


def _in_order(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_index = {item.get("index"): item for item in items}
    if set(by_index) != set(range(len(items))):
        raise Nonsense('an "index" twice, or one that no input has')
    return [by_index[position] for position in range(len(items))]


def _base64_rows(vectors: list[str]) -> NDArray[np.float32]:
    """Little-endian float32, as OpenAI documents it."""
    if len({len(vector) for vector in vectors}) > 1:
        raise Nonsense("vectors of different lengths")
    try:
        packed = b"".join(binascii.a2b_base64(vector) for vector in vectors)
        return np.frombuffer(packed, "<f4").reshape(len(vectors), -1)
    except ValueError as error:
        raise Nonsense("vectors that are not base64 of 32-bit floats") from error


def _tokens(document: object) -> int | None:
    usage = document.get("usage") if isinstance(document, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None
