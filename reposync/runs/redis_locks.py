"""Locks of repositories in Redis, and the watchdog that keeps the lock of a running sync.

All times are `elapsed_seconds`, taken before the call that they belong to: the lock lives at least that long. Every
call is short, and every failure is a RedisUnavailable. redis-py's own retry is off: it would repeat a command whose
answer was lost, and report on the repetition.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from reposync.clock import elapsed_seconds
from reposync.config.sections import LOCK_SECONDS
from reposync.errors import ConfigError, LockHeld, LockLost, RedisUnavailable, StoreUnavailable
from reposync.runs.locks import LOCK_PREFIX, LockHolder, LockRecord
from reposync.runs.reporting import Observer
from reposync.store.history import RunHistory
from reposync.store.run import Run
from reposync.supervision import to_the_end
from reposync.words import escape_unprintable

log = logging.getLogger(__name__)

T = TypeVar("T")

# A call may include connecting, or checking an idle connection.
CALL_SECONDS = 1.5
CONNECT_SECONDS = 1.0
# An idle connection is checked before use: firewalls drop them silently.
HEALTH_CHECK_SECONDS = 30
# For the locks of thousands of repositories.
READ_SECONDS = 10.0
# Share of the time to live after which the sync must end because the lock could not be extended.
LOST_AFTER = 0.8
# Pause while Redis is unavailable.
RETRY_SECONDS = 5.0
_LONGEST_REASON_CHARS = 200

# Creates, extends or replaces a lock in one step. redis-py's Lock cannot replace one, and cannot tell a lock that is
# gone from one that another holder has. ARGV: our value, milliseconds, and the value that may be replaced.
# Returns the other value, if it is not ours now.
_TAKE = """
local held = redis.call('get', KEYS[1])
if held and held ~= ARGV[1] and held ~= ARGV[3] then return {held} end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return {}
"""
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisLocks:
    """The locks of a process, with its one client."""

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
        self.ttl_seconds = ttl_seconds
        self.watchdog_seconds = ttl_seconds / 3 if watchdog_seconds is None else watchdog_seconds
        self.observer = observer or Observer()
        self._history = history
        self._redis = _client(url)
        options = self._redis.connection_pool.connection_kwargs
        self._where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    async def _call(self, command: Awaitable[T], within: float | None = None) -> T:
        """Its answer. Raises RedisUnavailable, after `within` or CALL_SECONDS at the latest."""
        try:
            async with asyncio.timeout(within or CALL_SECONDS):
                return await command
        except Exception as error:  # a server that sends garbage makes the parser raise almost anything
            raise RedisUnavailable(f"Redis at {self._where} cannot be used: {_reason(error)}.") from error

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[RunLock, None]:
        """Hold the lock of `run`'s repository; this process has claimed the run. Entering raises LockHeld if a live
        worker holds it; if Redis is unavailable, the watchdog tries again. Leaving releases the lock, and raises
        nothing."""
        lock = RunLock(self, run)
        try:
            # Within the try: if it is cancelled while it waits for the answer, it may have the lock.
            await lock.acquire()
            yield lock
        finally:
            await to_the_end(lock.release())

    async def ping(self) -> None:
        """Uses the script of a lock: a replica, a full server and one whose user may not write would answer a PING.
        Raises RedisUnavailable."""
        await self._take(LOCK_PREFIX.replace("repository", "probe"), "1", 1.0)

    async def take(self, repository_id: str, value: str) -> str | None:
        """Create or extend the lock. The lock of an attempt that is over, such as that of a killed worker, is replaced.
        Returns the other holder's value, or None if the lock has this value now. Raises RedisUnavailable."""
        key = LOCK_PREFIX + repository_id
        other = await self._take(key, value, self.ttl_seconds)
        if other is not None and await self._is_stale(other):
            other = await self._take(key, value, self.ttl_seconds, other)
        return other

    async def _take(self, key: str, value: str, ttl_seconds: float, replacing: str = "") -> str | None:
        # EVAL and not EVALSHA: a few hundred bytes more, but a restarted Redis needs no reload of the script.
        command: Awaitable[Any] = self._redis.eval(_TAKE, 1, key, value, int(ttl_seconds * 1_000), replacing or value)
        match await self._call(command):
            case []:
                return None
            case [str(other)]:
                return other
        raise RedisUnavailable(f"Redis at {self._where} cannot be used: {_reason(exceptions.InvalidResponse())}.")

    async def _is_stale(self, value: str) -> bool:
        """Whether its holder's run has ended or was taken over. A holder is respected if its run is unknown (a
        different installation shares the Redis) or if the database does not answer."""
        if (holder := LockHolder.parse(value)) is None:
            return False
        try:
            run = (await self._history.by_ids([holder.run_id])).get(holder.run_id)
        except StoreUnavailable:
            return False
        return run is not None and not holder.executes(run)

    async def read(self, repository_ids: Collection[str]) -> dict[str, LockRecord]:
        """The locks of these repositories, by id. Raises RedisUnavailable."""
        return await self._call(self._read(sorted(repository_ids)), READ_SECONDS)

    async def _read(self, repository_ids: Sequence[str]) -> dict[str, LockRecord]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for identity in repository_ids:
                pipeline.get(LOCK_PREFIX + identity)
                pipeline.pttl(LOCK_PREFIX + identity)
            answers = await pipeline.execute()
        return {
            identity: LockRecord(value, left / 1_000 if left >= 0 else None)
            for identity, value, left in zip(repository_ids, answers[::2], answers[1::2], strict=True)
            if value is not None
        }

    async def release(self, repository_id: str, value: str | None) -> bool:
        """Remove the lock if it has this value, or any (None); returns whether it was removed. Raises
        RedisUnavailable."""
        key = LOCK_PREFIX + repository_id
        if value is None:
            return await self._call(self._redis.delete(key)) == 1
        command: Awaitable[Any] = self._redis.eval(_RELEASE, 1, key, value)
        return bool(await self._call(command))

    async def close(self) -> None:
        """Raises nothing."""
        with contextlib.suppress(RedisUnavailable):
            await self._call(self._redis.aclose())


class RunLock:
    """The lock of one run's repository. `acquire`, then `watch` beside the sync, then always `release`."""

    def __init__(self, locks: RedisLocks, run: Run) -> None:
        self._locks = locks
        self._run = run
        self._value = LockHolder.of(run).value
        # When the sync must end unless the lock is extended; never if it began without the lock.
        self._lost_at = float("inf")

    async def acquire(self) -> None:
        """Raises LockHeld. Returns without the lock if Redis is unavailable."""
        started = elapsed_seconds()
        try:
            other = await self._take()
        except RedisUnavailable as error:
            self._locks.observer.count("lock_unavailable")
            log.warning("the sync of %s starts without its Redis lock: %s", self._run.repository, error)
            return
        if other is not None:
            raise LockHeld(
                f"The sync of {self._run.repository!r} waits for its Redis lock, which {other} has.",
                remedy="`reposync locks list` shows it, and `reposync locks release` removes it.",
            )
        self._locks.observer.observe("lock_wait_seconds", elapsed_seconds() - started)

    async def watch(self) -> None:
        """Extend the lock until cancelled; a lock that is gone (Redis restarted empty, or it was released by hand) is
        taken again. Raises LockLost if it cannot be kept: then the sync must end."""
        pause = self._locks.watchdog_seconds if self._remaining_seconds() < float("inf") else 0.0
        while True:
            await asyncio.sleep(min(pause, self._remaining_seconds()))
            pause = self._locks.watchdog_seconds
            try:
                async with asyncio.timeout(self._remaining_seconds()):
                    other = await self._take()
            except (RedisUnavailable, TimeoutError):
                if self._remaining_seconds() <= 0:
                    seconds = self._locks.ttl_seconds * LOST_AFTER
                    raise self._lost("unreachable", f"it could not be extended for {seconds:.0f} s") from None
                pause = min(pause, RETRY_SECONDS)
            else:
                if other is not None:
                    raise self._lost("taken", f"{other} has it")

    async def release(self) -> None:
        """A lock that could not be removed is replaced by the next run of the repository: its holder is stale then."""
        try:
            await self._locks.release(self._run.repository_id, self._value)
        except RedisUnavailable as error:
            log.info("the lock of %s was not released: %s", self._run.repository, error)

    async def _take(self) -> str | None:
        """Returns the other holder's value, so that it can be printed; None: the lock is ours."""
        since = elapsed_seconds()
        other = await self._locks.take(self._run.repository_id, self._value)
        if other is not None:
            return escape_unprintable(other[:_LONGEST_REASON_CHARS]) or "an empty value"
        self._lost_at = since + self._locks.ttl_seconds * LOST_AFTER
        return None

    def _remaining_seconds(self) -> float:
        return self._lost_at - elapsed_seconds()

    def _lost(self, reason: str, why: str) -> LockLost:
        """`reason`: `unreachable`, Redis was unavailable until the lock nearly expired; `taken`, a live holder has
        it."""
        self._locks.observer.count("lock_losses", reason)
        return LockLost(f"The sync of {self._run.repository!r} was stopped because it lost its Redis lock: {why}.")


# The client ----------------------------------------------------------------------------------------------------------


def _client(url: str) -> Redis:
    parts = urlsplit(url)
    if parts.scheme != "unix" and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(
            "REPOSYNC_REDIS_URL cannot be read as an address.",
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
            encoding_errors="replace",  # any key and value is shown
        )
        # Finds out whether the options are valid; it does not connect.
        redis.connection_pool.connection_class(**redis.connection_pool.connection_kwargs)
    except (TypeError, ValueError, AttributeError, exceptions.RedisError):
        raise ConfigError(
            "REPOSYNC_REDIS_URL is no address of a Redis server, or has an option that is not known."
        ) from None
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
    message = str(error).partition(", with args beginning with")[0]
    return escape_unprintable(message[:_LONGEST_REASON_CHARS]).rstrip(". ")
