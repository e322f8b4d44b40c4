"""The dialect of Ollama: `POST /api/embed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

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


class OllamaDialect:
    provider: Final = "ollama"

    def __init__(self, config: EmbedderConfig) -> None:
        self.endpoint = endpoint(required_url("ollama", config.url), "/api/embed")
        self.about = beside(self.endpoint, "/api/embed", "/api/version")
        self._model = required_model("ollama", config.model)

    async def describe(self, get: Get) -> ServedModel:
        return ServedModel(self._model)

    def request(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"model": self._model, "input": list(texts), "truncate": False})

    def answer(self, body: bytes) -> Answer:
        document = parse_json(body)
        if not isinstance(document, dict) or "embeddings" not in document:
            raise Nonsense('no "embeddings"')
        tokens = document.get("prompt_eval_count")
        return Answer(float_rows(document["embeddings"]), tokens if isinstance(tokens, int) and tokens > 0 else None)

    def concede(self, complaint: str) -> None:
        return None
