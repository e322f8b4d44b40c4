"""The dialects of embedding servers: OpenAI-compatible, Hugging Face TEI and Ollama."""

from __future__ import annotations

import binascii
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from reposync.embedding.settings import EmbedderConfig
from reposync.errors import ConfigError

Get = Callable[[str], Awaitable[bytes]]
"""The body of a GET of an absolute address, with the client's limits, retries and errors."""


class MalformedResponse(ValueError):
    """An answer of the wrong shape. The message completes "the server answered ..."."""


class NoJson(MalformedResponse):
    """An answer that is not JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`vectors`: float32, shape (inputs, dimension). `tokens`: the token count that the server reports, if it does."""

    vectors: NDArray[np.float32]
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server reports about its model; None: not reported."""

    model: str
    batch: int | None = None
    input_tokens: int | None = None


class Dialect(ABC):
    """What differs between embedding servers: paths, requests and answers."""

    provider: ClassVar[str]
    path: ClassVar[str]
    info_path: ClassVar[str]
    """A small resource, free of charge, that a working server answers to a GET."""
    default_prefix: ClassVar[str] = ""
    serves_one_model: ClassVar[bool] = False

    def __init__(self, config: EmbedderConfig) -> None:
        """Raises ConfigError if embedding.url or embedding.model is missing or unusable."""
        if not config.url:
            raise ConfigError(
                f"embedding.url is missing: the provider {self.provider} is a server.",
                remedy="Set embedding.url to its address.",
            )
        if not config.model and not self.serves_one_model:
            raise ConfigError(
                f"embedding.model is missing: the provider {self.provider} serves several.",
                remedy="Set embedding.model to a name that the server knows.",
            )
        self._model = config.model or ""
        self.endpoint = endpoint(config.url, self.path, default_prefix=self.default_prefix)
        parts = urlsplit(self.endpoint)
        self.info_url = urlunsplit(parts._replace(path=parts.path.removesuffix(self.path) + self.info_path))

    async def describe(self, get: Get) -> ServedModel:
        """The served model. Raises ConfigError, MalformedResponse."""
        return ServedModel(self._model)

    @abstractmethod
    def request(self, texts: Sequence[str]) -> bytes:
        """The JSON body of a request for the vectors of `texts`; forbids truncation if the dialect can."""

    @abstractmethod
    def answer(self, body: bytes) -> Answer:
        """The vectors of a 200 answer, in the order of the inputs. Raises MalformedResponse."""

    def relax_request(self, complaint: str) -> None:
        """Leave an optional field out of further requests if `complaint` is about it."""
        return None


def endpoint(url: str, path: str, *, default_prefix: str = "") -> str:
    """The address for POST: `url` unchanged if it already ends with `path`, else `path` below it.

    `default_prefix` goes between them if `url` is a bare host. Raises ConfigError if it is no http(s) address.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            "embedding.url is not an http:// or https:// address.", remedy="Give it as https://host:port, for example."
        )
    base = parts.path.rstrip("/")
    if not base.endswith(path):
        base = (base or default_prefix) + path
    return urlunsplit((parts.scheme, parts.netloc, base, parts.query, ""))


def parse_json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoJson("something that is not JSON (NaN and Infinity are not, either)") from error


def float_rows(rows: object) -> NDArray[np.float32]:
    """A JSON list of lists of numbers as one matrix. Raises MalformedResponse."""
    if not isinstance(rows, list):
        raise MalformedResponse("no list of vectors")
    if not rows:
        return np.empty((0, 0), np.float32)
    if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise MalformedResponse("vectors of different lengths")
    try:
        with np.errstate(over="ignore"):  # infinity is caught with NaN, by the client
            return np.array(rows, np.float32).reshape(len(rows), -1)
    except (TypeError, ValueError) as error:
        raise MalformedResponse("vectors that are not lists of numbers") from error


class OpenAIDialect(Dialect):
    """The OpenAI-compatible dialect: `POST /v1/embeddings` (OpenAI, vLLM, llama.cpp, LM Studio, ...)."""

    provider = "openai"
    path = "/embeddings"
    info_path = "/models"
    default_prefix = "/v1"

    def __init__(self, config: EmbedderConfig) -> None:
        super().__init__(config)
        # base64 is a quarter of the bytes of decimal figures and a tenth of the time to read them
        self._options: dict[str, Any] = {"encoding_format": "base64"}
        if config.dimensions is not None:
            self._options["dimensions"] = config.dimensions

    def request(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"model": self._model, "input": list(texts), **self._options})

    def answer(self, body: bytes) -> Answer:
        document = parse_json(body)
        items = document.get("data") if isinstance(document, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) and "embedding" in item for item in items):
            raise MalformedResponse('no list "data" of objects with an "embedding"')
        if [item.get("index", position) for position, item in enumerate(items)] != list(range(len(items))):
            items = _in_order(items)
        vectors = [item["embedding"] for item in items]
        if vectors and all(isinstance(vector, str) for vector in vectors):
            return Answer(_base64_rows(vectors), _tokens(document))
        return Answer(float_rows(vectors), _tokens(document))

    def relax_request(self, complaint: str) -> None:
        """Some servers reject `encoding_format`: they then send plain numbers."""
        if "encoding_format" in complaint:
            self._options.pop("encoding_format", None)


def _in_order(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_index = {item.get("index"): item for item in items}
    if set(by_index) != set(range(len(items))):
        raise MalformedResponse('an "index" twice, or one that no input has')
    return [by_index[position] for position in range(len(items))]


def _base64_rows(vectors: list[str]) -> NDArray[np.float32]:
    """Little-endian float32, as OpenAI documents it."""
    if len({len(vector) for vector in vectors}) > 1:
        raise MalformedResponse("vectors of different lengths")
    try:
        packed = b"".join(binascii.a2b_base64(vector) for vector in vectors)
        return np.frombuffer(packed, "<f4").reshape(len(vectors), -1)
    except ValueError as error:
        raise MalformedResponse("vectors that are not base64 of 32-bit floats") from error


def _tokens(document: object) -> int | None:
    usage = document.get("usage") if isinstance(document, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


class TeiDialect(Dialect):
    """Hugging Face's Text Embeddings Inference: `POST /embed`, and `GET /info` for its model."""

    provider = "tei"
    path = "/embed"
    info_path = "/info"  # not /health, which makes the model embed something
    serves_one_model = True

    async def describe(self, get: Get) -> ServedModel:
        """The server reports its one model: a configured name that differs is a mistake in the configuration."""
        document = parse_json(await get(self.info_url))
        model = document.get("model_id") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(model, str) or not model:
            raise MalformedResponse('no "model_id"')
        if self._model not in ("", model):
            raise ConfigError(
                f"embedding.model is {self._model}, but the server serves {model}.",
                remedy="Correct embedding.model or embedding.url, or leave embedding.model out.",
            )
        return ServedModel(model, _count(document, "max_client_batch_size"), _count(document, "max_input_length"))

    def request(self, texts: Sequence[str]) -> bytes:
        # Explicit: a server started with --auto-truncate cuts silently otherwise.
        return orjson.dumps({"inputs": list(texts), "truncate": False})

    def answer(self, body: bytes) -> Answer:
        return Answer(float_rows(parse_json(body)))


def _count(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) and value > 0 else None


class OllamaDialect(Dialect):
    """Ollama: `POST /api/embed`."""

    provider = "ollama"
    path = "/api/embed"
    info_path = "/api/version"

    def request(self, texts: Sequence[str]) -> bytes:
        return orjson.dumps({"model": self._model, "input": list(texts), "truncate": False})

    def answer(self, body: bytes) -> Answer:
        document = parse_json(body)
        if not isinstance(document, dict) or "embeddings" not in document:
            raise MalformedResponse('no "embeddings"')
        tokens = document.get("prompt_eval_count")
        return Answer(float_rows(document["embeddings"]), tokens if isinstance(tokens, int) and tokens > 0 else None)


DIALECTS: dict[str, type[Dialect]] = {each.provider: each for each in (OpenAIDialect, TeiDialect, OllamaDialect)}
