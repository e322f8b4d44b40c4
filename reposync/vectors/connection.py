"""Requests to Qdrant, to the nodes of a server or to the embedded engine: connections, retries, time-outs, and what
failures mean for a person."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from http.client import responses
from typing import TypeVar
from urllib.parse import urlsplit

import h11
import httpx

from reposync.errors import IndexAnswerUnreadable, IndexUnavailable, IndexUnsupported, VectorIndexError
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import RetryPolicy, Timeouts, parse_json, validate_transport
from reposync.vectors.embedded import START_SECONDS, EmbeddedEngine
from reposync.vectors.port import CollectionMissing, IndexSettings, PointMissing, no_check

T = TypeVar("T")

# The connection broke or nobody listened: the engine was killed, or it ended because it was idle.
_ENGINE_GONE = (OSError, h11.RemoteProtocolError)
_ENGINE_ATTEMPTS = 3
_ENGINE_CONNECTIONS = 32
_PIECE_BYTES = 1 << 18
MAX_ANSWER_BYTES = 256 * 1024 * 1024
# A server sends a compressed answer in pieces, without TCP_NODELAY, and the last one waits for the delayed
# acknowledgement of the others: every search took 48 ms instead of 3 ms (Qdrant 1.18.3 on loopback).
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
ATTEMPTS = 6
_FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 30.0
_LONGEST_CONNECT_SECONDS = 5.0  # a node that is switched off does not answer at all
_LONGEST_MARGIN_SECONDS = 5.0
OLDEST_VERSION, NEWEST_VERSION = (1, 16), (1, 19)
"""The range of supported Qdrant versions. Older servers drop the metadata of a collection; newer ones were not
tested."""

_MAX_MESSAGE_CHARS = 500
# An index that one node has made; another one of the cluster may not know it yet.
_INDEX_MISSING = re.compile("index required|no appropriate index", re.IGNORECASE)
_NO_SPACE = re.compile("no space left|available disk space", re.IGNORECASE)
_ACCESS = (
    "Check REPOSYNC_QDRANT_API_KEY and its permissions. Making a collection, its indexes and its alias needs a "
    "key with manage access. A token for single collections works once they exist, if it names the collection and its "
    "alias with access `rw`."
)


class EmbeddedTransport(httpx.AsyncBaseTransport):
    """Requests to the embedded engine, which is started if it does not run, and again if it died.

    The request is then sent again: all requests of `QdrantIndex` may be repeated. The connections are not those of
    httpx, whose import took 0.05 s of CPU of a command.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._idle: list[_EngineConnection] = []
        self._places = asyncio.Semaphore(_ENGINE_CONNECTIONS)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        async with self._places:
            for attempt in itertools.count(1):
                try:
                    connection = self._idle.pop() if self._idle else await self._connect()
                    response = await connection.exchange(request, content)
                except _ENGINE_GONE as error:
                    await self.aclose()  # the others are connections to the same engine
                    if attempt == _ENGINE_ATTEMPTS:
                        raise httpx.ReadError(str(error), request=request) from error
                else:
                    if connection.is_reusable:
                        self._idle.append(connection)
                    return response
        raise AssertionError("the last attempt returns or raises")

    async def _connect(self) -> _EngineConnection:
        return _EngineConnection(*await asyncio.open_unix_connection(await self._engine.address()))

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().close()


class _EngineConnection:
    """One request at a time; kept for the next one as long as it `is_reusable`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._state = h11.Connection(h11.CLIENT)

    @property
    def is_reusable(self) -> bool:
        return self._state.our_state is h11.IDLE

    async def exchange(self, request: httpx.Request, content: bytes) -> httpx.Response:
        """The response and its body. Raises what breaks the connection, which is then closed."""
        try:
            async with asyncio.timeout(request.extensions["timeout"]["read"]):
                head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
                self._writer.write(self._sent(head) + self._sent(h11.Data(content)) + self._sent(h11.EndOfMessage()))
                await self._writer.drain()
                answer, body = None, bytearray()
                while not isinstance(event := await self._next(), h11.EndOfMessage):
                    if isinstance(event, h11.Response):
                        answer = event
                    elif isinstance(event, h11.Data):
                        body += event.data
            if self._state.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                self._state.start_next_cycle()
            assert answer is not None  # noqa: S101 - for the type checker: h11 ends no message without it
            headers = list(answer.headers)
            return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(bytes(body)))
        except TimeoutError:
            raise httpx.ReadTimeout("no answer", request=request) from None
        finally:
            if not self.is_reusable:
                self._writer.close()

    def _sent(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> bytes:
        return self._state.send(event) or b""

    async def _next(self) -> object:
        while (event := self._state.next_event()) is h11.NEED_DATA:
            self._state.receive_data(await self._reader.read(_PIECE_BYTES))
        return event

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def addresses(settings: IndexSettings) -> list[str]:
    """One a node, with Qdrant's port if a URL has none."""
    if settings.qdrant.url is None:
        return ["http://engine"]
    nodes = map(urlsplit, settings.qdrant.url.split(","))
    return [each._replace(netloc=each.netloc if each.port else f"{each.netloc}:6333").geturl() for each in nodes]


class QdrantConnection:
    """One Qdrant, of one or several nodes. Repeats requests while it is unavailable, each time at the next node; every
    request of `QdrantIndex` may be repeated. `transport` replaces the connections, which are opened at the first
    request. Raises ConfigError.
    """

    def __init__(self, settings: IndexSettings, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._is_embedded = settings.is_embedded
        config = settings.qdrant
        key = {"api-key": config.api_key.get_secret_value()} if config.api_key and not settings.is_embedded else {}
        server = f"Qdrant at {', '.join(addresses(settings))}"
        self.where = f"The embedded engine in {settings.state_dir}" if self._is_embedded else server
        """In messages."""
        seconds = config.timeout_seconds
        self.server_seconds = max(1, int(seconds - min(_LONGEST_MARGIN_SECONDS, seconds / 5)))
        """The server gives up before the client does, and says so; otherwise nobody reads its answer."""
        if self._is_embedded:
            transport = transport or EmbeddedTransport(EmbeddedEngine(settings.state_dir))
        self._nodes = [
            HttpClient(
                url,
                ErrorKinds(VectorIndexError, IndexUnavailable, IndexAnswerUnreadable),
                name=self.where,
                ca_setting="qdrant.ca_file",
                timeouts=Timeouts(min(seconds, _LONGEST_CONNECT_SECONDS), seconds),
                policy=RetryPolicy(
                    attempts=ATTEMPTS,
                    first_delay_seconds=_FIRST_WAIT_SECONDS,
                    max_delay_seconds=LONGEST_WAIT_SECONDS,
                    longest_wait_seconds=LONGEST_WAIT_SECONDS,
                    max_wait_seconds=ATTEMPTS * LONGEST_WAIT_SECONDS,
                    within_seconds=START_SECONDS if self._is_embedded else None,
                ),
                headers=_HEADERS | key,
                ca_file=config.ca_file,
                transport=transport,
            )
            for url in addresses(settings)
        ]
        if transport is None:
            for node in self._nodes:
                validate_transport(node.url, config.ca_file)
        self._current = 0
        self._version: tuple[int, ...] = NEWEST_VERSION if self._is_embedded else ()

    async def repeat(
        self,
        what: str,
        request: Callable[[], Awaitable[T]],
        *,
        is_settled: Callable[[], Awaitable[bool]] | None = None,
        check: Callable[[], None] = no_check,
        once: bool = False,
    ) -> T | None:
        """The result of `request`, which sends one by `send`; again while Qdrant is unavailable, unless `once`.

        `what` is in messages: "could not {what}". `is_settled`: asked before a write of unknown outcome is sent again;
        if it is applied, the result is None. `check`: see WriteScope. Raises VectorIndexError and its subclasses.
        """
        is_unknown = False

        async def attempt() -> T | None:
            nonlocal is_unknown
            if is_unknown and is_settled is not None:
                if await is_settled():
                    return None
                is_unknown = False
            check()
            try:
                return await request()
            except HttpRefused as refused:
                raise _refusal_of(self.where, what, refused.status, refused.body) from refused
            except TransientFailure as failure:
                is_unknown |= failure.overloaded
                if (error := _final_error(self.where, what, failure)) is not None:
                    raise error from failure
                raise
            except (ValueError, RecursionError) as error:
                raise IndexAnswerUnreadable(
                    f"{self.where} sent an answer that is not Qdrant's: could not {what}.",
                    remedy="If this continues, check qdrant.url and the proxies in between.",
                ) from error

        remedy = "Its log, index/engine.log, may say why." if self._is_embedded else None
        policy = RetryPolicy(attempts=1, max_wait_seconds=0.0) if once else None
        doing = f"{self.where}: the request to {what}"
        return await self._nodes[0].retry(attempt, doing=doing, policy=policy, remedy=remedy)

    async def check_version(self, what: str = "reposync", oldest: tuple[int, int] = OLDEST_VERSION) -> None:
        """Raises IndexUnsupported if the server is older than `what` needs. One whose version cannot be read is
        accepted."""
        if self._version >= oldest:
            return
        version = await self.version()
        try:
            numbers = tuple(map(int, (version or "").split(".")[:2]))
        except ValueError:
            return  # of a proxy, perhaps; the next request says what is wrong
        if numbers < oldest:
            needed, newest = (".".join(map(str, each)) for each in (oldest, NEWEST_VERSION))
            raise IndexUnsupported(
                f"{self.where} is version {version}, and {what} needs {needed} or later.",
                remedy=f"Upgrade it: {needed} to {newest} are supported.",
            )
        self._version = numbers

    async def version(self) -> str | None:
        """As the server says it; None if that cannot be read."""
        try:
            return str(parse_json(await self.send("GET", "/", None))["version"])
        except (HttpRefused, TransientFailure, ValueError, TypeError, KeyError):
            return None

    async def send(self, method: str, path: str, content: bytes | None) -> bytes:
        """To the node that answered last; after a failure, the next request goes to the next one."""
        number = self._current
        node = self._nodes[number]
        try:
            async with node.stream(method, node.url + path, content=content, follow_redirects=False) as response:
                return await node.read(response, MAX_ANSWER_BYTES)
        except TransientFailure as failure:
            if self._current == number and not failure.rate_limited:
                self._current = (number + 1) % len(self._nodes)
            raise

    async def close(self) -> None:
        for node in self._nodes:
            await node.close()


# Answers -------------------------------------------------------------------------------------------------------------


class AlreadyExists(VectorIndexError):
    """409: another process made it first."""


def require_applied(statuses: Iterable[object]) -> None:
    """Raises TransientFailure unless a write is applied. `wait_timeout` and `acknowledged`: it is queued, and will
    be."""
    if any(status != "completed" for status in statuses):
        raise TransientFailure("it was not applied in time", overloaded=True)


def _refusal_of(where: str, what: str, status: int, body: bytes) -> Exception:
    """The error for a status that a retry does not change, or a TransientFailure for one that it may change."""
    message = _message_of(body)
    details = f"could not {what}: {message or responses.get(status, 'no reason given')} (HTTP {status})."
    if status == HTTPStatus.BAD_REQUEST and _INDEX_MISSING.search(message):
        return TransientFailure(message)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return VectorIndexError(f"{where} refuses the API key, {details}", remedy=_ACCESS)
    if status == HTTPStatus.NOT_FOUND and "ollection" in message:
        return CollectionMissing(f"{where}: {details}", remedy="A sync makes the collection.")
    if status == HTTPStatus.NOT_FOUND and "No point with id" in message:
        return PointMissing(f"{where}: {details}")
    if status == HTTPStatus.CONFLICT or "already exists" in message:
        return AlreadyExists(f"{where}: {details}")
    limit = "A limit of the collection's strict mode: change its strict_mode_config, or switch it off."
    return VectorIndexError(f"{where}: {details}", remedy=limit if ". Help: " in message else None)


def _final_error(where: str, what: str, failure: TransientFailure) -> VectorIndexError | None:
    """The error for a failure that will not pass by itself. Another one gets Qdrant's own words."""
    message = _message_of(failure.body)
    if "cannot be opened: " in message:  # by the embedded engine: further attempts meet the same files
        return VectorIndexError(f"{where}: could not {what}: {message}.")
    if failure.status == HTTPStatus.NOT_IMPLEMENTED:
        return IndexUnsupported(f"{where}: could not {what}: {message}.")
    if failure.status == HTTPStatus.INSUFFICIENT_STORAGE or _NO_SPACE.search(message):
        return VectorIndexError(
            f"{where} has no space left, could not {what}: {message or 'insufficient storage'}.",
            remedy="Give it more disk or memory, or remove collections that nobody needs; then sync again.",
        )
    failure.reason += f": {message}" if message else ""
    return None


def _message_of(content: bytes) -> str:
    """Qdrant's own words, from `{"status": {"error": ...}}`; the answer of a proxy is cut short."""
    try:
        status = parse_json(content)["status"]
        text = status["error"] if isinstance(status, dict) else str(status)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(str(text).split())[:_MAX_MESSAGE_CHARS].rstrip(".")
