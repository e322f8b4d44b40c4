"""Watching rows that other processes write: any number of watchers share one query at a time.

Changes of a row are not announced: SQLite cannot, and a NOTIFY for every second of every run would wake all pods. So
watchers poll. The first whose turn it is queries for all of them; without watchers there is no query.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

from reposync.errors import RepoSyncError, StoreUnavailable

T = TypeVar("T")

LOOK_SECONDS = 0.5
MAX_WATCHERS = 200
_QUERY_SECONDS = 5.0

Fetch = Callable[[Collection[str]], Awaitable[Mapping[str, T]]]
"""Rows by key, for all keys at once, without those that are gone. Raises StoreUnavailable."""


class TooManyWatchers(RepoSyncError):
    """This pod serves no further watcher."""

    code = "TOO_MANY_WATCHERS"
    status = 503
    retryable = True


class RowWatch(Generic[T]):
    """Of one kind of row, for one event loop."""

    def __init__(
        self, fetch: Fetch[T], *, look_seconds: float = LOOK_SECONDS, max_watchers: int = MAX_WATCHERS
    ) -> None:
        self.look_seconds = look_seconds
        self._fetch = fetch
        self._max_watchers = max_watchers
        self._keys: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked: frozenset[str] = frozenset()
        self._found: Mapping[str, T] = {}
        self._failure: StoreUnavailable | None = None
        self._began_at = self._looked_at = float("-inf")

    @property
    def watchers(self) -> int:
        return self._keys.total()

    @contextlib.contextmanager
    def watching(self, key: str) -> Iterator[None]:
        """While a client watches `key`. Raises TooManyWatchers."""
        if self.watchers >= self._max_watchers:
            raise TooManyWatchers(
                f"This pod serves {self.watchers} watchers, and no more at a time.",
                remedy="Try again in a moment, or request the current state instead of watching it.",
            )
        self._keys[key] += 1
        self._since[key] = time.monotonic()
        try:
            yield
        finally:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key], self._since[key]

    @property
    def pause_seconds(self) -> float:
        """Until the next query, which is at the same moment for all watchers."""
        due = self._looked_at + self.look_seconds - time.monotonic()
        return min(max(due, 0.01), self.look_seconds)

    async def look(self, key: str) -> T | None:
        """The row, at most `look_seconds` old and never older than the `watching`; None if it is gone. Only while
        `watching` it. Raises StoreUnavailable; all who waited for the same query get the same error."""
        # Event loops may wake slightly early.
        if self._is_too_old_for(key) or time.monotonic() - self._looked_at >= self.look_seconds - 0.01:
            await self._round()
            if self._is_too_old_for(key):
                await self._round()  # the first query had begun before this watcher came
        if self._failure is not None:
            raise StoreUnavailable(self._failure.message, remedy=self._failure.remedy)
        return self._found.get(key)

    def _is_too_old_for(self, key: str) -> bool:
        return key not in self._asked or self._began_at < self._since[key]

    async def settle(self) -> None:
        """Wait until no query is running, before the database is closed."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def _round(self) -> None:
        # A task of its own, because watchers may leave while it runs. A cancelled query costs its connection, and
        # SQLite's driver never returns it if it is cancelled twice.
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="rows that are watched")
        asking = self._asking
        done, _ = await asyncio.wait({asking}, timeout=_QUERY_SECONDS)
        if not done:
            raise StoreUnavailable(f"The database did not answer within {_QUERY_SECONDS:g} s.")
        asking.result()

    async def _ask(self) -> None:
        keys, began_at = frozenset(self._keys), time.monotonic()
        try:
            self._found = await self._fetch(keys)
            self._failure = None
        except StoreUnavailable as error:
            self._failure = error
        finally:
            self._asked, self._began_at, self._looked_at = keys, began_at, time.monotonic()
            self._asking = None
