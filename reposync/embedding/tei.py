"""The dialect of Hugging Face's Text Embeddings Inference: `POST /embed`, and `GET /info` for what it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
    required_url,
)
from reposync.embedding.settings import EmbedderConfig
from reposync.errors import ConfigError


class TeiDialect:
    provider: Final = "tei"

    def __init__(self, config: EmbedderConfig) -> None:
        self.endpoint = endpoint(required_url("tei", config.url), "/embed")
        # Not /health, which has the model embed something.
        self.about = beside(self.endpoint, "/embed", "/info")
        self._expected_model = config.model

    async def describe(self, get: Get) -> ServedModel:
        """The server knows its one model best: a configured name that differs is a mistake in the configuration."""
        document = parse_json(await get(self.about))
        model = document.get("model_id") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(model, str) or not model:
            raise Nonsense('no "model_id"')
        if self._expected_model not in (None, model):
            raise ConfigError(
                f"embedding.model is {self._expected_model}, but the server serves {model}.",
                remedy="Mend embedding.model or embedding.url, or leave embedding.model out.",
            )
        return ServedModel(model, _count(document, "max_client_batch_size"), _count(document, "max_input_length"))

    def request(self, texts: Sequence[str]) -> bytes:
        # Said aloud, since a server started with --auto-truncate cuts silently otherwise.
        return orjson.dumps({"inputs": list(texts), "truncate": False})

    def answer(self, body: bytes) -> Answer:
        return Answer(float_rows(parse_json(body)))

    def concede(self, complaint: str) -> None:
        return None


def _count(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) and value > 0 else None
