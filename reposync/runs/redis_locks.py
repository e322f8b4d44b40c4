"""The locks of repositories in Redis: taken, extended, replaced and given back by their token, each in one step."""

from __future__ import annotations

import builtins
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from reposync.errors import RedisUnavailable
from reposync.runs.locks import (
    LOCK_PREFIX,
    TTL_SECONDS,
    IsStale,
    LockHolder,
    LockObserver,
    LockRecord,
    stale_by,
)
from reposync.runs.observer import Observer
from reposync.runs.redis_client import CALL_SECONDS, RedisClient
from reposync.runs.redis_guard import LockTerms, Other, RedisGuard, Taken
from reposync.store.run import Run

__all__ = ["RedisLocks", "stale_by"]

PROBE_KEY = "reposync:lock:probe"
SCAN_COUNT = 1_000
# Of a Redis that is shared with something much larger, the whole would take too long to look through.
SCAN_SECONDS = 20.0
MAX_LISTED = 10_000
# PTTL's answer where there is no key; -1 where it has no end.
GONE = -2

# redis-py's Lock cannot do this: it has no compare-and-set, and cannot tell a lock that is gone from another's.
# ARGV: our value, milliseconds, "new" if the key may be made, and the value that may be replaced, if there is one.
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
    """Built by `open`, one a process."""

    def __init__(self, client: RedisClient, terms: LockTerms, is_stale: IsStale, observer: LockObserver) -> None:
        self._client = client
        self._terms = terms
        self._is_stale = is_stale
        self._observer = observer

    @classmethod
    def open(
        cls,
        url: str,
        *,
        ttl_seconds: float = TTL_SECONDS,
        watchdog_seconds: float | None = None,
        is_stale: IsStale,
        observer: LockObserver | None = None,
    ) -> RedisLocks:
        """Connects when it is first used. `watchdog_seconds`: how often a lock is extended to its full `ttl_seconds`,
        a third of them where None. Raises ConfigError for an address that cannot be used."""
        observer = observer or Observer()
        return cls(
            RedisClient.open(url, observer=observer), LockTerms.of(ttl_seconds, watchdog_seconds), is_stale, observer
        )

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[RedisGuard, None]:
        """See `RunLocks.guard`."""
        guard = RedisGuard(RepositoryToken(self._client, run), run, self._terms, self._is_stale, self._observer)
        try:
            # Within the try: cancelled while it waits for the answer, it may have the lock.
            await guard.acquire()
            yield guard
        finally:
            await guard.release()

    async def ping(self) -> float:
        """How long Redis takes to answer, in seconds. Asked with what a lock needs: a replica, a full server and one
        whose user may not write would answer a PING. Raises RedisUnavailable."""
        asked = time.monotonic()
        await self._client.call(lambda redis: _take(redis, PROBE_KEY, "1", "1000", "new"))
        return time.monotonic() - asked

    async def list(self) -> builtins.list[LockRecord]:
        """Every lock there is, at most 10,000, by repository id. Raises RedisUnavailable."""
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
        """Remove the lock if its value is exactly this; whether it was. Raises RedisUnavailable."""
        return await _dropped(self._client, LOCK_PREFIX + repository_id, value, CALL_SECONDS)

    async def close(self) -> None:
        """Raises nothing."""
        await self._client.close()


class RepositoryToken:
    """See `redis_guard.Token`."""

    def __init__(self, client: RedisClient, run: Run) -> None:
        self._client = client
        self._key = LOCK_PREFIX + run.repository_id
        self._value = LockHolder.of(run).value

    async def take(self, ttl_seconds: float, *, new: bool, replacing: str | None) -> Taken | Other:
        words = [self._value, str(int(ttl_seconds * 1_000)), "new" if new else ""]
        if replacing is not None:
            words.append(replacing)
        return await self._client.call(lambda redis: _take(redis, self._key, *words))

    async def drop(self, within: float) -> None:
        await _dropped(self._client, self._key, self._value, within)


async def _take(redis: Redis, key: str, *words: str) -> Taken | Other:
    # By EVAL, not EVALSHA: a few hundred bytes more, and a Redis that was restarted need not be taught it again.
    match await redis.eval(_TAKE, 1, key, *words):
        case ["held"]:
            return Taken.HELD
        case ["gone"]:
            return Taken.GONE
        case ["other", str(value), int(milliseconds)]:
            return Other(value, _ttl_seconds(milliseconds))
    raise exceptions.InvalidResponse


async def _dropped(client: RedisClient, key: str, value: str, within: float) -> bool:
    async def drop(redis: Redis) -> bool:
        removed: Any = await redis.eval(_RELEASE, 1, key, value)
        if removed not in (0, 1):
            raise exceptions.InvalidResponse
        return bool(removed)

    return await client.call(drop, within)


async def _scan(redis: Redis, *, cursor: int) -> tuple[int, builtins.list[str]]:
    position, keys = await redis.scan(cursor, match=LOCK_PREFIX + "*", count=SCAN_COUNT)
    return int(position), [str(key) for key in keys]


async def _read(redis: Redis, *, keys: builtins.list[str]) -> builtins.list[LockRecord]:
    async with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.get(key)
            pipeline.pttl(key)
        answers = await pipeline.execute(raise_on_error=False)
    records = []
    for key, value, milliseconds in zip(keys, answers[::2], answers[1::2], strict=True):
        for answer in (value, milliseconds):
            if isinstance(answer, Exception) and not _is_of_another_type(answer):
                raise answer
        if value is None or milliseconds == GONE:
            continue
        text = value if isinstance(value, str) else ""
        records.append(
            LockRecord(key.removeprefix(LOCK_PREFIX), LockHolder.parse(text), _ttl_seconds(milliseconds), text)
        )
    return records


def _is_of_another_type(error: Exception) -> bool:
    return isinstance(error, exceptions.ResponseError) and str(error).startswith("WRONGTYPE")


def _ttl_seconds(milliseconds: int) -> float | None:
    return milliseconds / 1_000 if milliseconds >= 0 else None
