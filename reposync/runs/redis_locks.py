"""Locks of repositories in Redis, and the watchdog that keeps the lock of a running sync.

All times are `elapsed_seconds`, taken before the call that they belong to: the lock lives at least that long.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from reposync.clock import elapsed_seconds
from reposync.config.sections import LOCK_SECONDS
from reposync.errors import ConfigError, LockHeld, LockLost, RedisUnavailable
from reposync.runs.locks import LOCK_PREFIX, IsStale, LockHolder, LockRecord
from reposync.runs.observer import Observer
from reposync.runs.redis_client import CALL_SECONDS, RedisClient
from reposync.store.run import Run
from reposync.words import escape_unprintable

log = logging.getLogger(__name__)

PROBE_KEY = "reposync:lock:probe"
SCAN_COUNT = 1_000
# Scanning all keys of a Redis that is shared with something much larger would take too long.
SCAN_SECONDS = 20.0
MAX_LISTED = 10_000
RELEASE_SECONDS = 1.0
# Shares of the time to live: when the sync must end because the lock could not be extended, and the longest watchdog
# interval that leaves time for retries before that.
LOST_AFTER = 0.8
LONGEST_INTERVAL = 0.75
# A lock whose value changes more often than this while we try to replace a dead holder's is in use.
REPLACE_TRIES = 5
# PTTL's answer if there is no key; -1 if the key never expires.
_GONE = -2

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


@dataclass(frozen=True, slots=True)
class _Other:
    """A different holder's value. `ttl_seconds` None: it never expires."""

    value: str
    ttl_seconds: float | None

    def __str__(self) -> str:
        holder = LockHolder.parse(self.value)
        if holder is not None:
            by = f"{holder.worker} holds it for run {holder.run_id}"
        else:
            by = f"its key holds {escape_unprintable(self.value[:100])!r}, which reposync did not write"
        return by + (", without an expiry" if self.ttl_seconds is None else f", for {self.ttl_seconds:.0f} s more")


class RedisGuard:
    """The lock of one run. `acquire`, then `watch` beside the sync, then always `release`."""

    def __init__(
        self,
        client: RedisClient,
        run: Run,
        *,
        ttl_seconds: float,
        watchdog_seconds: float,
        is_stale: IsStale,
        observer: Observer,
    ) -> None:
        self._client = client
        self._run = run
        self._key = LOCK_PREFIX + run.repository_id
        self._value = LockHolder.of(run).value
        self._ttl_seconds = ttl_seconds
        self._watchdog_seconds = watchdog_seconds
        self._is_stale = is_stale
        self._observer = observer
        # When the lock was last known to be ours for a full time to live; None: never.
        self._held_since: float | None = None

    async def acquire(self) -> None:
        """Raises LockHeld. Returns without the lock if Redis is unavailable; the watchdog then tries again."""
        started = elapsed_seconds()
        try:
            other = await self._take()
        except RedisUnavailable as error:
            self._observer.count("lock_unavailable")
            log.warning("the sync of %s starts without its Redis lock: %s", self._run.repository, error)
            return
        if other is not None:
            raise LockHeld(
                f"The sync of {self._run.repository!r} waits for its Redis lock: {other}.",
                remedy="`reposync locks list` shows it, and `reposync locks release` removes it.",
            )
        self._observer.observe("lock_wait_seconds", elapsed_seconds() - started)

    async def watch(self) -> None:
        """Extend the lock until cancelled. Raises LockLost."""
        failures = 0 if self._held_since is not None else 1
        while True:
            pause = retry_pause(self._ttl_seconds, failures) if failures else self._watchdog_seconds
            await asyncio.sleep(min(pause, self._remaining_seconds()))
            if self._remaining_seconds() <= 0:
                away_seconds = self._ttl_seconds * LOST_AFTER
                raise self._lost("unreachable", f"it could not be extended for {away_seconds:.0f} s")
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
            await _release(self._client, self._key, self._value, RELEASE_SECONDS)
        except RedisUnavailable as error:
            log.info("the lock of %s was not released: %s", self._run.repository, error)

    async def _keep(self) -> None:
        since = elapsed_seconds()
        taken = await self._try(new=False)
        if taken == "held":
            self._held_since = since
            return
        # Redis restarted empty, or the lock was released by hand or lost while this process was frozen: the database
        # decides.
        if await self._is_stale(LockHolder.of(self._run)):
            raise self._lost("superseded", "a different worker has taken the run over, or the run has ended")
        other = await self._take()
        if other is not None:
            raise self._lost("taken", str(other))
        log.info("the lock of %s was taken again", self._run.repository)

    async def _take(self) -> _Other | None:
        """None: it is ours. A stale holder, such as our own killed attempt, is replaced; a value that changed in
        between is judged again."""
        replacing: str | None = None
        tries = 0
        while True:
            since = elapsed_seconds()
            taken = await self._try(new=True, replacing=replacing)
            if not isinstance(taken, _Other):
                self._held_since = since
                return None
            tries += 1
            holder = LockHolder.parse(taken.value)
            if tries == REPLACE_TRIES or holder is None or not await self._is_over(holder):
                return taken
            replacing = taken.value

    async def _try(self, *, new: bool, replacing: str | None = None) -> str | _Other:
        arguments = [self._value, str(int(self._ttl_seconds * 1_000)), "new" if new else ""]
        if replacing is not None:
            arguments.append(replacing)
        return await self._client.call(lambda redis: _take(redis, self._key, *arguments))

    async def _is_over(self, holder: LockHolder) -> bool:
        """An earlier attempt of our own run has ended, or ours could not have begun."""
        if holder.run_id == self._run.id and holder.attempt < self._run.attempt:
            return True
        return await self._is_stale(holder)

    def _remaining_seconds(self) -> float:
        if self._held_since is None:
            return float("inf")
        return self._held_since + self._ttl_seconds * LOST_AFTER - elapsed_seconds()

    def _lost(self, reason: str, why: str) -> LockLost:
        """`reason`: `unreachable`, Redis was unavailable until the lock nearly expired; `taken`, a live holder has it;
        `superseded`, the run belongs to a different attempt by now."""
        self._observer.count("lock_losses", reason)
        return LockLost(f"The sync of {self._run.repository!r} was stopped because it lost its Redis lock: {why}.")


class RedisLocks:
    """Built by `open`, one a process."""

    def __init__(
        self,
        client: RedisClient,
        *,
        ttl_seconds: float,
        watchdog_seconds: float,
        is_stale: IsStale,
        observer: Observer,
    ) -> None:
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._watchdog_seconds = watchdog_seconds
        self._is_stale = is_stale
        self._observer = observer

    @classmethod
    def open(
        cls,
        url: str,
        *,
        ttl_seconds: float = LOCK_SECONDS,
        watchdog_seconds: float | None = None,
        is_stale: IsStale,
        observer: Observer | None = None,
    ) -> RedisLocks:
        """Connects when it is first used. `watchdog_seconds`: interval at which a lock is extended to its full
        `ttl_seconds`; None: a third of it. Raises ConfigError for a URL or interval that cannot work."""
        interval = ttl_seconds / 3 if watchdog_seconds is None else watchdog_seconds
        longest = ttl_seconds * LONGEST_INTERVAL
        if not 0 < interval <= longest:
            raise ConfigError(
                f"A lock that expires after {ttl_seconds:g} s cannot be kept by extending it every {interval:g} s.",
                remedy=f"Extend it at least every {longest:g} s.",
            )
        observer = observer or Observer()
        client = RedisClient.open(url, observer=observer)
        return cls(client, ttl_seconds=ttl_seconds, watchdog_seconds=interval, is_stale=is_stale, observer=observer)

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[RedisGuard, None]:
        """See `RunLocks.guard`."""
        guard = RedisGuard(
            self._client,
            run,
            ttl_seconds=self._ttl_seconds,
            watchdog_seconds=self._watchdog_seconds,
            is_stale=self._is_stale,
            observer=self._observer,
        )
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
        await self._client.call(lambda redis: _take(redis, PROBE_KEY, "1", "1000", "new"))
        return time.monotonic() - started

    async def list(self) -> builtins.list[LockRecord]:
        """All locks, at most 10,000, by repository id. Raises RedisUnavailable."""
        found: dict[str, LockRecord] = {}
        cursor = 0
        deadline = time.monotonic() + SCAN_SECONDS
        while True:
            cursor, keys = await self._client.call(partial(_scan, cursor=cursor))
            for record in await self._client.call(partial(_read, keys=keys)) if keys else []:
                found[record.repository_id] = record
            if cursor == 0 or len(found) >= MAX_LISTED:
                return [found[key] for key in sorted(found)][:MAX_LISTED]
            if time.monotonic() > deadline:
                raise RedisUnavailable(
                    f"Redis has so many keys that its locks were not found within {SCAN_SECONDS:.0f} s.",
                    remedy="Give reposync a Redis, or a database number, of its own.",
                )

    async def release(self, repository_id: str, value: str) -> bool:
        """Remove the lock if its value is exactly this; returns whether it was removed. Raises RedisUnavailable."""
        return await _release(self._client, LOCK_PREFIX + repository_id, value, CALL_SECONDS)

    async def close(self) -> None:
        """Raises nothing."""
        await self._client.close()


def retry_pause(ttl_seconds: float, failures: int) -> float:
    """Before the next try while Redis is unavailable: short at first, so that the lock is visible again soon."""
    longest = min(5.0, ttl_seconds / 6)
    return min(longest, min(1.0, ttl_seconds / 20) * 2.0 ** min(failures - 1, 10))


async def _take(redis: Redis, key: str, *arguments: str) -> str | _Other:
    # EVAL and not EVALSHA: a few hundred bytes more, but a restarted Redis needs no reload of the script.
    match await redis.eval(_TAKE, 1, key, *arguments):
        case ["held" | "gone" as taken]:
            return str(taken)
        case ["other", str(value), int(milliseconds)]:
            return _Other(value, _ttl_seconds(milliseconds))
    raise exceptions.InvalidResponse


async def _release(client: RedisClient, key: str, value: str, within: float) -> bool:
    async def release(redis: Redis) -> bool:
        removed: Any = await redis.eval(_RELEASE, 1, key, value)
        if removed not in (0, 1):
            raise exceptions.InvalidResponse
        return bool(removed)

    return await client.call(release, within)


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
        if value is None or milliseconds == _GONE:
            continue
        text = value if isinstance(value, str) else ""
        records.append(
            LockRecord(key.removeprefix(LOCK_PREFIX), LockHolder.parse(text), _ttl_seconds(milliseconds), text)
        )
    return records


def _ttl_seconds(milliseconds: int) -> float | None:
    return milliseconds / 1_000 if milliseconds >= 0 else None
