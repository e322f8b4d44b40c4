"""How many searches a process does at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from reposync.errors import SearchBusy, SearchTimeout
from reposync.supervision import end

T = TypeVar("T")

MAX_CONCURRENT = 2
"""The number of concurrent greps, which take seconds of a core each."""
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
