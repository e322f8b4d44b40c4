"""Telling how far a run is never disturbs anybody."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

from reposync.errors import LeaseLost
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
