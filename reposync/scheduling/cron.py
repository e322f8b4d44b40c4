"""From schedules to queued runs. Every pod does this for every repository; the database makes one run of a tick."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from apscheduler.executors.base import BaseExecutor  # type: ignore[import-untyped]
from apscheduler.job import Job  # type: ignore[import-untyped]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]
from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]

from reposync.clock import elapsed_seconds
from reposync.config.daemon import DaemonConfig
from reposync.config.schedule import Schedule, ScheduleError
from reposync.errors import StoreUnavailable
from reposync.store.database import REGISTRATIONS
from reposync.store.news import News
from reposync.store.ticks import ScheduledRepository, TickOutcome, Ticks
from reposync.supervision import unending
from reposync.telemetry.trouble import Trouble

log = structlog.get_logger(__name__)

# How long a change of registrations may stay unnoticed where no news of it come.
REFRESH_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 10.0
# A clock that moved by more against elapsed time was set.
_SET_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Entry:
    cron_expression: str
    timezone: str


class ShiftedTrigger(BaseTrigger):  # type: ignore[misc]
    """Ticks are moments of the database's clock. APScheduler goes by this machine's, which is `ahead` of it."""

    def __init__(self, schedule: Schedule, ahead: timedelta) -> None:
        self._trigger = schedule.trigger()
        self.ahead = ahead

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        previous = previous_fire_time and previous_fire_time - self.ahead
        tick: datetime = self._trigger.get_next_fire_time(previous, now - self.ahead)
        return tick.astimezone(UTC) + self.ahead


class TickExecutor(BaseExecutor):  # type: ignore[misc]
    """APScheduler's way to be told which tick it is: a job itself is called without its time. Ticks of one moment come
    one after the other and are collected, so that a thousand repositories at the full hour are a few statements."""

    def __init__(self, collect: Callable[[str, datetime], None]) -> None:
        super().__init__()
        self._collect = collect

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        self._collect(job.id, run_times[-1].astimezone(UTC) - job.trigger.ahead)
        # Not at once: the caller counts the job as running only after this.
        asyncio.get_running_loop().call_soon(self._run_job_success, job.id, [])


class CronScheduler:
    """`run` until cancelled, and again if it failed. The schedules are those of the database's active repositories, and
    so is the time."""

    def __init__(
        self,
        ticks: Ticks,
        news: News,
        config: Callable[[], DaemonConfig],
        *,
        on_ticks: Callable[[TickOutcome], None],
    ) -> None:
        self._ticks = ticks
        self._news = news
        self._config = config
        self._on_ticks = on_ticks
        self._due: dict[str, datetime] = {}
        self._is_due = asyncio.Event()
        self._entries: dict[str, _Entry] = {}
        self._clocks: tuple[float, float] | None = None
        self._ahead = timedelta(0)
        self._rejected = False
        self._scheduler = AsyncIOScheduler(
            executors={"default": TickExecutor(self._collect)},
            timezone=UTC,
            # How late a tick is, and whether it still counts, is for the database's clock to say.
            job_defaults={"coalesce": True, "max_instances": 1_000, "misfire_grace_time": None},
        )

    async def run(self) -> None:
        # What an earlier call left undone is caught up, as after a restart of the process.
        self._entries.clear()
        self._scheduler.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(unending(self._keep_current()), name="schedules")
                tasks.create_task(unending(self._keep_queueing()), name="ticks")
        finally:
            self._scheduler.shutdown(wait=False)

    async def _keep_current(self) -> None:
        pause = 0.5
        while True:
            try:
                await self._refresh()
            except StoreUnavailable:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            pause = 0.5
            await self._news.wait(REGISTRATIONS, REFRESH_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _refresh(self) -> None:
        await self._look_at_clocks()
        rows = {row.id: row for row in await self._ticks.scheduled()}
        for gone in self._entries.keys() - rows.keys():
            if self._scheduler.get_job(gone) is not None:
                self._scheduler.remove_job(gone)
            del self._entries[gone]
        # The loop's timers stand still while the machine is suspended.
        self._scheduler.wakeup()
        fresh = [row for row in rows.values() if self._entries.get(row.id) != _entry(row)]
        if not fresh:
            return
        # The order matters: first the job, then the question what it missed, so that no tick falls between the two.
        schedules: dict[str, Schedule] = {}
        for page in _pages(fresh):
            self._scheduler.pause()
            schedules |= {row.id: schedule for row in page if (schedule := self._schedule(row)) is not None}
            self._scheduler.resume()
            await asyncio.sleep(0)
        latest = await self._ticks.latest(schedules.keys())
        for page in _pages(fresh):
            self._catch_up(page, schedules, latest)
            await asyncio.sleep(0)
        await self._ticks.first_runs(schedules.keys(), max_attempts=self._config().max_attempts)
        self._entries |= {row.id: _entry(row) for row in fresh}

    def _catch_up(
        self,
        rows: list[ScheduledRepository],
        schedules: Mapping[str, Schedule],
        latest: Mapping[str, datetime],
    ) -> None:
        now = self._ticks.clock.now()
        for row in rows:
            if schedule := schedules.get(row.id):
                missed = schedule.last_before(now, max(row.since, latest.get(row.id, row.since)))
                if missed is not None:
                    self._collect(row.id, missed)

    async def _look_at_clocks(self) -> None:
        """If the database's clock was set, or the one that APScheduler goes by, every job is made anew: the next run of
        those that there are may be hours away."""
        await self._ticks.clock.measure()
        elapsed, database, machine = elapsed_seconds(), self._ticks.clock.now(), datetime.now(UTC)
        clocks = database.timestamp() - elapsed, machine.timestamp() - elapsed
        moved = [now - before for now, before in zip(clocks, self._clocks or clocks, strict=True)]
        if self._clocks is None or max(map(abs, moved)) > _SET_SECONDS:
            if self._clocks is not None:
                log.warning("a clock was set", database_seconds=round(moved[0], 1), machine_seconds=round(moved[1], 1))
            self._clocks, self._ahead = clocks, machine - database
            self._entries.clear()

    def _schedule(self, row: ScheduledRepository) -> Schedule | None:
        try:
            schedule = Schedule.parse(row.cron_expression, row.timezone)
        except ScheduleError as error:
            log.error("a schedule in the database cannot be read", repository=row.name, reason=str(error))
            return None
        trigger = ShiftedTrigger(schedule, self._ahead)
        self._scheduler.add_job(_never_called, trigger, id=row.id, name=row.name, replace_existing=True)
        return schedule

    def _collect(self, identity: str, tick: datetime) -> None:
        self._due[identity] = max(tick, self._due.get(identity, tick))
        self._is_due.set()

    async def _keep_queueing(self) -> None:
        pause = 0.25
        trouble = Trouble("ticks have their database again")
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            due, self._due = self._due, {}
            config = self._config()
            try:
                outcome = await self._ticks.enqueue(
                    due, grace_seconds=config.misfire_grace_seconds, max_attempts=config.max_attempts
                )
            except StoreUnavailable as error:
                trouble.met("ticks wait for the database", str(error), ticks=len(due))
                for identity, tick in due.items():
                    self._collect(identity, tick)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            pause = 0.25
            trouble.over()
            self._on_ticks(outcome)
            self._note_rejected(outcome)

    def _note_rejected(self, outcome: TickOutcome) -> None:
        """The database's clock is not where it was thought to be; each tick comes again."""
        if outcome.rejected:
            self._entries.clear()
        if bool(outcome.rejected) != self._rejected:
            self._rejected = not self._rejected
            if self._rejected:
                log.warning("ticks of the future were rejected", ticks=outcome.rejected)
            else:
                log.info("ticks are accepted again")


def _entry(row: ScheduledRepository) -> _Entry:
    return _Entry(row.cron_expression, row.timezone)


def _pages(rows: list[ScheduledRepository]) -> list[list[ScheduledRepository]]:
    """Some milliseconds of work each: the event loop has other things to do."""
    return [rows[start : start + 50] for start in range(0, len(rows), 50)]


def _never_called() -> Any:
    raise AssertionError("the executor collects ticks, and calls nothing")
