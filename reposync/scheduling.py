"""Schedules to queued runs. Every pod does this for every repository; the database makes one run of a tick."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]
from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]

from reposync.clock import elapsed_seconds
from reposync.config.schedule import Schedule, ScheduleError
from reposync.config.sections import DaemonConfig
from reposync.errors import StoreUnavailable
from reposync.store.database import REGISTRATIONS
from reposync.store.notifications import Notifications
from reposync.store.ticks import ScheduledRepository, TickOutcome, Ticks
from reposync.supervision import Backoff, unending
from reposync.telemetry.health import Trouble

log = structlog.get_logger(__name__)

# How long a change of registrations may stay unnoticed if no notification arrives.
REFRESH_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 10.0
# Schedules that are looked at before the event loop has its turn.
_AT_ONCE = 20
# A clock that moved by more against elapsed time was set.
_SET_SECONDS = 1.0


class ScheduleTrigger(BaseTrigger):  # type: ignore[misc]
    """Ticks are moments of the database's clock. APScheduler goes by this machine's clock, which is `ahead` of it."""

    def __init__(self, schedule: Schedule, ahead: timedelta) -> None:
        self._schedule = schedule
        self._ahead = ahead

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        start = previous_fire_time or now.astimezone(UTC) - timedelta(microseconds=1)
        return self._schedule.next_after(start - self._ahead) + self._ahead


@dataclass
class CronScheduler:
    """One APScheduler job a schedule; it queues the repositories of that schedule. `run` until cancelled, and again if
    it failed. The schedules are those of the database's active repositories, and the clock is the database's."""

    ticks: Ticks
    news: Notifications
    config: Callable[[], DaemonConfig]
    on_ticks: Callable[[TickOutcome], None]

    def __post_init__(self) -> None:
        self._repositories: dict[Schedule, list[ScheduledRepository]] = {}
        self._caught_up: set[tuple[str, Schedule]] = set()
        self._unreadable: set[tuple[str, str]] = set()
        self._due: dict[str, datetime] = {}
        self._is_due = asyncio.Event()
        self._clocks: tuple[float, float] | None = None
        self._ahead = timedelta(0)
        # How late a tick is, and whether it still counts, is decided by the database's clock.
        self._scheduler = AsyncIOScheduler(timezone=UTC, job_defaults={"coalesce": True, "misfire_grace_time": None})

    async def run(self) -> None:
        self._start_over()
        self._scheduler.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(unending(self._keep_current()), name="schedules")
                tasks.create_task(unending(self._keep_queueing()), name="ticks")
        finally:
            self._scheduler.shutdown(wait=False)

    def _start_over(self) -> None:
        """Make every job anew at the next refresh, and catch up what was missed, as after a restart of the process."""
        self._repositories.clear()
        self._caught_up.clear()
        self._scheduler.remove_all_jobs()

    async def _keep_current(self) -> None:
        backoff = Backoff(0.5, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                await self._refresh()
            except StoreUnavailable:
                await backoff.wait()
            else:
                backoff.reset()
                await self.news.wait(REGISTRATIONS, REFRESH_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _refresh(self) -> None:
        await self._check_clocks()
        found: dict[Schedule, list[ScheduledRepository]] = defaultdict(list)
        for row in await self.ticks.scheduled():
            if schedule := self._schedule(row):
                found[schedule].append(row)
        # The order matters: first the job, then the question what it missed, so that no tick falls between the two.
        await self._set_jobs(found)
        fresh = {
            row.id: (row, schedule)
            for schedule, rows in found.items()
            for row in rows
            if (row.id, schedule) not in self._caught_up
        }
        if fresh:
            await self._catch_up(fresh)
            await self.ticks.first_runs(fresh.keys(), max_attempts=self.config().max_attempts)
        self._caught_up = {(row.id, schedule) for schedule, rows in found.items() for row in rows}

    async def _set_jobs(self, found: Mapping[Schedule, list[ScheduledRepository]]) -> None:
        for gone in self._repositories.keys() - found.keys():
            self._scheduler.remove_job(_job_id(gone))
        new = found.keys() - self._repositories.keys()
        self._repositories = dict(found)
        for number, schedule in enumerate(new):
            self._scheduler.add_job(
                self._fire, ScheduleTrigger(schedule, self._ahead), [schedule], id=_job_id(schedule)
            )
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        # The loop's timers stand still while the machine is suspended.
        self._scheduler.wakeup()

    async def _fire(self, schedule: Schedule) -> None:
        """APScheduler's job. Its clock may differ from the database's by as much as counts as no change."""
        tick = schedule.last_before(self.ticks.clock.now() + timedelta(seconds=_SET_SECONDS))
        for row in self._repositories.get(schedule, ()):
            self._collect(row.id, tick)

    async def _catch_up(self, fresh: Mapping[str, tuple[ScheduledRepository, Schedule]]) -> None:
        now = self.ticks.clock.now()
        latest = await self.ticks.latest(fresh.keys())
        last_ticks: dict[Schedule, datetime] = {}
        for number, schedule in enumerate({schedule for _, schedule in fresh.values()}):
            last_ticks[schedule] = schedule.last_before(now)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for row, schedule in fresh.values():
            if last_ticks[schedule] > max(row.since, latest.get(row.id, row.since)):
                self._collect(row.id, last_ticks[schedule])

    async def _check_clocks(self) -> None:
        """Start over if the database's clock was set, or this machine's, by which APScheduler goes: the next run of the
        jobs may be hours away."""
        await self.ticks.clock.measure()
        elapsed, database, machine = elapsed_seconds(), self.ticks.clock.now(), datetime.now(UTC)
        clocks = database.timestamp() - elapsed, machine.timestamp() - elapsed
        moved = [now - before for now, before in zip(clocks, self._clocks or clocks, strict=True)]
        if self._clocks is None or max(map(abs, moved)) > _SET_SECONDS:
            if self._clocks is not None:
                log.warning("a clock was set", database_seconds=round(moved[0], 1), machine_seconds=round(moved[1], 1))
            self._clocks, self._ahead = clocks, machine - database
            self._start_over()

    def _schedule(self, row: ScheduledRepository) -> Schedule | None:
        try:
            return Schedule.parse(row.cron_expression, row.timezone)
        except ScheduleError as error:
            if (row.id, row.cron_expression) not in self._unreadable:
                self._unreadable.add((row.id, row.cron_expression))
                log.error("a schedule in the database cannot be read", repository=row.name, reason=str(error))
            return None

    def _collect(self, identity: str, tick: datetime) -> None:
        """Ticks of one moment are collected, so that a thousand repositories at the full hour are a few statements."""
        self._due[identity] = max(tick, self._due.get(identity, tick))
        self._is_due.set()

    async def _keep_queueing(self) -> None:
        backoff = Backoff(0.25, _LONGEST_PAUSE_SECONDS)
        trouble, rejected = Trouble("ticks have their database again"), Trouble("ticks are accepted again")
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            due, self._due = self._due, {}
            config = self.config()
            try:
                outcome = await self.ticks.enqueue(
                    due, grace_seconds=config.misfire_grace_seconds, max_attempts=config.max_attempts
                )
            except StoreUnavailable as error:
                trouble.met("ticks wait for the database", str(error), ticks=len(due))
                for identity, tick in due.items():
                    self._collect(identity, tick)
                await backoff.wait()
                continue
            backoff.reset()
            trouble.over()
            self.on_ticks(outcome)
            if outcome.rejected:
                # The database's clock is not where it was thought to be; each rejected tick is collected again.
                self._start_over()
                rejected.met("ticks of the future were rejected", "a clock was set", ticks=outcome.rejected)
            else:
                rejected.over()


def _job_id(schedule: Schedule) -> str:
    return f"{schedule.cron} {schedule.timezone}"
