"""Calls in threads that are awaited to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """The result of `work`. If cancelled, it ends when the thread does: threads cannot be stopped, and a caller that
    bounds their number would start the next one too early."""
    future = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        raise
