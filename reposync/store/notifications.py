"""Waiting for what other processes write: new work by PostgreSQL's LISTEN if possible, and single rows by polling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from reposync.errors import StoreUnavailable, TooManyWatchers
from reposync.next_steps import NextStep
from reposync.store.database import PROBE, QUEUE, RIGHTS, Database
from reposync.supervision import Backoff

log = logging.getLogger(__name__)

# A connection that was cut silently, or whose server was demoted, is noticed by a probe.
_PROBE_SECONDS = 30.0
_PROBE_TIMEOUT_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 10.0


async def listen(database: Database) -> None:
    """Tell the subscribers what other processes announce, by a connection of PostgreSQL that is kept open, until
    cancelled. It only shortens waits: without it (SQLite written by a different process, PgBouncer, a broken
    connection) a worker finds its work by polling."""
    if database.connect is None:
        return
    backoff = Backoff(0.5, _MAX_PAUSE_SECONDS)
    while True:
        try:
            connection = await database.connect()
        except Exception as error:  # noqa: BLE001 - whatever it is, polling continues, and the listener reconnects
            log.debug("no connection to listen on: %s", type(error).__name__)
        else:
            backoff.reset()
            await _listen_on(connection, database)
        await backoff.wait()


async def _listen_on(connection: Any, database: Database) -> None:
    closed = asyncio.Event()
    connection.add_termination_listener(lambda _: closed.set())
    try:
        await connection.add_listener(QUEUE, lambda *_: database.notify())
        await connection.add_listener(RIGHTS, lambda *said: database.heard(said[-1]))
        database.notify()  # something may have been announced before
        database.heard("")
        while not closed.is_set():
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    await closed.wait()
            except TimeoutError:
                await connection.execute(PROBE, timeout=_PROBE_TIMEOUT_SECONDS)
    except Exception as error:  # noqa: BLE001 - as above
        log.debug("the listening connection broke: %s", type(error).__name__)
    finally:
        connection.terminate()


# Single rows ---------------------------------------------------------------------------------------------------------

T = TypeVar("T")

LOOK_SECONDS = 0.5
MAX_WATCHERS = 200
MAX_OF_A_CLIENT = 50
_QUERY_SECONDS = 5.0

Fetch = Callable[[Collection[str]], Awaitable[Mapping[str, T]]]
"""Rows by key, for all keys at once, without those that are gone. Raises StoreUnavailable."""


class _Failure(NamedTuple):
    """A query that failed, for all who look until the next one."""

    message: str
    remedy: str | None
    next_steps: tuple[NextStep, ...]


class RowWatch(Generic[T]):
    """The watch of one kind of row, for one event loop: any number of watchers share one query.

    Changes of a row are not announced: SQLite cannot, and a NOTIFY for every second of every run would wake all pods.
    So watchers poll. The first whose turn it is queries for all of them; without watchers there is no query."""

    def __init__(
        self, fetch: Fetch[T], *, look_seconds: float = LOOK_SECONDS, max_watchers: int = MAX_WATCHERS
    ) -> None:
        self.look_seconds = look_seconds
        self._fetch = fetch
        self._max_watchers = max_watchers
        self._keys: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()
        self._query: asyncio.Future[Mapping[str, T] | _Failure] | None = None
        self._running: set[asyncio.Future[Any]] = set()
        self._asked: frozenset[str] = frozenset()
        self._looked_at = float("-inf")

    @property
    def watchers(self) -> int:
        return self._keys.total()

    @contextlib.contextmanager
    def watching(self, key: str, client: str = "") -> Iterator[None]:
        """While a client watches `key`. A client with a name has a share of the watchers. Raises TooManyWatchers."""
        remedy = "Try again in a moment, or request the current state instead of watching it."
        if self.watchers >= self._max_watchers:
            raise TooManyWatchers(f"This pod serves {self.watchers} watchers, and no more at a time.", remedy=remedy)
        if client and self._clients[client] >= MAX_OF_A_CLIENT:
            raise TooManyWatchers(f"This pod serves {MAX_OF_A_CLIENT} watchers of a token or session.", remedy=remedy)
        self._keys[key] += 1
        self._clients[client] += 1
        self._asked -= {key}  # a row that was read before is too old
        try:
            yield
        finally:
            self._keys[key] -= 1
            self._clients[client] -= 1
            for counter, counted in ((self._keys, key), (self._clients, client)):
                if not counter[counted]:
                    del counter[counted]

    @property
    def pause_seconds(self) -> float:
        """Until the next query, which is at the same moment for all watchers."""
        due = self._looked_at + self.look_seconds - time.monotonic()
        return min(max(due, 0.01), self.look_seconds)

    async def look(self, key: str) -> T | None:
        """The row, at most `look_seconds` old and never older than the `watching`; None if it is gone. Only while
        `watching` it. Raises StoreUnavailable; all who waited for the same query get the same error."""
        now = time.monotonic()
        # Event loops may wake slightly early.
        is_due = now - self._looked_at >= self.look_seconds - 0.01
        if self._query is None or key not in self._asked or (is_due and self._query.done()):
            self._asked, self._looked_at = frozenset(self._keys), now
            self._query = asyncio.ensure_future(self._rows(self._asked))
            self._running.add(self._query)
            self._query.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(_QUERY_SECONDS):
                # Watchers may leave while it runs, and others wait for it.
                rows = await asyncio.shield(self._query)
        except TimeoutError:
            raise StoreUnavailable(f"The database did not answer within {_QUERY_SECONDS:g} s.") from None
        if isinstance(rows, _Failure):
            raise StoreUnavailable(rows.message, remedy=rows.remedy, next_steps=rows.next_steps)
        return rows.get(key)

    async def _rows(self, keys: Collection[str]) -> Mapping[str, T] | _Failure:
        try:
            return await self._fetch(keys)
        except StoreUnavailable as error:
            return _Failure(error.message, error.remedy, error.next_steps)

    async def settle(self) -> None:
        """Wait until no query is running, before the database is closed."""
        if self._running:
            await asyncio.wait(self._running)

    def _ended(self, query: asyncio.Future[Any]) -> None:
        self._running.discard(query)
        # Also marks an error as retrieved, if nobody waits for it any more.
        if (query.cancelled() or query.exception() is not None) and self._query is query:
            self._query = None
