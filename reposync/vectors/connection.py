"""Requests to Qdrant, to a server or to the embedded engine: connections, and errors in words for a person."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from http import HTTPStatus
from http.client import responses
from typing import TYPE_CHECKING, Any
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
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import RetryPolicy, Timeouts, client_options, parse_json
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
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
_FIRST_WAIT_SECONDS = 0.2
_MAX_MESSAGE_CHARS = 500


class AlreadyExists(VectorIndexError):
    """409: another process made it first."""


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
                content = httpx.ByteStream(await response.aread())
            except _ENGINE_GONE:
                if attempt == _ENGINE_ATTEMPTS:
                    raise
            else:
                return httpx.Response(response.status_code, headers=response.headers, stream=content)
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


def _transport(settings: IndexSettings) -> httpx.AsyncBaseTransport:
    if settings.url is None:
        return EmbeddedTransport(EmbeddedEngine(settings.state_dir))
    url = base_url(settings)
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"The address of Qdrant, {place(settings)}, is not an http or https URL.")
    options = client_options(url, settings.ca_file, limits=_LIMITS)
    mounts: dict[str, httpx.AsyncBaseTransport] = options.pop("mounts")
    return mounts.get(f"{urlsplit(url).scheme}://") or httpx.AsyncHTTPTransport(**options)


def base_url(settings: IndexSettings) -> str:
    """Without user, password and query; with Qdrant's port if the URL has none."""
    if settings.url is None:
        return "http://engine"
    parts = urlsplit(settings.url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host if parts.port else f'{host}:6333'}{parts.path}".rstrip("/")


def place(settings: IndexSettings) -> str:
    """Where the points are, for messages: without user, password and query."""
    if settings.url is None:
        return f"The embedded engine in {settings.state_dir}"
    parts = urlsplit(settings.url)
    port = f":{parts.port}" if parts.port else ""
    return f"Qdrant at {parts.scheme}://{parts.hostname}{port}{parts.path}"


def open_client(settings: IndexSettings, transport: httpx.AsyncBaseTransport | None = None) -> AsyncQdrantClient:
    """Qdrant's client. Its import takes a second and 55 MB."""
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


class _ClientTransport(httpx.AsyncBaseTransport):
    """Below Qdrant's client: the requests of a QdrantConnection."""

    def __init__(self, connection: QdrantConnection) -> None:
        self._connection = connection

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await self._connection.send(request.method, str(request.url), await request.aread())
        return httpx.Response(200, content=content, request=request)


class QdrantConnection:
    """One Qdrant. Repeats requests while it is unavailable; every request of `QdrantIndex` may be repeated.

    `long_lived`: for a daemon, by Qdrant's client; a short command does without its import. `transport` replaces the
    connection, which is opened at the first request. Raises ConfigError.
    """

    def __init__(
        self, settings: IndexSettings, *, long_lived: bool = False, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.where = place(settings)
        """The server or folder in messages; it holds no secret."""
        self._url = base_url(settings)
        self._is_embedded = settings.url is None
        longest = settings.longest_wait_seconds
        self._http = HttpClient(
            self._url,
            ErrorKinds(VectorIndexError, IndexUnavailable, IndexAnswerUnreadable),
            name=self.where,
            ca_setting="qdrant.ca_file",
            timeouts=Timeouts(settings.timeout_seconds, settings.timeout_seconds),
            policy=RetryPolicy(
                attempts=settings.attempts,
                first_delay_seconds=_FIRST_WAIT_SECONDS,
                max_delay_seconds=longest,
                longest_wait_seconds=longest,
                max_wait_seconds=settings.attempts * longest,
                within_seconds=START_SECONDS if self._is_embedded else None,
            ),
            headers=_HEADERS | ({"api-key": settings.api_key} if settings.url and settings.api_key else {}),
            transport=transport or _transport(settings),
        )
        self._client = open_client(settings, _ClientTransport(self)) if long_lived else None

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
        is_ready = body is None or isinstance(body, bytes)
        content = body if is_ready else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

        async def attempt() -> Any:
            check()
            try:
                answer = await self._exchange(method, path + ("?wait=true" if wait else ""), content)
            except HttpRefused as refused:
                raise _refusal(self.where, what, refused.status, refused.body) from refused
            except TransientFailure as failure:
                message = _message(failure.body)
                if "cannot be opened: " in message:  # by the embedded engine: further attempts meet the same files
                    raise VectorIndexError(f"{self.where}: could not {what}: {message}.") from failure
                if failure.reason.endswith(" 501"):
                    raise IndexUnsupported(f"{self.where}: could not {what}: {message}.") from failure
                failure.reason += f": {message}" if message else ""
                raise
            except (ValueError, RecursionError) as error:
                raise IndexAnswerUnreadable(
                    f"{self.where} sent an answer that is not Qdrant's: could not {what}.",
                    remedy="If this continues, check qdrant.url and the proxies in between.",
                ) from error
            if wait:
                _check_completed(answer)
            return answer

        remedy = "Its log, index/engine.log, may say why." if self._is_embedded else None
        policy = RetryPolicy(attempts=1, max_wait_seconds=0.0) if once else None
        doing = f"{self.where}: the request to {what}"
        return await self._http.retry(attempt, doing=doing, policy=policy, remedy=remedy)

    async def _exchange(self, method: str, path: str, content: bytes | None) -> Any:
        """The `result` of one answer. Raises what HttpClient.stream raises, and ValueError."""
        if self._client is None:
            answer = parse_json(await self.send(method, self._url + path, content))
        else:
            from qdrant_client.http.exceptions import ResponseHandlingException

            try:
                answer = await self._client.http.client.request(
                    type_=dict[str, Any], method=method, url=path, content=content
                )
            except ResponseHandlingException as error:
                raise error.source from error
        if not isinstance(answer, dict) or "result" not in answer:
            raise VectorIndexError(f"{self.where} answered without a result.")
        return answer["result"]

    async def send(self, method: str, url: str, content: bytes | None) -> bytes:
        async with self._http.stream(method, url, content=content, follow_redirects=False) as response:
            return await self._http.read(response, MAX_ANSWER_BYTES)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        await self._http.close()


def _check_completed(result: Any) -> None:
    for each in result if isinstance(result, list) else [result]:
        status = each.get("status") if isinstance(each, dict) else None
        if status != "completed":
            raise TransientFailure(f"its status is {status}")


def _refusal(where: str, what: str, status: int, body: bytes) -> VectorIndexError:
    message = _message(body)
    details = f"could not {what}: {message or responses.get(status, 'no reason given')} (HTTP {status})."
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        remedy = "Check QDRANT_API_KEY and its permissions."
        return VectorIndexError(f"{where} refuses the API key, {details}", remedy=remedy)
    if status == HTTPStatus.NOT_FOUND and "ollection" in message:
        return CollectionMissing(f"{where}: {details}", remedy="A sync makes the collection.")
    is_there = status == HTTPStatus.CONFLICT or "already exists" in message
    return (AlreadyExists if is_there else VectorIndexError)(f"{where}: {details}")


def _message(content: bytes) -> str:
    """Qdrant's own words, from `{"status": {"error": ...}}`; the answer of a proxy is cut short."""
    try:
        status = parse_json(content)["status"]
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(str(text).split())[:_MAX_MESSAGE_CHARS].rstrip(".")
