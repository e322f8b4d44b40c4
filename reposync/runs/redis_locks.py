"""Locks of repositories in Redis, and the watchdog that keeps the lock of a running sync.

All times are `elapsed_seconds`, taken before the call that they belong to: the lock lives at least that long. Every
call is short, and every failure is a RedisUnavailable. redis-py's own retry is off: it would repeat a command whose
answer was lost, and report on the repetition.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from reposync.clock import elapsed_seconds
from reposync.config.sections import LOCK_SECONDS
from reposync.errors import ConfigError, LockHeld, LockLost, RedisUnavailable
from reposync.runs.locks import LOCK_PREFIX, IsStale, LockHolder, LockRecord
from reposync.runs.reporting import Observer
from reposync.store.run import Run
from reposync.words import escape_unprintable

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_KEY = "reposync:lock:probe"
CONNECT_SECONDS = 1.0
# A call may include connecting, or checking an idle connection.
CALL_SECONDS = 1.5
RELEASE_SECONDS = 1.0
CLOSE_SECONDS = 1.0
MAX_CONNECTIONS = 4
# An idle connection is checked before use: firewalls drop them silently.
HEALTH_CHECK_SECONDS = 30
SCAN_COUNT = 1_000
# Scanning all keys of a Redis that is shared with something much larger would take too long.
SCAN_SECONDS = 20.0
MAX_LISTED = 10_000
# Shares of the time to live: when the sync must end because the lock could not be extended, and the longest watchdog
# interval that leaves time for retries before that.
LOST_AFTER = 0.8
LONGEST_INTERVAL = 0.75
# A lock whose value changes more often than this while we try to replace a dead holder's is in use.
REPLACE_TRIES = 5
# PTTL's answer if there is no key; -1 if the key never expires.
_GONE = -2
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

# redis-py's Lock has no compare-and-set, and cannot tell a lock that is gone from one that another holder has.
# ARGV: our value, milliseconds, "new" if the key may be created, and the value that may be replaced, if any.
_TAKE = """
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then held = '' end
if held == ARGV[1] or (held and held == ARGV[4]) or (not held and ARGV[3] == 'new') then
  redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
  return {'held'}
end
if not held then return {'gone'} end
return {'other', held, redis.call('pttl', KEYS[1])}
"""
_RELEASE = """
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then held = '' end
if held == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""


class RedisLocks:
    """The locks of a process, with its one client. Changes of Redis's state are reported to `observer`. See
    `RunLocks`."""

    def __init__(
        self,
        url: str,
        *,
        ttl_seconds: float = LOCK_SECONDS,
        watchdog_seconds: float | None = None,
        is_stale: IsStale,
        observer: Observer | None = None,
    ) -> None:
        """`url`: redis://, rediss:// or unix://; it is connected to when it is first used. `watchdog_seconds`: interval
        at which a lock is extended to its full `ttl_seconds`; None: a third of it.

        Raises ConfigError for an interval that cannot work or a URL, without any part of it."""
        self.ttl_seconds = ttl_seconds
        self.watchdog_seconds = ttl_seconds / 3 if watchdog_seconds is None else watchdog_seconds
        self.is_stale = is_stale
        self.observer = observer or Observer()
        longest = ttl_seconds * LONGEST_INTERVAL
        if not 0 < self.watchdog_seconds <= longest:
            raise ConfigError(
                f"A lock that expires after {ttl_seconds:g} s cannot be kept by extending it every "
                f"{self.watchdog_seconds:g} s.",
                remedy=f"Extend it at least every {longest:g} s.",
            )
        options = _options(url)
        pool = BlockingConnectionPool(**options)
        try:
            # Finds out whether the options are valid; it does not connect.
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, ValueError, AttributeError, exceptions.RedisError):
            raise ConfigError("REDIS_URL has an option that Redis's client does not know or understand.") from None
        host, port = options.get("host", "localhost"), options.get("port", 6379)
        self._where = options.get("path") or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self._redis = Redis.from_pool(pool)
        self._trouble: str | None = ""
        """Why Redis cannot be used, None if it can; empty before the first call."""

    async def call(self, command: Callable[[Redis], Awaitable[T]], within: float = CALL_SECONDS) -> T:
        """The answer to `command`. Raises RedisUnavailable, after `within` seconds at the latest."""
        try:
            async with asyncio.timeout(within):
                answer = await command(self._redis)
        except Exception as error:  # a server that sends garbage makes the parser raise almost anything
            reason = f"Redis at {self._where} cannot be used: {_reason(error)}."
            if self._trouble != reason:
                self._trouble = reason
                self.observer.lock_unavailable(reason)
            raise RedisUnavailable(reason) from error
        if self._trouble is not None:
            self._trouble = None
            self.observer.lock_available()
        return answer

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[RedisGuard, None]:
        guard = RedisGuard(self, run)
        try:
            # Within the try: if it is cancelled while it waits for the answer, it may have the lock.
            await guard.acquire()
            yield guard
        finally:
            await guard.release()

    async def ping(self) -> float:
        """How long Redis takes to answer, in seconds. Uses the script of a lock: a replica, a full server and one whose
        user may not write would answer a PING. Raises RedisUnavailable."""
        started = time.monotonic()
        await self.call(lambda redis: _take(redis, PROBE_KEY, "1", "1000", "new"))
        return time.monotonic() - started

    async def list(self) -> builtins.list[LockRecord]:
        """At most 10,000."""
        found: dict[str, LockRecord] = {}
        cursor = 0
        deadline = time.monotonic() + SCAN_SECONDS
        while True:
            cursor, keys = await self.call(partial(_scan, cursor=cursor))
            for record in await self.call(partial(_read, keys=keys)) if keys else []:
                found[record.repository_id] = record
            if cursor == 0 or len(found) >= MAX_LISTED:
                return [found[key] for key in sorted(found)][:MAX_LISTED]
            if time.monotonic() > deadline:
                raise RedisUnavailable(
                    f"Redis has so many keys that its locks were not found within {SCAN_SECONDS:.0f} s.",
                    remedy="Give reposync a Redis, or a database number, of its own.",
                )

    async def release(self, repository_id: str, value: str, within: float = CALL_SECONDS) -> bool:
        async def release(redis: Redis) -> bool:
            removed: Any = await redis.eval(_RELEASE, 1, LOCK_PREFIX + repository_id, value)
            if removed not in (0, 1):
                raise exceptions.InvalidResponse
            return bool(removed)

        return await self.call(release, within)

    async def close(self) -> None:
        with contextlib.suppress(exceptions.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._redis.aclose()


class RedisGuard:
    """The lock of one run. `acquire`, then `watch` beside the sync, then always `release`."""

    def __init__(self, locks: RedisLocks, run: Run) -> None:
        self._locks = locks
        self._run = run
        self._value = LockHolder.of(run).value
        # When the lock was last known to be ours for a full time to live; None: never.
        self._held_since: float | None = None

    async def acquire(self) -> None:
        """Raises LockHeld. Returns without the lock if Redis is unavailable; the watchdog then tries again."""
        started = elapsed_seconds()
        try:
            other = await self._take()
        except RedisUnavailable as error:
            self._locks.observer.count("lock_unavailable")
            log.warning("the sync of %s starts without its Redis lock: %s", self._run.repository, error)
            return
        if other is not None:
            raise LockHeld(
                f"The sync of {self._run.repository!r} waits for its Redis lock: {other}.",
                remedy="`reposync locks list` shows it, and `reposync locks release` removes it.",
            )
        self._locks.observer.observe("lock_wait_seconds", elapsed_seconds() - started)

    async def watch(self) -> None:
        """Extend the lock until cancelled. Raises LockLost."""
        failures = 0 if self._held_since is not None else 1
        ttl_seconds = self._locks.ttl_seconds
        while True:
            pause = retry_pause(ttl_seconds, failures) if failures else self._locks.watchdog_seconds
            await asyncio.sleep(min(pause, self._remaining_seconds()))
            if self._remaining_seconds() <= 0:
                raise self._lost("unreachable", f"it could not be extended for {ttl_seconds * LOST_AFTER:.0f} s")
            try:
                async with asyncio.timeout(self._remaining_seconds() if self._held_since is not None else None):
                    await self._keep()
            except (RedisUnavailable, TimeoutError):
                failures += 1
            else:
                failures = 0

    async def release(self) -> None:
        """Takes at most a second, also while this task is cancelled; raises nothing else. A lock that could not be
        removed is replaced by the next run of the repository, because its holder is stale by then."""
        task = asyncio.create_task(self._drop(), name=f"release of the lock of run {self._run.id}")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _drop(self) -> None:
        try:
            await self._locks.release(self._run.repository_id, self._value, RELEASE_SECONDS)
        except RedisUnavailable as error:
            log.info("the lock of %s was not released: %s", self._run.repository, error)

    async def _keep(self) -> None:
        if await self._try(new=False) == "held":
            return
        # Redis restarted empty, or the lock was released by hand or lost while this process was frozen: the database
        # decides.
        if await self._locks.is_stale(LockHolder.of(self._run)):
            raise self._lost("superseded", "a different worker has taken the run over, or the run has ended")
        other = await self._take()
        if other is not None:
            raise self._lost("taken", str(other))
        log.info("the lock of %s was taken again", self._run.repository)

    async def _take(self) -> LockRecord | None:
        """None: it is ours. A stale holder, such as our own killed attempt, is replaced; a value that changed in
        between is judged again."""
        replacing: str | None = None
        tries = 0
        while True:
            taken = await self._try(new=True, replacing=replacing)
            if not isinstance(taken, LockRecord):
                return None
            tries += 1
            holder = taken.holder
            if tries == REPLACE_TRIES or holder is None or not await self._is_over(holder):
                return taken
            replacing = taken.value

    async def _try(self, *, new: bool, replacing: str | None = None) -> str | LockRecord:
        since = elapsed_seconds()
        arguments = [self._value, str(int(self._locks.ttl_seconds * 1_000)), "new" if new else ""]
        if replacing is not None:
            arguments.append(replacing)
        key = LOCK_PREFIX + self._run.repository_id
        taken = await self._locks.call(lambda redis: _take(redis, key, *arguments))
        if taken == "held":
            self._held_since = since
        return taken

    async def _is_over(self, holder: LockHolder) -> bool:
        """An earlier attempt of our own run has ended, or ours could not have begun."""
        if holder.run_id == self._run.id and holder.attempt < self._run.attempt:
            return True
        return await self._locks.is_stale(holder)

    def _remaining_seconds(self) -> float:
        if self._held_since is None:
            return float("inf")
        return self._held_since + self._locks.ttl_seconds * LOST_AFTER - elapsed_seconds()

    def _lost(self, reason: str, why: str) -> LockLost:
        """`reason`: `unreachable`, Redis was unavailable until the lock nearly expired; `taken`, a live holder has it;
        `superseded`, the run belongs to a different attempt by now."""
        self._locks.observer.count("lock_losses", reason)
        return LockLost(f"The sync of {self._run.repository!r} was stopped because it lost its Redis lock: {why}.")


def retry_pause(ttl_seconds: float, failures: int) -> float:
    """Before the next try while Redis is unavailable: short at first, so that the lock is visible again soon."""
    longest = min(5.0, ttl_seconds / 6)
    return min(longest, min(1.0, ttl_seconds / 20) * 2.0 ** min(failures - 1, 10))


async def _take(redis: Redis, key: str, *arguments: str) -> str | LockRecord:
    # EVAL and not EVALSHA: a few hundred bytes more, but a restarted Redis needs no reload of the script.
    match await redis.eval(_TAKE, 1, key, *arguments):
        case ["held" | "gone" as taken]:
            return str(taken)
        case ["other", str(value), int(milliseconds)]:
            return _record(key, value, milliseconds)
    raise exceptions.InvalidResponse


async def _scan(redis: Redis, *, cursor: int) -> tuple[int, list[str]]:
    position, keys = await redis.scan(cursor, match=LOCK_PREFIX + "*", count=SCAN_COUNT)
    return int(position), [str(key) for key in keys]


async def _read(redis: Redis, *, keys: list[str]) -> list[LockRecord]:
    async with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.get(key)
            pipeline.pttl(key)
        answers = await pipeline.execute(raise_on_error=False)
    records = []
    for key, value, milliseconds in zip(keys, answers[::2], answers[1::2], strict=True):
        for answer in (value, milliseconds):
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        if value is not None and milliseconds != _GONE:
            records.append(_record(key, value if isinstance(value, str) else "", milliseconds))
    return records


def _record(key: str, value: str, milliseconds: int) -> LockRecord:
    return LockRecord(key.removeprefix(LOCK_PREFIX), value, milliseconds / 1_000 if milliseconds >= 0 else None)


# The client ----------------------------------------------------------------------------------------------------------


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
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
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
    if code not in _CODES:
        found = _CODE.search(str(error))
        code = found[1] if found else "WRONGPASS" if isinstance(error, exceptions.AuthenticationError) else None
    if code is not None:
        return _CODES[code]
    # Redis repeats the arguments of a command that it does not know, for example a password.
    answer = str(error).partition(", with args beginning with")[0]
    if "unknown command" in answer and "eval" in answer.lower():
        return "it is a Sentinel, or EVAL is disabled: name the Redis server itself"
    return f"it answers {escape_unprintable(answer[:_LONGEST_REASON_CHARS])!r}"
