"""Schedules go by the database's clock, whatever this machine's says and whoever sets either."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from reposync.config.sections import DaemonConfig
from reposync.scheduling import CronScheduler
from reposync.store.database import Database
from reposync.store.notifications import Notifications
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunStatus
from reposync.store.ticks import TickOutcome, Ticks
from tests.fixtures.clocks import DatabaseTime, database_time  # noqa: F401
from tests.integration.store.conftest import Store

PATIENCE_SECONDS = 120.0
DAY = 86_400.0


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await found():
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def scheduling(database: Database, outcomes: list[TickOutcome]) -> AsyncIterator[None]:
    cron = CronScheduler(Ticks(database), Notifications(database), DaemonConfig, on_ticks=outcomes.append)
    task = asyncio.create_task(cron.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def executed(runs: Runs) -> Run | None:
    run = await runs.claim("worker-1", 60.0)
    return run and await runs.finish(run, RunStatus.COMPLETED, RunFigures())


@pytest.mark.parametrize("seconds", [-DAY, DAY], ids=["ahead of", "behind"])
async def test_a_pod_whose_clock_is_a_day_off_fires_at_the_right_moments(
    database_time: DatabaseTime,  # noqa: F811
    seconds: float,
) -> None:
    """The parameter: this machine's clock against the database's."""
    outcomes: list[TickOutcome] = []
    await database_time.set(seconds)
    async with await database_time.open() as database:
        await Store(database).repository(cron_expression="@every 1s")
        runs = Runs(database)
        began = runs.now()
        async with scheduling(database, outcomes):

            async def has_ticked() -> bool:
                run = await executed(runs)
                return run is not None and run.scheduled_for is not None

            await until(has_ticked)
            await until(has_ticked)
        ticks = [run.scheduled_for for run in await runs.history() if run.scheduled_for is not None]
        tolerance = timedelta(minutes=1)
        assert all(began - tolerance <= tick <= runs.now() + tolerance for tick in ticks)
        assert not any(outcome.rejected or outcome.missed for outcome in outcomes)


@pytest.mark.parametrize("seconds", [-2 * 3600.0, 2 * 3600.0], ids=["back", "forward"])
async def test_schedules_go_on_when_the_databases_clock_is_set(
    database_time: DatabaseTime,  # noqa: F811
    seconds: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes: list[TickOutcome] = []
    async with await database_time.open() as database:
        await Store(database).repository(cron_expression="@every 1s")
        runs = Runs(database)
        async with scheduling(database, outcomes):
            before: list[Run] = []

            async def has_ticked() -> bool:
                run = await executed(runs)
                if run is not None and run.scheduled_for is not None:
                    before.append(run)
                return bool(before)

            await until(has_ticked)
            await database_time.set(seconds)
            set_to = before[0].scheduled_for + timedelta(seconds=seconds)

            async def has_ticked_since() -> bool:
                run = await executed(runs)
                tick = run and run.scheduled_for
                return tick is not None and timedelta(0) < tick - set_to < timedelta(hours=1)

            await until(has_ticked_since)
