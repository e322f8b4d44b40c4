"""Telling how far a run is never disturbs anybody."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

from reposync.errors import LeaseLost, StoreUnavailable
from reposync.runs.reporting import report_progress
from reposync.sync.progress import RunProgress


async def test_a_report_of_a_run_that_ends_is_not_cut_and_leaves_no_unretrieved_error() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun, answers, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def tell(_: Mapping[str, Any]) -> None:
        begun.set()
        await answers.wait()
        over.set()
        raise LeaseLost("another's")

    telling = asyncio.create_task(report_progress(RunProgress(phase="listing"), tell, seconds=0))
    await begun.wait()
    for _ in range(2):
        telling.cancel()
        await asyncio.sleep(0)
    answers.set()
    await asyncio.gather(telling, return_exceptions=True)
    assert telling.cancelled() and over.is_set()
    del telling  # its traceback holds the call
    gc.collect()

    assert complaints == []


async def test_each_change_is_reported_once_also_after_the_database_was_away() -> None:
    progress, reported, asked = RunProgress(), [], asyncio.Condition()

    async def tell(said: Mapping[str, Any]) -> None:
        async with asked:
            reported.append(said["files_done"])
            asked.notify()
        if len(reported) == 1:
            raise StoreUnavailable("The database db:5432 refuses connections.")

    telling = asyncio.create_task(report_progress(progress, tell, seconds=0))
    for done, count in ((1, 2), (2, 3)):
        progress.files_done = done
        async with asyncio.timeout(20), asked:
            await asked.wait_for(lambda count=count: len(reported) == count)
        for _ in range(100):
            await asyncio.sleep(0)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)

    assert reported == [1, 1, 2]
