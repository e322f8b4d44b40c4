"""Schedules to queued runs. Every pod does this for every repository; the database decides which one takes a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]

from reposync.config.sections import DaemonConfig
from reposync.errors import StoreUnavailable
from reposync.store.ticks import TickOutcome, Ticks
from reposync.supervision import Backoff, unending
from reposync.telemetry.health import Trouble

_RESCHEDULE_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 10.0
# Ticks are whole seconds. The database's time is known a little less exactly than that.
_TURN_SECONDS, _INEXACT_SECONDS = 1.0, 0.02
# A job of APScheduler that is later than this: it goes by this machine's clock, which was set back.
_LATE_SECONDS = 5.0


@dataclass
class CronScheduler:
    """An APScheduler job a second takes what is due. `run` until cancelled, and again if it failed."""

    ticks: Ticks
    config: Callable[[], DaemonConfig]
    on_ticks: Callable[[TickOutcome], None]

    async def run(self) -> None:
        scheduler = AsyncIOScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
        scheduler.start()
        try:
            await unending(self._take_turns(scheduler))
        finally:
            # A job that has just begun ends in this turn of the loop. `shutdown` would cancel it and log an error.
            scheduler.pause()
            await asyncio.sleep(0)
            scheduler.shutdown(wait=False)

    async def _take_turns(self, scheduler: AsyncIOScheduler) -> None:
        """Here and not in the job: APScheduler swallows a job's errors, and does not wait for its end."""
        backoff, trouble = Backoff(0.25, _LONGEST_PAUSE_SECONDS), Trouble("ticks have their database again")
        fires, reschedule_at = asyncio.Event(), 0.0

        async def fire() -> None:
            fires.set()

        while True:
            now = asyncio.get_running_loop().time()
            try:
                if now >= reschedule_at:
                    await self.ticks.reschedule()
                    reschedule_at = now + _RESCHEDULE_SECONDS
                config = self.config()
                outcome = await self.ticks.take(
                    grace_seconds=config.misfire_grace_seconds, max_attempts=config.max_attempts
                )
            except StoreUnavailable as error:
                trouble.met("ticks wait for the database", str(error))
                await backoff.wait()
                continue
            backoff.reset()
            trouble.over()
            self.on_ticks(outcome)
            fires.clear()
            scheduler.add_job(
                fire, "date", run_date=datetime.now(UTC) + self._pause(), id="turn", replace_existing=True
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(_LATE_SECONDS):
                    await fires.wait()

    def _pause(self) -> timedelta:
        """Until just after the next full second of the database's clock."""
        since = self.ticks.now().microsecond / 1e6
        return timedelta(seconds=_TURN_SECONDS - since + _INEXACT_SECONDS)
