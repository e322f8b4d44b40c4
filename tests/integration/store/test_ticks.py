"""A tick of a schedule: one run however many pods report it, none where it is too late, and the history says which."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from reposync.store.repository import repository_id
from reposync.store.run import RunFigures
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.ticks import ScheduledRepository, TickOutcome, Ticks
from tests.integration.store.conftest import ANY_GRACE_SECONDS, TICK, Store


async def executed(store: Store, status: RunStatus = RunStatus.COMPLETED):
    run = await store.claimed()
    return await store.runs.finish(run, status, RunFigures())


# Once ---------------------------------------------------------------------------------------------------------------


async def test_a_tick_joins_a_click_that_waits_and_is_not_run_again_later(store: Store) -> None:
    clicked = await store.queued()

    assert await store.tick(TICK) == TickOutcome(joined=1)
    joined = await executed(store)
    assert await store.tick(TICK) == TickOutcome(handled=1)

    assert (joined.id, joined.trigger, joined.scheduled_for) == (clicked.id, RunTrigger.COMMAND, TICK)
    assert await store.runs.history() == [joined]


async def test_a_thousand_ticks_of_one_moment_are_a_thousand_runs(store: Store) -> None:
    names = [f"repository-{number}" for number in range(1_000)]
    await store.database_rows(names)
    due = {repository_id(name): TICK for name in names}

    first = await store.ticks.enqueue(due, grace_seconds=ANY_GRACE_SECONDS, max_attempts=3)
    second = await store.ticks.enqueue(due, grace_seconds=ANY_GRACE_SECONDS, max_attempts=3)

    assert (first, second) == (TickOutcome(queued=1_000), TickOutcome(handled=1_000))
    runs = await store.runs.history(limit=1_000)
    assert {run.repository for run in runs} == set(names)
    assert await store.ticks.latest(due) == due


# Too late -----------------------------------------------------------------------------------------------------------


async def test_a_tick_that_comes_too_late_is_not_run_and_is_recorded_as_missed(store: Store) -> None:
    repository = await store.repository()

    assert await store.tick(TICK, grace_seconds=300.0) == TickOutcome(missed=1)

    (missed,) = await store.ticks.missed(repository.id)
    assert missed.scheduled_for == TICK
    assert missed.late_seconds == (missed.noticed_at - TICK).total_seconds()
    assert await store.runs.history() == [], "it is no run"
    assert await store.runs.claim("worker-1", 60.0) is None
    assert await store.tick(TICK, grace_seconds=300.0) == TickOutcome(handled=1), "said once, by whichever pod"


# Whose ticks --------------------------------------------------------------------------------------------------------


async def test_the_schedules_are_those_of_active_repositories_that_have_one(store: Store) -> None:
    scheduled = await store.repository("scheduled", cron_expression="0 3 * * *", timezone="Europe/Zurich")
    await store.repository("without")
    await store.repository("paused", cron_expression="0 3 * * *")
    await store.repositories.pause("paused", "being moved")
    await store.repository("gone", cron_expression="0 3 * * *")
    await store.repositories.deactivate("gone")

    assert await store.ticks.scheduled() == [
        ScheduledRepository(scheduled.id, "scheduled", "0 3 * * *", "Europe/Zurich", scheduled.scheduled_since)
    ]


async def test_ticks_before_a_schedule_was_set_or_its_repository_came_back_are_not_missed(store: Store) -> None:
    await store.repository(cron_expression="0 3 * * *")
    moments = [(await store.ticks.scheduled())[0].since]
    await store.repository(cron_expression="0 4 * * *")
    moments.append((await store.ticks.scheduled())[0].since)
    await store.repository(cron_expression="0 4 * * *", timezone="Europe/Zurich")
    moments.append((await store.ticks.scheduled())[0].since)
    await store.repositories.deactivate("payments")
    await store.repository(cron_expression="0 4 * * *", timezone="Europe/Zurich")
    moments.append((await store.ticks.scheduled())[0].since)
    await store.repository(cron_expression="0 4 * * *", timezone="Europe/Zurich", collection="other")
    assert (await store.ticks.scheduled())[0].since == moments[-1], "the schedule is as it was"

    assert moments == sorted(set(moments))


# The first run ------------------------------------------------------------------------------------------------------


async def test_a_new_repository_is_synced_before_its_first_tick_however_many_pods_see_it(
    store: Store, open_database
) -> None:
    identities = [(await store.repository(name)).id for name in ("a", "b", "c")]
    pods = [Ticks(await open_database()) for _ in range(4)]

    counts = await asyncio.gather(*(pod.first_runs(identities, max_attempts=5) for pod in pods for _ in range(2)))

    assert sum(counts) == 3
    runs = await store.runs.history()
    assert {(run.repository, run.trigger, run.scheduled_for) for run in runs} == {
        (name, RunTrigger.SCHEDULE, None) for name in ("a", "b", "c")
    }
    assert {run.max_attempts for run in runs} == {5}


async def test_who_ever_ran_or_waits_is_no_beginner(store: Store) -> None:
    run = await store.running("forgotten")
    await store.publishes(run)
    await store.runs.finish(run, RunStatus.COMPLETED, RunFigures())
    assert await store.runs.purge(datetime.now(UTC) + timedelta(days=1)) == 1
    ran = await store.queued("ran")
    await executed(store)
    failed = await store.queued("failed")
    await executed(store, RunStatus.FAILED)
    cancelled = await store.queued("cancelled")
    await store.runs.request_cancel(cancelled.id)
    await store.queued("queued")
    identities = [each.repository_id for each in (run, ran, failed, cancelled)] + [repository_id("queued")]

    assert await store.ticks.first_runs(identities) == 0
    await store.repositories.remove("ran")
    await store.repository("ran")
    assert await store.ticks.first_runs(identities) == 1, "what came back is new"
