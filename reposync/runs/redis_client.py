"""The one Redis client of a process: every call is short, and every way to fail comes out as RedisUnavailable.

It serves whoever can do without Redis, so it gives up early: no retry inside the client (redis-py's own, ten times by
default, would repeat a command whose answer was lost and report on the repetition).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import RedisSSLContext, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from reposync.errors import ConfigError, RedisUnavailable
from reposync.runs.locks import LockObserver
from reposync.words import escape_unprintable

T = TypeVar("T")

CONNECT_SECONDS = 1.0
# A call may have to connect and to greet first, or to check an idle connection.
CALL_SECONDS = 1.5
CLOSE_SECONDS = 1.0
MAX_CONNECTIONS = 8
# A connection that was idle for longer is asked whether it is alive: firewalls forget them without a word.
HEALTH_CHECK_SECONDS = 30
LONGEST_REASON_CHARS = 200

_CODES = {
    "READONLY": "it is a read-only replica",
    "LOADING": "it is still loading its data",
    "OOM": "its memory is full",
    "NOAUTH": "it wants a password",
    "WRONGPASS": "it refuses the user name or the password",
    "NOPERM": "its user may not use these commands or keys",
    "MISCONF": "it refuses writes because it cannot save its data",
    "NOREPLICAS": "it refuses writes because too few replicas follow it",
    "MASTERDOWN": "it is a replica that has lost its master",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "it is one node of a cluster: name a single server or a proxy",
    "BUSY": "a script keeps it busy",
}
_CODE = re.compile(rf"\b({'|'.join(_CODES)})\b")


class RedisClient:
    """Built by `open`; connects when it is first used, and again whenever it must. Tells `observer` of changes."""

    def __init__(
        self,
        redis: Redis,
        where: str,
        observer: LockObserver,
        name_check: NameCheck | None = None,
        tls: RedisSSLContext | None = None,
    ) -> None:
        self._redis = redis
        self._where = where
        self._observer = observer
        self._name_check = name_check
        self._tls = tls
        self._works: bool | None = None
        self._reason = ""

    @classmethod
    def open(cls, url: str, *, observer: LockObserver) -> RedisClient:
        """For redis://, rediss:// and unix:// addresses. Raises ConfigError, without any part of the address."""
        options = _options(url)
        pool = BlockingConnectionPool(**options)
        try:
            # Made to find out whether the options go together; it is not connected.
            connection = pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, AttributeError, exceptions.RedisError):
            raise ConfigError("REDIS_URL has an option that Redis's client does not know or understand.") from None
        tls = None
        if isinstance(connection, SSLConnection):
            tls = pool.connection_kwargs["context"] = connection.ssl_context
            pool.connection_class = _TlsConnection
        path, host, port = options.get("path"), options.get("host", "localhost"), options.get("port", 6379)
        name_check = None if path or _is_address(host) else NameCheck(host, port)
        where = path or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return cls(Redis.from_pool(pool), where, observer, name_check, tls)

    async def call(self, command: Callable[[Redis], Awaitable[T]], within: float = CALL_SECONDS) -> T:
        """The answer to `command`. Raises RedisUnavailable, after `within` seconds at the latest."""
        try:
            async with asyncio.timeout(within):
                if not self._works:
                    await self._prepare()
                answer = await command(self._redis)
        except Exception as error:  # a server that talks rubbish makes the parser raise almost anything
            reason = f"Redis at {self._where} cannot be used: {_reason(error)}."
            self._note(works=False, reason=reason)
            raise RedisUnavailable(reason) from error
        self._note(works=True)
        return answer

    async def _prepare(self) -> None:
        """What connecting would do on the event loop, or in threads that others need."""
        if self._name_check is not None:
            await self._name_check.passes()
        if self._tls is not None:
            await asyncio.to_thread(self._tls.get)

    async def close(self) -> None:
        """Raises nothing."""
        with contextlib.suppress(exceptions.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._redis.aclose()

    def _note(self, *, works: bool, reason: str = "") -> None:
        """Changes are told, repetitions are not: every guard of this process comes by here every few seconds."""
        if (works, reason) == (self._works, self._reason):
            return
        self._works, self._reason = works, reason
        if works:
            self._observer.lock_available()
        else:
            self._observer.lock_unavailable(reason)


class _TlsConnection(SSLConnection):
    """All connections share one context. Each with its own would read the system's certificate authorities on the event
    loop: eight that were made anew at once, after a cut, stopped it for half a second."""

    def __init__(self, *, context: RedisSSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = context


class NameCheck:
    """Whether the server's name can be looked up, asked by one thread of its own at a time.

    asyncio looks names up in the pool that everything blocking shares, a handful of threads on a small machine. While
    a name server is away each look-up hangs for up to half a minute, and repeated ones would fill the pool.
    """

    def __init__(
        self,
        host: str,
        port: int,
        lookup: Callable[..., object] = socket.getaddrinfo,
        patience: float = CONNECT_SECONDS,
    ) -> None:
        self._host, self._port = host, port
        self._lookup = lookup
        self._patience = patience
        self._answer: asyncio.Future[OSError | None] | None = None

    async def passes(self) -> None:
        """Raises OSError, and TimeoutError as long as there is no answer."""
        if self._answer is None:
            loop = asyncio.get_running_loop()
            self._answer = loop.create_future()
            # A daemon thread: one that hangs must not keep the process from ending.
            threading.Thread(target=self._look, args=(loop, self._answer), daemon=True, name="redis name").start()
        answer = self._answer
        await asyncio.wait({answer}, timeout=self._patience)
        if not answer.done():
            raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
        self._answer = None
        if error := answer.result():
            raise error

    def _look(self, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[OSError | None]) -> None:
        try:
            self._lookup(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found: OSError | None = error if isinstance(error, OSError) else OSError(f"{self._host} is no host name")
        else:
            found = None
        with contextlib.suppress(RuntimeError):  # the program ended meanwhile
            loop.call_soon_threadsafe(answer.set_result, found)


def _options(url: str) -> dict[str, Any]:
    """What stands in the address, and above it what every call relies on."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(
            "REDIS_URL cannot be read as an address.",
            remedy="Write the characters / ? # @ of a user name or password as %2F %3F %23 %40.",
        )
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError:
        raise ConfigError("REDIS_URL cannot be read as an address of a Redis server.") from None
    return {
        "max_connections": MAX_CONNECTIONS,
        "health_check_interval": HEALTH_CHECK_SECONDS,
        "client_name": f"reposync:{os.getpid()}",
        **options,
        "timeout": CONNECT_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        # Each call as a whole has its limit. With one here the client sends through asyncio.wait_for, which before
        # Python 3.12 forgets a cancellation that comes as it ends: the watchdog of a sync that is over would go on.
        "socket_timeout": None,
        "retry": Retry(NoBackoff(), 0),
        # Understood by every server since 1.2, and without the extra greetings of version 3.
        "protocol": 2,
        "decode_responses": True,
        "encoding": "utf-8",
        # Others may have left bytes that are no text; they come back as they were.
        "encoding_errors": "surrogateescape",
    }


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _reason(error: BaseException) -> str:
    """What failed, in words that hold nothing of what was sent."""
    chain = _chain(error)
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({each.verify_message})"
        if isinstance(each, ssl.SSLError):
            return f"TLS fails ({(each.reason or 'no reason given').replace('_', ' ').lower()})"
        if isinstance(each, socket.gaierror):
            return f"its name cannot be looked up ({(each.strerror or 'no reason given').lower()})"
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return "it does not answer in time"
    if isinstance(error, exceptions.InvalidResponse):
        return "what answers there does not speak Redis's protocol"
    if (code := _code(error)) is not None:
        return _CODES[code]
    for each in chain:
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno).lower() if each.errno > 0 else "the network fails"
    if isinstance(error, exceptions.AuthenticationError):
        return _CODES["WRONGPASS"]
    if isinstance(error, exceptions.ResponseError):
        # Redis repeats the arguments of a command that it does not know, a password for example.
        told = str(error).partition(", with args beginning with")[0]
        if "unknown command" in told and "eval" in told.lower():
            return "it is a Sentinel, or somebody has taken EVAL away: name the Redis server itself"
        return f"it answers {escape_unprintable(told[:LONGEST_REASON_CHARS])!r}"
    if isinstance(error, exceptions.ConnectionError):
        return "the connection was closed"
    return f"what answers there does not speak Redis's protocol ({type(error).__name__})"


def _code(error: BaseException) -> str | None:
    """The client takes the code off the errors that it has a class for; a script's error has it in the middle."""
    told = getattr(error, "status_code", None)
    if told in _CODES:
        return str(told)
    found = _CODE.search(str(error)) if isinstance(error, exceptions.ResponseError) else None
    return found[1] if found else None


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found
