"""The one Redis client of a process: every call is short, and every failure is a RedisUnavailable.

It gives up early and does not retry inside the client: redis-py's own retry would repeat a command whose answer was
lost, and report on the repetition.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from reposync.errors import ConfigError, RedisUnavailable
from reposync.runs.observer import Observer
from reposync.words import escape_unprintable

T = TypeVar("T")

CONNECT_SECONDS = 1.0
# A call may include connecting, or checking an idle connection.
CALL_SECONDS = 1.5
CLOSE_SECONDS = 1.0
MAX_CONNECTIONS = 4
# An idle connection is checked before use: firewalls drop them silently.
HEALTH_CHECK_SECONDS = 30
_LONGEST_REASON_CHARS = 200
# Redis says nothing useful about these, or the client library hides what it says.
_CODES = {
    "NOAUTH": "it requires a password",
    "WRONGPASS": "it rejects the user name or the password",
    "NOPERM": "its user may not use these commands or keys",
    "READONLY": "it is a read-only replica",
    "LOADING": "it is still loading its data",
    "OOM": "its memory is full",
    "MOVED": "it is one node of a cluster: name a single server or a proxy",
}
_CODE = re.compile(rf"\b({'|'.join(_CODES)})\b")


class RedisClient:
    """Built by `open`; connects when it is first used. Reports changes of its state to `observer`."""

    def __init__(self, redis: Redis, where: str, observer: Observer) -> None:
        self._redis = redis
        self._where = where
        self._observer = observer
        self._state: tuple[bool, str] | None = None

    @classmethod
    def open(cls, url: str, *, observer: Observer) -> RedisClient:
        """For redis://, rediss:// and unix:// URLs. Raises ConfigError, without any part of the URL."""
        options = _options(url)
        pool = BlockingConnectionPool(**options)
        try:
            # Finds out whether the options are valid; it does not connect.
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, AttributeError, exceptions.RedisError):
            raise ConfigError("REDIS_URL has an option that Redis's client does not know or understand.") from None
        host, port = options.get("host", "localhost"), options.get("port", 6379)
        where = options.get("path") or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return cls(Redis.from_pool(pool), where, observer)

    async def call(self, command: Callable[[Redis], Awaitable[T]], within: float = CALL_SECONDS) -> T:
        """The answer to `command`. Raises RedisUnavailable, after `within` seconds at the latest."""
        try:
            async with asyncio.timeout(within):
                answer = await command(self._redis)
        except Exception as error:  # a server that sends garbage makes the parser raise almost anything
            reason = f"Redis at {self._where} cannot be used: {_reason(error)}."
            if self._state != (False, reason):
                self._state = (False, reason)
                self._observer.lock_unavailable(reason)
            raise RedisUnavailable(reason) from error
        if self._state != (True, ""):
            self._state = (True, "")
            self._observer.lock_available()
        return answer

    async def close(self) -> None:
        """Raises nothing."""
        with contextlib.suppress(exceptions.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._redis.aclose()


def _options(url: str) -> dict[str, Any]:
    """The options of the URL, overridden by those that every call relies on."""
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
        # Each call as a whole has a timeout. With one here the client sends through asyncio.wait_for, which before
        # Python 3.12 loses a cancellation that arrives as it ends: the watchdog of a finished sync would go on.
        "socket_timeout": None,
        "retry": Retry(NoBackoff(), 0),
        # Supported by every server since 1.2, without the additional handshake of version 3.
        "protocol": 2,
        "decode_responses": True,
        "encoding": "utf-8",
        # Other programs may have stored bytes that are not text; they are returned unchanged.
        "encoding_errors": "surrogateescape",
    }


def _reason(error: BaseException) -> str:
    """What failed, without anything that was sent."""
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
    if isinstance(error, exceptions.AuthenticationError | exceptions.ResponseError):
        return _answered(error)
    for each in chain:
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno).lower() if each.errno > 0 else "the network fails"
    if isinstance(error, exceptions.ConnectionError) and not isinstance(error, exceptions.InvalidResponse):
        return "the connection was closed"
    return f"what answers there does not speak Redis's protocol ({type(error).__name__})"


def _answered(error: exceptions.RedisError) -> str:
    # The client removes the code from errors that it has a class for; a script's error contains it.
    code = getattr(error, "status_code", None)
    found = _CODE.search(str(error))
    if code in _CODES or found is not None:
        return _CODES[code if code in _CODES else found[1]]  # type: ignore[index]
    if isinstance(error, exceptions.AuthenticationError):
        return _CODES["WRONGPASS"]
    # Redis repeats the arguments of a command that it does not know, for example a password.
    answer = str(error).partition(", with args beginning with")[0]
    if "unknown command" in answer and "eval" in answer.lower():
        return "it is a Sentinel, or EVAL is disabled: name the Redis server itself"
    return f"it answers {escape_unprintable(answer[:_LONGEST_REASON_CHARS])!r}"


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found
