"""The dialects of embedding servers: OpenAI-compatible, Hugging Face TEI and Ollama."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from reposync.errors import ConfigError


class MalformedResponse(ValueError):
    """An answer of the wrong shape. The message completes "the server answered ..."."""


class NoJson(MalformedResponse):
    """An answer that is not JSON."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server reports about its model; None: not reported."""

    model: str
    batch: int | None = None
    input_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """`path` takes the texts under `texts_key`, with `options`, which forbid truncation if the dialect can.
    `info_path`: a small resource, free of charge. `rows` and `tokens` find the vectors, in the order of the texts, and
    the token count in an answer. `serves_one_model`: `info_path` describes it, as TEI does."""

    path: str
    info_path: str
    texts_key: str
    rows: Callable[[Any], Any]
    tokens: Callable[[Any], Any] = field(default=lambda document: None)
    options: Mapping[str, object] = field(default_factory=dict)
    default_prefix: str = ""
    serves_one_model: bool = False

    def address(self, url: str) -> str:
        """For POST: `url` if it ends with `path`, else `path` below it, below `default_prefix` if it is a bare host."""
        if url.endswith(self.path):
            return url
        return f"{url}{'' if urlsplit(url).path else self.default_prefix}{self.path}"

    def answer(self, body: bytes) -> tuple[NDArray[np.float32], int | None]:
        """The vectors (inputs, dimension) and the token count, if the server reports it. Raises MalformedResponse."""
        document = parse_json(body)
        try:
            rows = self.rows(document)
        except (KeyError, TypeError, AttributeError) as error:
            raise MalformedResponse("no list of vectors") from error
        tokens: object = None
        with suppress(KeyError, TypeError):
            tokens = self.tokens(document)
        return _matrix(rows), _positive(tokens)


def parse_json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoJson("something that is not JSON (NaN and Infinity are not, either)") from error


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _matrix(rows: object) -> NDArray[np.float32]:
    """Lists of numbers, or base64 of little-endian float32, as OpenAI documents it. Raises MalformedResponse."""
    if not isinstance(rows, list):
        raise MalformedResponse("no list of vectors")
    if not rows:
        return np.empty((0, 0), np.float32)
    if not all(isinstance(row, list | str) and len(row) == len(rows[0]) for row in rows):
        raise MalformedResponse("vectors of different lengths")
    try:
        if all(isinstance(row, str) for row in rows):
            packed = b"".join(binascii.a2b_base64(row) for row in rows)
            return np.frombuffer(packed, "<f4").reshape(len(rows), -1)
        with np.errstate(over="ignore"):  # infinity is caught with NaN, by the client
            return np.array(rows, np.float32).reshape(len(rows), -1)
    except (TypeError, ValueError) as error:
        raise MalformedResponse("vectors that are not numbers or base64 of 32-bit floats") from error


def _openai_rows(document: Any) -> list[Any]:
    items = document["data"]
    by_index = {item.get("index", position): item["embedding"] for position, item in enumerate(items)}
    if set(by_index) != set(range(len(items))):
        raise MalformedResponse('an "index" twice, or one that no input has')
    return [by_index[position] for position in range(len(items))]


DIALECTS: Final[Mapping[str, Dialect]] = {
    "openai": Dialect(  # also vLLM, llama.cpp, LM Studio, ...
        path="/embeddings",
        info_path="/models",
        default_prefix="/v1",
        texts_key="input",
        # A quarter of the bytes of decimal figures and a tenth of the time to read them.
        options={"encoding_format": "base64"},
        rows=_openai_rows,
        tokens=lambda document: document["usage"]["prompt_tokens"],
    ),
    "tei": Dialect(
        path="/embed",
        info_path="/info",  # not /health, which makes the model embed something
        serves_one_model=True,
        texts_key="inputs",
        options={"truncate": False},  # explicit: a server started with --auto-truncate cuts silently otherwise
        rows=lambda document: document,
    ),
    "ollama": Dialect(
        path="/api/embed",
        info_path="/api/version",
        texts_key="input",
        options={"truncate": False},
        rows=lambda document: document["embeddings"],
        tokens=lambda document: document["prompt_eval_count"],
    ),
}


def served_model(body: bytes, configured: str) -> ServedModel:
    """From TEI's `/info`. Raises MalformedResponse, and ConfigError for a different model than the configured one."""
    document = parse_json(body)
    model = document.get("model_id") if isinstance(document, dict) else None
    if not isinstance(model, str) or not model:
        raise MalformedResponse('no "model_id"')
    if configured not in ("", model):
        raise ConfigError(
            f"embedding.model is {configured}, but the server serves {model}.",
            remedy="Correct embedding.model or embedding.url, or leave embedding.model out.",
        )
    batch, tokens = document.get("max_client_batch_size"), document.get("max_input_length")
    return ServedModel(model, _positive(batch), _positive(tokens))
