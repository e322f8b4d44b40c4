"""What differs between embedding servers: the address, the shape of a request, the shape of an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from reposync.errors import ConfigError

Get = Callable[[str], Awaitable[bytes]]
"""The body of a GET of an absolute address, with the client's limits, retries and errors."""


class Nonsense(ValueError):
    """An answer that does not have the shape it should. The message completes "the server answered ..."."""


class NoJson(Nonsense):
    """An answer that is no JSON."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`vectors`: float32, shape (inputs, dimension). `tokens`: how many tokens the server says it read, if it does."""

    vectors: NDArray[np.float32]
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of itself before it is sent any text. None: it does not say."""

    model: str
    batch: int | None = None
    input_tokens: int | None = None


class Dialect(Protocol):
    @property
    def provider(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

    @property
    def about(self) -> str:
        """Address of something small that a server which works answers to a GET, for nothing."""
        ...

    async def describe(self, get: Get) -> ServedModel: ...

    def request(self, texts: Sequence[str]) -> bytes:
        """The JSON body that asks for the vectors of `texts`, and forbids truncation where the dialect can."""
        ...

    def answer(self, body: bytes) -> Answer:
        """The vectors of a 200 answer, in the order of the inputs. Raises Nonsense."""
        ...

    def concede(self, complaint: str) -> None:
        """Put further requests in another way where `complaint` is about what this server can do without."""
        ...


def endpoint(url: str, path: str, *, default_prefix: str = "") -> str:
    """Where to post: `url` as it is if it already ends with `path`, else `path` below it.

    `default_prefix` goes between them where `url` names a bare host. Raises ConfigError for what is no http(s) address.
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


def beside(address: str, path: str, other: str) -> str:
    """`address`, which `endpoint` made with `path`, with `other` in its place."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(path=parts.path.removesuffix(path) + other))


def required_model(provider: str, model: str | None) -> str:
    if not model:
        raise ConfigError(
            f"embedding.model is missing: the provider {provider} needs to know which model to ask for.",
            remedy="Set embedding.model to a name that the server knows.",
        )
    return model


def required_url(provider: str, url: str | None) -> str:
    if not url:
        raise ConfigError(
            f"embedding.url is missing: the provider {provider} is a server.",
            remedy="Set embedding.url to its address.",
        )
    return url


def parse_json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NoJson("something that is not JSON (NaN and Infinity are not, either)") from error


def float_rows(rows: object) -> NDArray[np.float32]:
    """A JSON list of lists of numbers as one matrix. Raises Nonsense."""
    if not isinstance(rows, list):
        raise Nonsense("no list of vectors")
    if not rows:
        return np.empty((0, 0), np.float32)
    if not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise Nonsense("vectors of different lengths")
    try:
        with np.errstate(over="ignore"):  # infinity is caught with NaN, by the client
            return np.array(rows, np.float32).reshape(len(rows), -1)
    except (TypeError, ValueError) as error:
        raise Nonsense("vectors that are not lists of numbers") from error
