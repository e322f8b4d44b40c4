"""Following rows that other processes write: any number of watchers, one query at a time for all of them.

Nobody is told when a row changes (SQLite has no way to, and a NOTIFY a second and run would wake every pod for nobody),
so that watchers look again and again. The first whose turn it is asks for all, the others take what it was answered.
Where nobody watches, nothing is asked.
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
"""Key -> row, for all keys at once; what is gone is left out. Raises StoreUnavailable."""


class TooManyWatchers(RepoSyncError):
    """As many as this pod serves are watching already."""

    code = "TOO_MANY_WATCHERS"
    status = 503
    retryable = True


class Following(Generic[T]):
    """Of one kind of row. For one event loop."""

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
        """For as long as somebody looks at `key`. Raises TooManyWatchers."""
        if self.watchers >= self._max_watchers:
            raise TooManyWatchers(
                f"{self.watchers} are watching on this pod, and it serves no more at a time.",
                remedy="Ask again in a moment, or ask for the present state in place of following it.",
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
        """Until the next look is due, which is the same moment for all watchers."""
        due = self._looked_at + self.look_seconds - time.monotonic()
        return min(max(due, 0.01), self.look_seconds)

    async def look(self, key: str) -> T | None:
        """The row as it is, or was no longer than `look_seconds` ago, and never as it was before the `watching` began;
        None where it is gone. Only while `watching` it.

        Raises StoreUnavailable; whoever waited for the same answer gets the same failure, and does not ask once more.
        """
        # A hundredth of slack for clocks of event loops that wake a little early.
        if self._is_too_old_for(key) or time.monotonic() - self._looked_at >= self.look_seconds - 0.01:
            await self._round()
            if self._is_too_old_for(key):
                await self._round()  # the first one was under way already
        if self._failure is not None:
            raise StoreUnavailable(self._failure.message, remedy=self._failure.remedy)
        return self._found.get(key)

    def _is_too_old_for(self, key: str) -> bool:
        return key not in self._asked or self._began_at < self._since[key]

    async def settle(self) -> None:
        """Until no query is under way. For who watched, before the database is closed."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def _round(self) -> None:
        # A task of its own: it is everybody's, and watchers leave in the middle of it. A query that is cancelled costs
        # its connection, and SQLite's driver, cancelled twice as responses are, never gives it back.
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
