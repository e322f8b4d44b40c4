"""One question for all who ask the same at the same moment.

A hundred clicks on one repository would otherwise be a hundred transactions, one after the other behind the lock of its
row, all with the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from reposync.errors import RepoSyncError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Batch(Generic[T]):
    """Those who get the same answer."""

    turn: asyncio.Lock
    answer: list[T]
    failure: RepoSyncError | None = None


class Coalesced(Generic[T]):
    """For one event loop. Nobody gets an answer to a question that was put before they asked: who comes while one is
    under way shares the next one with all who come until it is put. Of different questions so many are put at a time;
    the others wait in the order in which they came."""

    def __init__(self, at_a_time: int) -> None:
        self._places = asyncio.Semaphore(at_a_time)
        self._next: dict[Hashable, _Batch[T]] = {}
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        """What `question` returns, or a RepoSyncError that it raises, for all who ask with that key. It is put by the
        first of them; where that one is cancelled, by the next."""
        batch = self._next.get(key)
        if batch is None:
            turn = self._turns.setdefault(key, asyncio.Lock())
            batch = self._next[key] = _Batch(turn, [])
        async with batch.turn:
            if not batch.answer and batch.failure is None:
                async with self._places:
                    if self._next.get(key) is batch:
                        del self._next[key]
                    try:
                        batch.answer.append(await question())
                    except RepoSyncError as error:
                        batch.failure = error
        if batch.failure is not None:
            raise batch.failure
        return batch.answer[0]
