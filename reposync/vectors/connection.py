"""Requests to Qdrant, to a server or to the embedded engine: connections, retries, and errors in words for a person."""

from __future__ import annotations

import asyncio
import itertools
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import responses
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import httpx
import orjson

from reposync.errors import (
    ConfigError,
    IndexAnswerUnreadable,
    IndexUnavailable,
    IndexUnsupported,
    VectorIndexError,
)
from reposync.http_client import retry_after_seconds
from reposync.outgoing import MinimumRate, TooLarge, certificate_reason, client_options, iter_decoded, parse_json
from reposync.vectors.embedded import START_SECONDS, EmbeddedEngine
from reposync.vectors.port import CollectionMissing, IndexSettings, no_check

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

# httpx keeps idle connections for 5 s; a new one for each request costs more than the request.
_LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=60)
# The connection broke or nobody listened: the engine was killed, or it ended because it was idle.
_ENGINE_GONE = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
_ENGINE_ATTEMPTS = 3
MAX_ANSWER_BYTES = 256 * 1024 * 1024
# An answer must be complete after so many time-outs.
_ANSWER_FACTOR = 4
_HOP_HEADERS = ("content-encoding", "content-length", "transfer-encoding")
_JSON = {"content-type": "application/json"}
_FIRST_WAIT_SECONDS = 0.2
_MAX_MESSAGE_CHARS = 500
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


class AlreadyExists(VectorIndexError):
    """409: another process made it first."""


@dataclass
class Refused(Exception):
    """An answer with a status of 300 and above."""

    status: int
    content: bytes
    retry_after_seconds: float | None


class Sender(Protocol):
    """Sends one request. Raises Refused, httpx.HTTPError, and ValueError for an answer that is not JSON."""

    async def request(self, method: str, path: str, content: bytes | None) -> dict[str, Any]: ...

    async def close(self) -> None: ...


class HttpxSender:
    """Sends requests without Qdrant's client, whose import takes a second and 55 MB: for short commands."""

    def __init__(self, settings: IndexSettings, transport: httpx.AsyncBaseTransport) -> None:
        self._client = httpx.AsyncClient(
            base_url=base_url(settings),
            headers={"api-key": settings.api_key} if settings.url and settings.api_key else {},
            timeout=settings.timeout_seconds,
            transport=transport,
            trust_env=False,
        )

    async def request(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        response = await self._client.request(method, path, content=content, headers=_JSON if content else {})
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise _refused(response.status_code, response.content, response.headers.get("Retry-After"))
        answer = parse_json(response.content)
        if not isinstance(answer, dict):
            raise httpx.DecodingError("the answer is not a JSON object")
        return answer

    async def close(self) -> None:
        await self._client.aclose()


class ClientSender:
    """Sends requests by Qdrant's client, past its models: for long-lived processes."""

    def __init__(self, client: AsyncQdrantClient) -> None:
        self._client = client

    async def request(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            answer: dict[str, Any] = await self._client.http.client.request(
                type_=dict[str, Any], method=method, url=path, content=content, headers=_JSON if content else {}
            )
        except ResponseHandlingException as error:
            raise error.source from error
        except UnexpectedResponse as error:
            raise _refused(error.status_code or 0, error.content, None) from error
        except QdrantException as error:  # 429 with a Retry-After in seconds, or one that the client cannot read
            seconds = str(getattr(error, "retry_after_s", ""))
            raise _refused(HTTPStatus.TOO_MANY_REQUESTS, str(error).encode(), seconds) from error
        return answer

    async def close(self) -> None:
        await self._client.close()


def _refused(status: int, content: bytes, retry_after: str | None) -> Refused:
    return Refused(status, content, retry_after_seconds(retry_after))


class EmbeddedTransport(httpx.AsyncBaseTransport):
    """Requests to the embedded engine, which is started if it does not run, and again if it died.

    The request is then sent again: all requests of `QdrantIndex` may be repeated.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._address = ""
        self._pool: httpx.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for attempt in itertools.count(1):
            pool = self._pool if self._pool is not None and attempt == 1 else await self._connect()
            try:
                response = await pool.handle_async_request(request)
                # Read here: a connection that breaks during an answer must be noticed here too.
                await response.aread()
            except _ENGINE_GONE:
                if attempt == _ENGINE_ATTEMPTS:
                    raise
            else:
                return response
        raise AssertionError("the last attempt returns or raises")

    async def _connect(self) -> httpx.AsyncHTTPTransport:
        """A restarted engine usually has the same socket; the pool itself drops dead connections."""
        address = await self._engine.address()
        if self._pool is None or address != self._address:
            abandoned, self._address = self._pool, address
            self._pool = httpx.AsyncHTTPTransport(uds=address, limits=_LIMITS, verify=False)
            if abandoned is not None:
                await abandoned.aclose()
        return self._pool

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()


class BoundedTransport(httpx.AsyncBaseTransport):
    """Reads whole answers, within bounds of time and size; httpx alone bounds only the pauses between bytes."""

    def __init__(self, inner: httpx.AsyncBaseTransport, timeout_seconds: float) -> None:
        self._inner = inner
        self._seconds = timeout_seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Accept-Encoding"] = "gzip"
        body = bytearray()
        try:
            async with asyncio.timeout(_ANSWER_FACTOR * self._seconds):
                response = await self._inner.handle_async_request(request)
                response.request = request
                try:
                    rate = MinimumRate(self._seconds, _ANSWER_FACTOR * self._seconds)
                    async for piece in iter_decoded(response, rate, MAX_ANSWER_BYTES):
                        body += piece
                finally:
                    await response.aclose()
        except TimeoutError as error:  # the one above, and an answer that is too slow
            raise httpx.ReadTimeout("the answer did not come in time", request=request) from error
        except TooLarge as error:
            raise VectorIndexError(f"Qdrant's answer is larger than the limit: {error}.") from error
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _HOP_HEADERS]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def open_sender(
    settings: IndexSettings, *, long_lived: bool = False, transport: httpx.AsyncBaseTransport | None = None
) -> Sender:
    """Opens no connection yet. `transport` replaces the connection. Raises ConfigError."""
    transport = transport or _transport(settings)
    return ClientSender(open_client(settings, transport)) if long_lived else HttpxSender(settings, transport)


def open_client(settings: IndexSettings, transport: httpx.AsyncBaseTransport | None = None) -> AsyncQdrantClient:
    from qdrant_client import AsyncQdrantClient

    with warnings.catch_warnings():
        # An API key over plain http: `config check` reports it.
        warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
        return AsyncQdrantClient(
            url=base_url(settings),
            port=None,
            api_key=settings.api_key if settings.url else None,
            timeout=max(1, round(settings.timeout_seconds)),
            check_compatibility=False,
            transport=transport or _transport(settings),
            trust_env=False,
        )


def _transport(settings: IndexSettings) -> httpx.AsyncBaseTransport:
    if settings.url is None:
        return EmbeddedTransport(EmbeddedEngine(settings.state_dir))
    url = base_url(settings)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"The address of Qdrant, {place(settings)}, is not an http or https URL.")
    options = client_options(url, settings.ca_file, limits=_LIMITS)
    mounts: dict[str, httpx.AsyncBaseTransport] = options.pop("mounts")
    inner = mounts.get(f"{urlsplit(url).scheme}://") or httpx.AsyncHTTPTransport(**options)
    return BoundedTransport(inner, settings.timeout_seconds)


def base_url(settings: IndexSettings) -> str:
    """Without user, password and query; with Qdrant's port if the URL has none."""
    if settings.url is None:
        return "http://engine"
    parts = urlsplit(settings.url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host if parts.port else f'{host}:6333'}{parts.path}"


def place(settings: IndexSettings) -> str:
    """Where the points are, for messages: without user, password and query."""
    if settings.url is None:
        return f"The embedded engine in {settings.state_dir}"
    parts = urlsplit(settings.url)
    port = f":{parts.port}" if parts.port else ""
    return f"Qdrant at {parts.scheme}://{parts.hostname}{port}{parts.path}"


class QdrantConnection:
    """One Qdrant. Retries requests while it is unavailable; every request of `QdrantIndex` may be repeated.

    `where` names the server or folder in messages; it holds no secret.
    """

    def __init__(self, settings: IndexSettings, sender: Sender) -> None:
        self.where = place(settings)
        self._sender = sender
        self._attempts = settings.attempts
        self._longest_wait_seconds = settings.longest_wait_seconds
        self._within_seconds = START_SECONDS if settings.url is None else None

    async def request(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: bool = False,
        check: Callable[[], None] = no_check,
        once: bool = False,
    ) -> Any:
        """The `result` of the answer. Requested again while Qdrant is unavailable, unless `once`.

        `what` is in messages: "could not {what}". `body`: JSON, or what becomes JSON. `wait`: until a write is done.
        `check`: see WriteScope. Raises VectorIndexError and its subclasses.
        """
        content = body if body is None or isinstance(body, bytes) else orjson.dumps(body, option=_OPTIONS)
        try:
            async with asyncio.timeout(self._within_seconds) as bound:
                for number in itertools.count(1):
                    check()
                    try:
                        return await self._attempt(what, method, path, content, wait=wait)
                    except IndexUnavailable as error:
                        requested = error.retry_after_seconds
                        if once or number >= self._attempts or (requested or 0.0) > self._longest_wait_seconds:
                            raise
                        await asyncio.sleep(wait_seconds(number, requested, self._longest_wait_seconds))
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise IndexUnavailable(
                f"{self.where} did not answer within {self._within_seconds:.0f} s: could not {what}.",
                remedy="Its log, index/engine.log, may say why.",
            ) from error

    async def _attempt(self, what: str, method: str, path: str, content: bytes | None, *, wait: bool) -> Any:
        try:
            answer = await self._sender.request(method, path + ("?wait=true" if wait else ""), content)
        except Refused as error:
            raise _refusal(self.where, what, error) from error
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise _failure(self.where, what, error) from error
        if "result" not in answer:
            raise VectorIndexError(f"{self.where} answered without a result.")
        result = answer["result"]
        for each in (result if isinstance(result, list) else [result]) if wait else ():
            status = each.get("status") if isinstance(each, dict) else None
            if status != "completed":
                raise IndexUnavailable(f"{self.where}: could not {what}: its status is {status}.")
        return result

    async def close(self) -> None:
        await self._sender.close()


def wait_seconds(attempt: int, requested_seconds: float | None, longest_seconds: float) -> float:
    """What the server requests and a little more, else doubling with jitter; capped either way."""
    if requested_seconds is not None:
        wait = min(requested_seconds, longest_seconds)
        return wait + random.uniform(0, 0.1 + wait / 10)  # noqa: S311 - spreads load
    ceiling = min(longest_seconds, _FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1))
    return random.uniform(ceiling / 2, ceiling)  # noqa: S311 - spreads load


def _failure(where: str, what: str, error: Exception) -> VectorIndexError:
    """No answer of Qdrant came, or not a complete one."""
    if isinstance(error, httpx.TimeoutException):
        return IndexUnavailable(f"{where} did not answer in time: could not {what}.")
    if isinstance(error, httpx.TransportError) and (reason := certificate_reason(error)):
        return VectorIndexError(
            f"The certificate of {where} is not trusted: {reason}.",
            remedy="If you have your own certificate authority, set qdrant.ca_file to its certificate.",
        )
    if isinstance(error, httpx.TransportError):
        return IndexUnavailable(f"{where} cannot be reached: could not {what} ({error or type(error).__name__}).")
    return IndexAnswerUnreadable(
        f"{where} sent an answer that is not Qdrant's: could not {what}.",
        remedy="If this continues, check qdrant.url and the proxies in between.",
    )


def _refusal(where: str, what: str, refused: Refused) -> VectorIndexError:
    status, message = refused.status, _message(refused.content)
    details = f"could not {what}: {message or responses.get(status, 'no reason given')} (HTTP {status})."
    match status:
        case 401 | 403:
            remedy = "Check QDRANT_API_KEY and its permissions."
            return VectorIndexError(f"{where} refuses the API key, {details}", remedy=remedy)
        case 404 if "ollection" in message:
            return CollectionMissing(f"{where}: {details}", remedy="A sync makes the collection.")
        case 429:
            wait = refused.retry_after_seconds
            return IndexUnavailable(f"{where} is overloaded: could not {what}.", retry_after_seconds=wait)
        case 501:
            return IndexUnsupported(f"{where}: {details}")
    if status == HTTPStatus.CONFLICT or "already exists" in message:
        return AlreadyExists(f"{where}: {details}")
    # The embedded engine cannot open a collection: further attempts meet the same files.
    is_final = (status < 500 and status != HTTPStatus.REQUEST_TIMEOUT) or "cannot be opened: " in message
    return (VectorIndexError if is_final else IndexUnavailable)(f"{where}: {details}")


def _message(content: bytes) -> str:
    """Qdrant's own words, from `{"status": {"error": ...}}`; the answer of a proxy is cut short."""
    try:
        status = parse_json(content)["status"]
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(str(text).split())[:_MAX_MESSAGE_CHARS].rstrip(".")
