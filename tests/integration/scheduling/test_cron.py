"""Schedules go by the database's clock, whatever this machine's says and whoever sets either."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from reposync.config.sections import DaemonConfig
from reposync.scheduling import CronScheduler
from reposync.store.ticks import TickOutcome
from tests.fixtures.clocks import DatabaseTime, database_time  # noqa: F401
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.store.conftest import Store


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
        began = store.history.now()
        cron = CronScheduler(store.ticks, DaemonConfig, on_ticks=outcomes.append)
        scheduling = tasks.create_task(cron.run())

        tolerance = timedelta(minutes=1)
        for _ in range(2):
            tick = await ticked(store)
            assert began - tolerance <= tick <= store.history.now() + tolerance
        assert not any(outcome.missed for outcome in outcomes)

        await database_time.set(off + seconds)
        while not timedelta(0) < await ticked(store) - tick - timedelta(seconds=seconds) < timedelta(hours=1):
            pass
        scheduling.cancel()


@pytest.mark.parametrize(
    ("grace_seconds", "expected"), [(86_400.0, TickOutcome(queued=1)), (0.0, TickOutcome(missed=1))]
)
async def test_of_the_ticks_of_a_pause_the_last_one_runs_late_or_is_listed_as_missed(
    database_time: DatabaseTime,  # noqa: F811
    grace_seconds: float,
    expected: TickOutcome,
) -> None:
    outcomes: list[TickOutcome] = []
    config = DaemonConfig(misfire_grace_seconds=grace_seconds)
    async with await database_time.open() as database:
        store = Store(database)
        await store.repository(cron_expression="@hourly")
        assert await store.take() == TickOutcome(first_runs=1)
        await store.ended()
    await database_time.set(7 * 3_600.0)
    async with await database_time.open() as database, asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        store = Store(database)
        cron = CronScheduler(store.ticks, lambda: config, on_ticks=outcomes.append)
        scheduling = tasks.create_task(cron.run())
        while expected not in outcomes:
            await asyncio.sleep(0.05)
        scheduling.cancel()

        last = store.history.now().replace(minute=0, second=0, microsecond=0)
        assert sum(outcomes, TickOutcome()) == expected
        late = [run.scheduled_for for run in await store.history.runs() if run.scheduled_for is not None]
        row = await store.repositories.get("payments")
        missed = [datetime.fromisoformat(tick["scheduled_for"]) for tick in row.missed_ticks]
        assert (late, missed) == (([last], []) if expected.queued else ([], [last]))
