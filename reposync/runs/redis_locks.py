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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from reposync.clock import elapsed_seconds
from reposync.config.sections import LOCK_SECONDS
from reposync.errors import ConfigError, LockHeld, LockLost, RedisUnavailable
from reposync.runs.locks import LOCK_PREFIX, LockHolder, LockRecord, RunLocks, is_stale
from reposync.runs.reporting import Observer
from reposync.store.history import RunHistory
from reposync.store.run import Run
from reposync.supervision import Backoff, to_the_end
from reposync.words import escape_unprintable

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS = 1.0
# A call may include connecting, or checking an idle connection.
CALL_SECONDS = 1.5
RELEASE_SECONDS = 1.0
CLOSE_SECONDS = 1.0
# An idle connection is checked before use: firewalls drop them silently.
HEALTH_CHECK_SECONDS = 30
# Scanning all keys of a Redis that is shared with something much larger would take too long.
SCAN_SECONDS = 20.0
SCAN_COUNT = 1_000
MAX_LISTED = 10_000
# Share of the time to live after which the sync must end because the lock could not be extended.
LOST_AFTER = 0.8
# A lock whose value changes more often than this while we try to replace a dead holder's is in use.
REPLACE_TRIES = 5
# Pauses while Redis is unavailable: short at first, so that the lock is visible again soon.
_RETRY_SECONDS = 1.0, 5.0
_LONGEST_REASON_CHARS = 200

# redis-py's Lock has no compare-and-set, and cannot tell a lock that is gone from one that another holder has.
# ARGV: our value, milliseconds, and the value that may be replaced, if any. Returns the other value and its PTTL.
# A key of another type, which `get` refuses, is a lock with an empty value: respected, and removed only on request.
_HELD = """
local held = redis.pcall('get', KEYS[1])
if type(held) == 'table' then held = '' end
"""
_TAKE = (
    _HELD
    + """
if held and held ~= ARGV[1] and held ~= ARGV[3] then return {held, redis.call('pttl', KEYS[1])} end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return {}
"""
)
_RELEASE = _HELD + "if held == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisLocks(RunLocks):
    """The locks of a process, with its one client. Changes of Redis's state are reported to `observer`."""

    def __init__(
        self,
        url: str,
        history: RunHistory,
        *,
        ttl_seconds: float = LOCK_SECONDS,
        watchdog_seconds: float | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`url`: redis://, rediss:// or unix://; it is connected to when it is first used. `watchdog_seconds`: interval
        at which a lock is extended to its full `ttl_seconds`; None: a third of it.

        Raises ConfigError for a URL that cannot be used, without any part of it."""
        self.history = history
        self.ttl_seconds = ttl_seconds
        self.watchdog_seconds = ttl_seconds / 3 if watchdog_seconds is None else watchdog_seconds
        self.observer = observer or Observer()
        self._redis = _client(url)
        options = self._redis.connection_pool.connection_kwargs
        self._where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
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
            await to_the_end(guard.release())

    async def ping(self) -> float:
        """How long Redis takes to answer, in seconds. Uses the script of a lock: a replica, a full server and one whose
        user may not write would answer a PING. Raises RedisUnavailable."""
        started = time.monotonic()
        await self.take(LOCK_PREFIX.replace("repository", "probe"), "1", 1.0)
        return time.monotonic() - started

    async def take(self, key: str, value: str, ttl_seconds: float, replacing: str | None = None) -> LockRecord | None:
        """Create, extend or replace the lock. Returns the other holder's, or None. Raises RedisUnavailable."""
        arguments = value, int(ttl_seconds * 1_000), replacing or value

        async def take(redis: Redis) -> LockRecord | None:
            # EVAL and not EVALSHA: a few hundred bytes more, but a restarted Redis needs no reload of the script.
            match await redis.eval(_TAKE, 1, key, *arguments):
                case []:
                    return None
                case [str(other), int(left)]:
                    return _record(key, other, left)
            raise exceptions.InvalidResponse

        return await self.call(take)

    async def list(self) -> builtins.list[LockRecord]:
        """At most 10,000."""

        async def read(redis: Redis) -> builtins.list[LockRecord]:
            keys = set[str]()
            async for key in redis.scan_iter(LOCK_PREFIX + "*", SCAN_COUNT):
                keys.add(str(key))
                if len(keys) == MAX_LISTED:
                    break
            async with redis.pipeline(transaction=False) as pipeline:
                for key in sorted(keys):
                    pipeline.get(key)
                    pipeline.pttl(key)
                answers = await pipeline.execute(raise_on_error=False)
            for number, answer in enumerate(answers):
                if isinstance(answer, Exception):
                    if not str(answer).startswith("WRONGTYPE"):
                        raise answer
                    answers[number] = ""
            found = zip(sorted(keys), answers[::2], answers[1::2], strict=True)
            return [_record(key, value, left) for key, value, left in found if value is not None]

        return await self.call(read, SCAN_SECONDS)

    async def release(self, repository_id: str, value: str, within: float = CALL_SECONDS) -> bool:
        key = LOCK_PREFIX + repository_id
        removed: object = await self.call(lambda redis: redis.eval(_RELEASE, 1, key, value), within)
        return removed == 1

    async def close(self) -> None:
        with contextlib.suppress(exceptions.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._redis.aclose()


class RedisGuard:
    """The lock of one run. `acquire`, then `watch` beside the sync, then always `release`."""

    def __init__(self, locks: RedisLocks, run: Run) -> None:
        self._locks = locks
        self._run = run
        self._holder = LockHolder.of(run)
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
        backoff = Backoff(*_RETRY_SECONDS)
        pause = backoff.next_seconds() if self._held_since is None else self._locks.watchdog_seconds
        while True:
            await asyncio.sleep(min(pause, self._remaining_seconds()))
            if self._remaining_seconds() <= 0:
                seconds = self._locks.ttl_seconds * LOST_AFTER
                raise self._lost("unreachable", f"it could not be extended for {seconds:.0f} s")
            try:
                async with asyncio.timeout(self._remaining_seconds() if self._held_since is not None else None):
                    await self._keep()
            except (RedisUnavailable, TimeoutError):
                pause = backoff.next_seconds()
            else:
                backoff.reset()
                pause = self._locks.watchdog_seconds

    async def release(self) -> None:
        """Takes at most a second. A lock that could not be removed is replaced by the next run of the repository,
        because its holder is stale by then."""
        try:
            await self._locks.release(self._run.repository_id, self._holder.value, RELEASE_SECONDS)
        except RedisUnavailable as error:
            log.info("the lock of %s was not released: %s", self._run.repository, error)

    async def _keep(self) -> None:
        # A lock that is gone is taken again (Redis restarted empty, or it was released by hand), unless the run is not
        # ours any more.
        if await is_stale(self._locks.history, self._holder):
            raise self._lost("superseded", "a different worker has taken the run over, or the run has ended")
        if (other := await self._take()) is not None:
            raise self._lost("taken", str(other))

    async def _take(self) -> LockRecord | None:
        """None: it is ours. A stale holder, such as our own killed attempt, is replaced; a value that changed in
        between is judged again."""
        other: LockRecord | None = None
        for _ in range(REPLACE_TRIES):
            since, key = elapsed_seconds(), LOCK_PREFIX + self._run.repository_id
            replacing = other.value if other is not None else None
            other = await self._locks.take(key, self._holder.value, self._locks.ttl_seconds, replacing)
            if other is None:
                self._held_since = since
                return None
            if other.holder is None or not await is_stale(self._locks.history, other.holder):
                break
        return other

    def _remaining_seconds(self) -> float:
        if self._held_since is None:
            return float("inf")
        return self._held_since + self._locks.ttl_seconds * LOST_AFTER - elapsed_seconds()

    def _lost(self, reason: str, why: str) -> LockLost:
        """`reason`: `unreachable`, Redis was unavailable until the lock nearly expired; `taken`, a live holder has it;
        `superseded`, the run belongs to a different attempt by now."""
        self._locks.observer.count("lock_losses", reason)
        return LockLost(f"The sync of {self._run.repository!r} was stopped because it lost its Redis lock: {why}.")


def _record(key: str, value: str, milliseconds: int) -> LockRecord:
    return LockRecord(key.removeprefix(LOCK_PREFIX), value, milliseconds / 1_000 if milliseconds >= 0 else None)


# The client ----------------------------------------------------------------------------------------------------------


def _client(url: str) -> Redis:
    parts = urlsplit(url)
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(
            "REDIS_URL cannot be read as an address.",
            remedy="Write the characters / ? # @ of a user name or password as %2F %3F %23 %40.",
        )
    try:
        redis: Redis = Redis.from_url(
            url,
            health_check_interval=HEALTH_CHECK_SECONDS,
            client_name=f"reposync:{os.getpid()}",
            socket_connect_timeout=CONNECT_SECONDS,
            # Each call as a whole has a timeout. With one here the client sends through asyncio.wait_for, which before
            # Python 3.12 loses a cancellation that arrives as it ends: the watchdog of a finished sync would go on.
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            # Supported by every server since 1.2, without the additional handshake of version 3.
            protocol=2,
            decode_responses=True,
            encoding_errors="surrogateescape",  # so that any value can be named when it is removed
        )
        # Finds out whether the options are valid; it does not connect.
        redis.connection_pool.connection_class(**redis.connection_pool.connection_kwargs)
    except (TypeError, ValueError, AttributeError, exceptions.RedisError):
        raise ConfigError("REDIS_URL is no address of a Redis server, or has an option that is not known.") from None
    return redis


def _reason(error: BaseException) -> str:
    """What failed, without anything that was sent."""
    if isinstance(error, TimeoutError | exceptions.TimeoutError):
        return "it does not answer in time"
    if isinstance(error, exceptions.InvalidResponse) or not isinstance(error, exceptions.RedisError | OSError):
        return f"what answers there does not speak Redis's protocol ({type(error).__name__})"
    if isinstance(error, exceptions.ClusterDownError | exceptions.AskError):
        return f"it belongs to a Redis Cluster, which is not supported ({error}); name a single Redis server"
    if str(error).lower().startswith("unknown command 'eval'"):
        return "it is a Sentinel, or EVAL is disabled; name the Redis server itself"
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ConnectionError | FileNotFoundError) and cause.errno:
        return os.strerror(cause.errno).lower()
    # Redis repeats the arguments of a command that it does not know, for example a password.
    said = str(error).partition(", with args beginning with")[0]
    return escape_unprintable(said[:_LONGEST_REASON_CHARS]).rstrip(". ")
