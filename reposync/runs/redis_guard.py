"""One repository's lock while its sync runs, and the watchdog that keeps it.

All times are `elapsed_seconds` and taken before the call that they belong to: the lock lives at least that long.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from reposync.clock import elapsed_seconds
from reposync.errors import ConfigError, LockHeld, LockLost, RedisUnavailable
from reposync.runs.locks import IsStale, LockHolder, LockObserver
from reposync.store.run import Run
from reposync.words import escape_unprintable

log = logging.getLogger(__name__)

# Of the time to live: when the sync must end because the lock could not be extended, and the longest interval that
# still leaves time for further tries before that.
LOST_AFTER = 0.8
LONGEST_INTERVAL = 0.75
RELEASE_SECONDS = 1.0
# A lock that changes hands more often while we try to replace a dead one's is in living hands.
REPLACE_TRIES = 5


@dataclass(frozen=True, slots=True)
class LockTerms:
    """`watchdog_seconds`: from one extension to the full `ttl_seconds` to the next."""

    ttl_seconds: float
    watchdog_seconds: float

    @classmethod
    def of(cls, ttl_seconds: float, watchdog_seconds: float | None) -> LockTerms:
        """Raises ConfigError for what cannot keep a lock alive."""
        interval = ttl_seconds / 3 if watchdog_seconds is None else watchdog_seconds
        if not 0 < interval <= ttl_seconds * LONGEST_INTERVAL:
            raise ConfigError(
                f"A lock that lives for {ttl_seconds:g} s cannot be kept by extending it each {interval:g} s.",
                remedy=f"Extend it at least each {ttl_seconds * LONGEST_INTERVAL:g} s.",
            )
        return cls(ttl_seconds, interval)

    @property
    def lost_after_seconds(self) -> float:
        return self.ttl_seconds * LOST_AFTER

    def pause_after(self, failures: int) -> float:
        """Before the next try while Redis is away: soon at first, so that everybody sees the lock again soon."""
        longest = min(5.0, self.ttl_seconds / 6)
        return min(longest, min(1.0, self.ttl_seconds / 20) * 2.0 ** min(failures - 1, 10))


class Taken(Enum):
    HELD = "held"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Other:
    """Somebody else's value. `ttl_seconds` None: it never ends by itself."""

    value: str
    ttl_seconds: float | None

    @property
    def holder(self) -> LockHolder | None:
        return LockHolder.parse(self.value)


class Token(Protocol):
    """The key of one repository and our value for it, each method one step in Redis. Raise RedisUnavailable."""

    async def take(self, ttl_seconds: float, *, new: bool, replacing: str | None) -> Taken | Other:
        """Ours for `ttl_seconds` from now where it is ours already, where it is gone and may be made `new`, and where
        the value is the one to replace. Otherwise nothing is changed."""

    async def drop(self, within: float) -> None:
        """Gone if it was ours."""


class RedisGuard:
    """The guard of one run. `acquire`, then `watch` beside the sync, then `release`, whatever happened."""

    def __init__(self, token: Token, run: Run, terms: LockTerms, is_stale: IsStale, observer: LockObserver) -> None:
        self._token = token
        self._run = run
        self._terms = terms
        self._is_stale = is_stale
        self._observer = observer
        # When the lock was last known to be ours for a full time to live; None: it never was.
        self._held_since: float | None = None

    async def acquire(self) -> None:
        """Raises LockHeld. Returns without the lock where Redis cannot be asked; the watchdog goes on trying."""
        asked = elapsed_seconds()
        try:
            other = await self._take()
        except RedisUnavailable as error:
            self._observer.lock_missing()
            log.warning("the sync of %s begins without its Redis lock: %s", self._run.repository, error)
            return
        if other is not None:
            raise LockHeld(
                f"The sync of {self._run.repository!r} waits for its Redis lock: {_described(other)}.",
                remedy="`reposync locks list` shows it, and `reposync locks release` removes it.",
            )
        self._observer.lock_taken(elapsed_seconds() - asked)

    async def watch(self) -> None:
        """Runs until cancelled. Raises LockLost."""
        failures = 0 if self._held_since is not None else 1
        while True:
            pause = self._terms.pause_after(failures) if failures else self._terms.watchdog_seconds
            await asyncio.sleep(min(pause, self._remaining_seconds()))
            if self._remaining_seconds() <= 0:
                away_seconds = self._terms.lost_after_seconds
                raise self._lost("unreachable", f"Redis did not let it be extended for {away_seconds:.0f} s")
            try:
                async with asyncio.timeout(self._remaining_seconds() if self._held_since is not None else None):
                    await self._keep()
            except (RedisUnavailable, TimeoutError):
                failures += 1
            else:
                failures = 0

    async def release(self) -> None:
        """Within a second, even while this task is being cancelled; raises nothing else. What could not be removed is
        replaced by the next run of the repository, which finds that its holder does not count any more."""
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
            await self._token.drop(RELEASE_SECONDS)
        except RedisUnavailable as error:
            log.info("the lock of %s was not given back: %s", self._run.repository, error)

    async def _keep(self) -> None:
        since = elapsed_seconds()
        taken = await self._token.take(self._terms.ttl_seconds, new=False, replacing=None)
        if taken is Taken.HELD:
            self._held_since = since
            return
        # Restarted empty, flushed, released by hand, or ours no more while this process was frozen: the row knows.
        if await self._is_stale(LockHolder.of(self._run)):
            raise self._lost("superseded", "another worker has taken the run over, or it has ended")
        other = await self._take()
        if other is not None:
            raise self._lost("taken", _described(other))
        log.info("the lock of %s was taken again", self._run.repository)

    async def _take(self) -> Other | None:
        """None: it is ours. A holder that does not count any more, such as our own attempt that was killed, is
        replaced; a value that changed in between is judged anew."""
        replacing: str | None = None
        tries = 0
        while True:
            since = elapsed_seconds()
            taken = await self._token.take(self._terms.ttl_seconds, new=True, replacing=replacing)
            if not isinstance(taken, Other):
                self._held_since = since
                return None
            tries += 1
            if tries == REPLACE_TRIES or taken.holder is None or not await self._counts_no_more(taken.holder):
                return taken
            replacing = taken.value

    async def _counts_no_more(self, holder: LockHolder) -> bool:
        """An earlier attempt of our own run is over without asking: ours could not have begun otherwise."""
        if holder.run_id == self._run.id and holder.attempt < self._run.attempt:
            return True
        return await self._is_stale(holder)

    def _remaining_seconds(self) -> float:
        if self._held_since is None:
            return float("inf")
        return self._held_since + self._terms.lost_after_seconds - elapsed_seconds()

    def _lost(self, reason: str, told: str) -> LockLost:
        self._observer.lock_lost(reason)
        return LockLost(f"The sync of {self._run.repository!r} was stopped without its Redis lock: {told}.")


def _described(other: Other) -> str:
    if other.holder is not None:
        by = f"{other.holder.worker} holds it for run {other.holder.run_id}"
    else:
        by = f"its key holds {escape_unprintable(other.value[:100])!r}, which reposync did not write"
    return by + (", without an end" if other.ttl_seconds is None else f", for {other.ttl_seconds:.0f} s more")
