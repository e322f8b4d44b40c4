"""Searches that take too long: answered in time, and counted until their threads are done."""

from __future__ import annotations

import asyncio
import threading

import pytest

from reposync.app import limits
from reposync.app.limits import ConcurrencyLimit
from reposync.errors import SearchBusy, SearchTimeout
from reposync.supervision import in_thread
from reposync.vectors.port import SearchHit
from tests.fixtures.patience import PATIENCE_SECONDS


class Model:
    """One whose threads go on until it is told to answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.began = 0
        self.at_work = self.most_at_work = 0
        self._counting = threading.Lock()

    def _embed(self) -> list[SearchHit]:
        with self._counting:
            self.began += 1
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        assert self.answers.wait(60)
        with self._counting:
            self.at_work -= 1
        return []

    async def search(self) -> list[SearchHit]:
        return await in_thread(self._embed)


async def test_a_search_that_was_given_up_keeps_its_place_until_its_thread_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TIMEOUT_SECONDS", 0.2)
    model, limit = Model(), ConcurrencyLimit(max_concurrent=2, max_waiting=3)
    try:
        given_up = await asyncio.gather(*(limit.search(model.search) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in given_up] == [SearchTimeout] * 5
        async with asyncio.timeout(PATIENCE_SECONDS):
            while model.began < 2:
                await asyncio.sleep(0.01)
        # Those that only waited have left; the two at work are still there.
        again = await asyncio.gather(*(limit.search(model.search) for _ in range(4)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in again) == ["SearchBusy"] + ["SearchTimeout"] * 3
        assert (model.began, model.most_at_work) == (2, 2)
    finally:
        model.answers.set()

    monkeypatch.setattr(limits, "TIMEOUT_SECONDS", 60.0)
    assert await asyncio.gather(*(limit.search(model.search) for _ in range(3))) == [[]] * 3
    assert (model.began, model.most_at_work) == (5, 2)


async def test_a_search_has_ended_when_its_cancelled_caller_has() -> None:
    limit, events = ConcurrencyLimit(max_concurrent=1, max_waiting=0), []
    began = asyncio.Event()

    async def work() -> list[SearchHit]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)  # as the rollback of a transaction does
            events.append("search ended")
        return []

    caller = asyncio.create_task(limit.search(work))
    await began.wait()
    caller.cancel()
    await asyncio.wait({caller})
    events.append("caller ended")
    assert events == ["search ended", "caller ended"]


async def test_what_a_search_raises_comes_out_and_its_place_is_free() -> None:
    async def failing() -> list[SearchHit]:
        raise SearchBusy("elsewhere")

    limit = ConcurrencyLimit(max_concurrent=1, max_waiting=0)
    for _ in range(3):
        with pytest.raises(SearchBusy, match="elsewhere"):
            await limit.search(failing)
