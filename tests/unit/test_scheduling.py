"""The scheduler of a daemon ends without a word, also in the moment in which it fires."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from reposync.config.sections import DaemonConfig
from reposync.scheduling import CronScheduler
from reposync.store.ticks import TickOutcome, Ticks


class NothingDue:
    """A database whose clock is about to reach a full second, so that the next turn comes at once."""

    def __init__(self) -> None:
        self.was_asked = asyncio.Event()

    async def reschedule(self) -> None:
        pass

    async def take(self, **_: Any) -> TickOutcome:
        return TickOutcome()

    def now(self) -> datetime:
        self.was_asked.set()
        return datetime(2026, 1, 1, microsecond=999_999, tzinfo=UTC)


@pytest.mark.parametrize("turns_of_the_loop", range(8))
async def test_whoever_stops_it_while_a_turn_begins_finds_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture, turns_of_the_loop: int
) -> None:
    ticks = NothingDue()
    cron = CronScheduler(cast(Ticks, ticks), DaemonConfig, on_ticks=lambda _: None)
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(cron.run())
        await ticks.was_asked.wait()
        await asyncio.sleep(0)
        running.cancel()
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        # The loop stands still until the turn is due, and then meets both at once.
        time.sleep(0.03)
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(5):
            await asyncio.sleep(0)

    assert caplog.messages == []
