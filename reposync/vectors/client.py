"""Qdrant's own client, for a server or for the embedded engine."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from qdrant_client import AsyncQdrantClient

from reposync.errors import ConfigError, VectorIndexError
from reposync.outgoing import Pace, TooLarge, client_options, pieces
from reposync.vectors.embedded import EmbeddedEngine
from reposync.vectors.settings import IndexSettings

# A stock client keeps no connection to localhost; a new one for each request costs more than the request.
_LIMITS = httpx.Limits(max_connections=32, max_keepalive_connections=16, keepalive_expiry=60)
# The connection broke, or nobody listened: the engine was killed, or ended because nobody had used it for a while.
_GONE = (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
_ENGINE_ATTEMPTS = 3
MAX_ANSWER_BYTES = 256 * 1024 * 1024
# An answer has come in whole after so many time-outs.
_ANSWER_FACTOR = 4
_OF_THE_WAY = ("content-encoding", "content-length", "transfer-encoding")


class EmbeddedTransport(httpx.AsyncBaseTransport):
    """Requests to the embedded engine, which is started where it does not run, and again where it died.

    A request is then sent once more: all of ours may be repeated.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._address = ""
        self._pool: httpx.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(_ENGINE_ATTEMPTS):
            if self._pool is None or attempt:
                await self._find_engine()
            try:
                response = await self._connections.handle_async_request(request)
                # Read here: a connection that breaks in the middle of an answer has to be noticed here too.
                await response.aread()
            except _GONE:
                if attempt == _ENGINE_ATTEMPTS - 1:
                    raise
            else:
                return response
        raise AssertionError("the last attempt returns or raises")

    @property
    def _connections(self) -> httpx.AsyncHTTPTransport:
        assert self._pool is not None  # noqa: S101 - for the type checker
        return self._pool

    async def _find_engine(self) -> None:
        """Its socket is at the same place as a rule; the pool itself drops connections that are dead."""
        address = await self._engine.address_async()
        if address != self._address:
            abandoned, self._address = self._pool, address
            self._pool = httpx.AsyncHTTPTransport(uds=address, limits=_LIMITS, verify=False)
            if abandoned is not None:
                await abandoned.aclose()

    async def aclose(self) -> None:
        if self._pool is not None:
            await self._pool.aclose()


class BoundedTransport(httpx.AsyncBaseTransport):
    """Whole answers, within bounds of time and size: Qdrant's client reads whatever comes for as long as it comes."""

    def __init__(self, way: httpx.AsyncBaseTransport, settings: IndexSettings) -> None:
        self._way = way
        self._seconds = settings.timeout_seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["Accept-Encoding"] = "gzip"
        body = bytearray()
        try:
            async with asyncio.timeout(_ANSWER_FACTOR * self._seconds):
                response = await self._way.handle_async_request(request)
                response.request = request
                try:
                    pace = Pace(self._seconds, _ANSWER_FACTOR * self._seconds)
                    async for piece in pieces(response, pace, MAX_ANSWER_BYTES):
                        body += piece
                finally:
                    await response.aclose()
        except TimeoutError as error:  # our own, and an answer that is too slow
            raise httpx.ReadTimeout("the answer did not come in time", request=request) from error
        except TooLarge as error:
            raise VectorIndexError(f"Qdrant's answer is larger than what is taken: {error}.") from error
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_THE_WAY]
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    async def aclose(self) -> None:
        await self._way.aclose()


def _way_to(url: str, ca_file: Path | None) -> httpx.AsyncBaseTransport:
    options = client_options(url, ca_file, limits=_LIMITS)
    mounts: dict[str, httpx.AsyncBaseTransport] = options.pop("mounts")
    return mounts.get(f"{urlsplit(url).scheme}://") or httpx.AsyncHTTPTransport(**options)


def open_client(settings: IndexSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> AsyncQdrantClient:
    """Opens no connection yet. `transport` takes the place of the one to the server. Raises ConfigError."""
    if settings.url is None:
        embedded = transport or EmbeddedTransport(EmbeddedEngine(settings.state_dir))
        return AsyncQdrantClient(
            url="http://engine",
            port=None,
            timeout=_whole_seconds(settings),
            check_compatibility=False,
            transport=embedded,
            trust_env=False,
        )
    with warnings.catch_warnings():
        # An API key over plain http: said by `config check`, in our words.
        warnings.filterwarnings("ignore", message="Api key is used with an insecure connection")
        try:
            return AsyncQdrantClient(
                url=settings.url,
                api_key=settings.api_key,
                timeout=_whole_seconds(settings),
                check_compatibility=False,
                transport=transport or BoundedTransport(_way_to(settings.url, settings.ca_file), settings),
                trust_env=False,
            )
        except ValueError as error:
            raise ConfigError(f"The address of Qdrant, {place(settings)}, is no http or https URL.") from error


def place(settings: IndexSettings) -> str:
    """Where the points are, for messages: no user, password, query."""
    if settings.url is None:
        return f"The embedded engine in {settings.state_dir}"
    parts = urlsplit(settings.url)
    port = f":{parts.port}" if parts.port else ""
    return f"Qdrant at {parts.scheme}://{parts.hostname}{port}{parts.path}"


def _whole_seconds(settings: IndexSettings) -> int:
    return max(1, round(settings.timeout_seconds))
