"""A schedule as APScheduler's trigger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.triggers.cron import CronTrigger  # type: ignore[import-untyped]

NextAfter = Callable[[datetime], datetime]


class ScheduleTrigger(CronTrigger):  # type: ignore[misc]
    """A CronTrigger that asks `next_after`, so that a scheduler and everybody else agree about the ticks.

    CronTrigger itself (3.11) leaves ticks out and returns one instant twice where clocks change: Lord Howe's half hour,
    Dublin's negative summer time.
    """

    def __init__(self, next_after: NextAfter, **fields: Any) -> None:
        super().__init__(**fields)
        self._next_after = next_after

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The tick after the previous one, or the first at or after `now`. APScheduler coalesces missed ones."""
        # In UTC: with a time zone, Python subtracts on the wall clock.
        start = previous_fire_time or now.astimezone(UTC) - timedelta(microseconds=1)
        return self._next_after(start).astimezone(self.timezone)
