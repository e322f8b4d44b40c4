"""Limits: how many searches a daemon does at a time, and how many wrong credentials an address may send."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from reposync.api.errors import SearchBusy, SearchTimeout, TooManyAttempts
from reposync.api.hosts import client_network
from reposync.supervision import end

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONCURRENT = 2
"""A local model uses all cores for a query, and the syncs need them too."""
MAX_WAITING = 50
MAX_WAITING_GREPS = 6
"""Each takes 5 s at most, so that the last one is answered within the time limit."""
TIMEOUT_SECONDS = 20.0


class ConcurrencyLimit:
    """Runs `max_concurrent` searches at a time, queues `max_waiting`, and refuses the others at once."""

    def __init__(self, max_waiting: int, max_concurrent: int = MAX_CONCURRENT) -> None:
        self._slots = asyncio.Semaphore(max_concurrent)
        self._max_inside = max_concurrent + max_waiting
        self._inside = 0

    async def search(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Raises SearchBusy, SearchTimeout, and what `work` does.

        After a timeout `work` is cancelled, but keeps its slot until it has ended: a thread of the model cannot be
        interrupted. A cancelled caller waits for that: at shutdown the database closes next.
        """
        if self._inside >= self._max_inside:
            raise SearchBusy("Too many searches are waiting on this pod.", remedy="Try again in a moment.")
        self._inside += 1
        task = asyncio.ensure_future(self._in_slot(work))
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=TIMEOUT_SECONDS)
            if not task.done():
                raise SearchTimeout(f"The search took more than {TIMEOUT_SECONDS:g} s.")
            return task.result()
        except asyncio.CancelledError:
            await end(task)
            raise
        finally:
            task.cancel()

    async def _in_slot(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._slots:
            return await work()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._inside -= 1
        if not task.cancelled():
            task.exception()  # marks it as retrieved, if nobody waits for it any more


# Wrong credentials ----------------------------------------------------------------------------------------------------

MAX_FAILURES = 600
WINDOW_SECONDS = 60.0
_MAX_KEPT = 4_096

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Throttle:
    """After `max_failures` wrong credentials from an address, none from it is compared, right or wrong, until the
    window is over. Ten a second reveal nothing about secrets of 16 characters, and fewer would let a stranger behind
    the same proxy or NAT lock out those who have a token.

    A wrong credential counts once, however often it is sent: a program with an outdated token learns nothing.
    """

    def __init__(self, *, max_failures: int = MAX_FAILURES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_failures, self._monotonic = max_failures, monotonic
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """By network: the end of the window, and how many there were in it."""
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, client: str) -> None:
        """Raises TooManyAttempts if no credential from this address is compared at the moment."""
        ends_at, count = self._failures.get(client_network(client), (0.0, 0))
        if count >= self._max_failures and (left_seconds := ends_at - self._monotonic()) > 0:
            raise TooManyAttempts(left_seconds)

    def failed(self, client: str, digest: bytes) -> None:
        """Count a wrong credential with that digest."""
        is_repeated = digest in self._wrong
        _keep(self._wrong, digest, None)
        if is_repeated:
            return
        network, now = client_network(client), self._monotonic()
        ends_at, count = self._failures.get(network, (0.0, 0))
        if ends_at <= now:
            ends_at, count = now + WINDOW_SECONDS, 0
        _keep(self._failures, network, (ends_at, count + 1))
        if count + 1 == self._max_failures:
            log.warning("too many wrong tokens", extra={"client": client})


def _keep(kept: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_KEPT:
        kept.popitem(last=False)
