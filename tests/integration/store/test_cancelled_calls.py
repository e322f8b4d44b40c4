"""Whoever is cancelled, and wherever: the database can be written by every process right after that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from reposync.store.database import Database
from tests.integration.store.calls import CALLS, Installation, at_await, methods_of_the_store, other_process

# A caller that gives up, is told to end, and whose process shuts down.
CANCELLATIONS = 3


def test_every_method_of_the_store_has_a_call() -> None:
    assert {name.partition(" ")[0] for name in CALLS} == methods_of_the_store()


async def cancelled_at(number: int, work: Awaitable[object]) -> bool:
    """Await `work`, and cancel this task at its await of this number. Returns whether it had fewer."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(times: int = CANCELLATIONS) -> None:
        task.cancel()
        if times > 1:
            loop.call_soon(cancel, times - 1)

    return await at_await(number, work, lambda: loop.call_soon(cancel)) < number


async def _never_blocks(database: Database, url: str, names: list[str]) -> None:
    """Cancel each of these calls at its first, second, ... await, until it has no more."""
    it = await Installation.make(database)
    async with other_process(url) as other:
        for name in names:
            number = 1
            while True:
                call = asyncio.create_task(cancelled_at(number, CALLS[name](it)))
                await asyncio.wait({call})
                # `call` still has the error, as the task of a heartbeat has when its run ends.
                why = await other.restores()
                assert not why, f"{name}, cancelled at await {number}, blocks another process: {why}"
                if not call.cancelled():
                    assert call.result(), f"{name}, cancelled at await {number}, goes on"
                    break
                number += 1


SOME = ["Runs.heartbeat", "Runs.claim", "Versions.add", "Manifests.load", "Database.ping", "RunHistory.get"]


async def test_a_call_that_is_cancelled_blocks_nobody(database: Database, database_url: str) -> None:
    await _never_blocks(database, database_url, SOME)


@pytest.mark.full
async def test_no_call_that_is_cancelled_blocks_anybody(database: Database, database_url: str) -> None:
    await _never_blocks(database, database_url, [name for name in CALLS if name not in SOME])
