"""Schedules go by the database's clock, whatever this machine's says and whoever sets either."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from reposync.config.sections import DaemonConfig
from reposync.scheduling import CronScheduler
from reposync.store.notifications import Notifications
from reposync.store.ticks import TickOutcome
from tests.fixtures.clocks import DatabaseTime, database_time  # noqa: F401
from tests.integration.store.conftest import Store

PATIENCE_SECONDS = 120.0


async def ticked(store: Store) -> datetime:
    """The tick of the next run that has one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if run := await store.runs.claim("worker-1", 60.0):
                await store.ended(run)
                if run.scheduled_for is not None:
                    return run.scheduled_for
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("off", "seconds"), [(-86_400.0, -7_200.0), (86_400.0, 7_200.0)], ids=["back", "forward"])
async def test_a_pod_whose_clock_is_a_day_off_fires_at_the_right_moments_also_when_the_databases_clock_is_set(
    database_time: DatabaseTime,  # noqa: F811
    off: float,
    seconds: float,
) -> None:
    """`off`: this machine's clock against the database's."""
    outcomes: list[TickOutcome] = []
    await database_time.set(off)
    async with await database_time.open() as database, asyncio.TaskGroup() as tasks:
        store = Store(database)
        await store.repository(cron_expression="@every 1s")
        began = store.runs.now()
        cron = CronScheduler(store.ticks, Notifications(database), DaemonConfig, on_ticks=outcomes.append)
        scheduling = tasks.create_task(cron.run())

        tolerance = timedelta(minutes=1)
        for _ in range(2):
            tick = await ticked(store)
            assert began - tolerance <= tick <= store.runs.now() + tolerance
        assert not any(outcome.rejected or outcome.missed for outcome in outcomes)

        await database_time.set(off + seconds)
        while not timedelta(0) < await ticked(store) - tick - timedelta(seconds=seconds) < timedelta(hours=1):
            pass
        scheduling.cancel()
