"""Clocks that are wrong or are set: time is the database's, and what lies in its future is not believed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from reposync.config.sections import LONGEST_LEASE_SECONDS
from reposync.store.endings import Retry
from reposync.store.people_tables import ENDED_SESSIONS
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, WORKERS
from reposync.store.ticks import TickOutcome
from reposync.store.workers import ALIVE_SECONDS, SESSIONS_KEPT_SECONDS, StoredEndedSessions, Workers
from tests.fixtures.clocks import DatabaseTime, ShiftedClock
from tests.integration.store.conftest import TICK, Store

HOUR = 3600.0
ON_NODE_1 = {"host": "node-1", "version": "1.2.3"}
A_YEAR = timedelta(days=365)


@pytest.fixture
def time(database_time: DatabaseTime) -> DatabaseTime:
    return database_time


@pytest.fixture
async def store(time: DatabaseTime) -> AsyncIterator[Store]:
    async with await time.open() as database:
        yield Store(database)


async def synced(store: Store) -> None:
    run = await store.claimed()
    await store.publishes(run)
    await store.ended(run)


# Ticks -------------------------------------------------------------------------------------------------------------


async def test_a_tick_runs_when_it_comes_and_not_before(store: Store, time: DatabaseTime) -> None:
    tick = (store.history.now() + timedelta(hours=1)).replace(second=0, microsecond=0)
    await store.repository()
    await store.due(tick)

    assert await store.take() == TickOutcome()

    await time.set(HOUR + 60.0)
    assert await store.take() == TickOutcome(queued=1)
    assert (await store.claimed()).scheduled_for == tick


async def test_schedules_go_on_when_the_clock_is_set_back_whatever_waits(store: Store, time: DatabaseTime) -> None:
    names = ("payments", "innocent")
    for name in names:
        await store.repository(name, cron_expression="*/10 * * * *")
    hour = store.history.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)

    async def at(minute: int) -> TickOutcome:
        """The clock is set to a few seconds after that minute of the next hour."""
        await time.set((hour - datetime.now(UTC)).total_seconds() + minute * 60.0 + 5.0)
        await store.database.clock.measure()
        await store.ticks.reschedule()
        return await store.take(grace_seconds=300.0)

    assert await at(1) == TickOutcome(queued=2)
    for minute in (10, 20, 30, 40):
        for _ in names:
            await store.ended()
        assert await at(minute) == TickOutcome(queued=2)
    for _ in names:
        await store.ended()

    assert await at(18) == TickOutcome(), "set back to before a tick"
    waits, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))

    assert await at(20) == TickOutcome(queued=1, joined=1), "it comes again"
    runs = {run.repository: run for run in [await store.ended() for _ in names]}
    assert runs["payments"].id == waits.id
    assert {run.scheduled_for for run in runs.values()} == {hour + timedelta(minutes=20)}
    assert await at(30) == TickOutcome(queued=2)


@pytest.mark.parametrize("wrote", ["the repository's row", "a run that waits"])
async def test_schedules_go_on_after_a_pod_whose_clock_was_ahead_whatever_it_wrote(store: Store, wrote: str) -> None:
    await store.repository()
    waits = wrote == "a run that waits"
    await store.tick(TICK)
    if not waits:
        await synced(store)
    a_year_ahead = store.history.now() + A_YEAR
    minutely = {"cron_expression": "* * * * *", "next_due_at": a_year_ahead, "last_tick_at": a_year_ahead}
    async with store.database.write() as connection:
        await connection.execute(update(REPOSITORIES).values(**minutely))
        if waits:
            await connection.execute(update(RUNS).values(scheduled_for=a_year_ahead))

    await store.ticks.reschedule()
    assert await store.take() == TickOutcome()
    row = await store.repositories.get("payments")
    assert row.next_due_at is not None and row.next_due_at <= store.history.now() + timedelta(minutes=1)

    assert await store.tick(TICK) == (TickOutcome(joined=1) if waits else TickOutcome(queued=1))
    assert (await store.claimed()).scheduled_for == TICK


# The queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["since it was queued", "before its next attempt"])
async def test_what_waited_before_the_clock_went_back_is_due(store: Store, time: DatabaseTime, waits: str) -> None:
    run = await store.queued()
    if waits == "before its next attempt":
        await store.runs.end(
            await store.claimed(), Retry("SOURCE_UNAVAILABLE", "GitLab answered 503.", delay_seconds=600.0)
        )
        assert await store.runs.claim("worker-1", 60.0) is None, "the pause is respected"

    await time.set(-2 * HOUR)

    again = await store.runs.claim("worker-1", 60.0)
    assert again is not None and (again.id, again.waited_seconds) == (run.id, 0.0)


async def test_a_dead_workers_run_goes_on_within_the_longest_lease(store: Store, time: DatabaseTime) -> None:
    run = await store.running(worker="dead")
    await time.set(-2 * HOUR)
    assert await store.runs.claim("worker-2", 60.0) is None, "it may be alive"

    await time.set(-2 * HOUR + LONGEST_LEASE_SECONDS + 1)

    taken_over = await store.runs.claim("worker-2", 60.0)
    assert taken_over is not None and (taken_over.id, taken_over.attempt) == (run.id, 2)


async def test_a_living_worker_keeps_its_run_when_the_clock_goes_back(store: Store, time: DatabaseTime) -> None:
    run = await store.running()
    await time.set(-2 * HOUR)
    assert await store.runs.claim("worker-2", 60.0) is None

    await store.runs.heartbeat(run, 60.0)

    await store.database.clock.measure()
    assert (await store.history.get(run.id)).lease_until <= store.history.now() + timedelta(seconds=61)
    assert await store.runs.claim("worker-2", 60.0) is None


async def test_a_worker_with_a_heartbeat_in_the_future_is_not_alive(store: Store, time: DatabaseTime) -> None:
    workers = Workers(store.database)
    await workers.beat("dead", **ON_NODE_1)
    await workers.beat("living", **ON_NODE_1)

    await time.set(-2 * HOUR)
    await workers.beat("living", **ON_NODE_1)

    assert [each.name for each in await workers.alive()] == ["living"]


async def test_a_group_that_is_made_due_after_the_clock_went_back_is_looked_through_again(
    store: Store, time: DatabaseTime
) -> None:
    groups = store.groups
    await store.put_groups("looked through")
    looked_through = await groups.take(300.0)
    assert looked_through is not None
    await store.put_groups("begun")
    await groups.schedule(looked_through, groups.now() + timedelta(hours=6))
    await time.set(3 * HOUR)
    assert await groups.take(300.0)

    await time.set(-2 * HOUR)

    await groups.make_due()
    taken = [await groups.take(300.0) for _ in range(2)]
    assert {group.key for group in taken if group is not None} == {"looked through", "begun"}


async def test_a_run_of_the_future_is_not_kept_until_then(store: Store, time: DatabaseTime) -> None:
    await time.set(A_YEAR.total_seconds())
    await store.database.clock.measure()
    await store.queued()
    await synced(store)
    await time.set(0)
    await store.database.clock.measure()

    assert await store.history.purge(store.history.now() - timedelta(days=90)) == 0
    (kept,) = await store.history.runs()
    assert max(kept.queued_at, kept.started_at, kept.completed_at) <= store.history.now(), "it counts from now on"
    await time.set(timedelta(days=91).total_seconds())
    await store.database.clock.measure()
    assert await store.history.purge(store.history.now() - timedelta(days=90)) == 1


# This machine's clock ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database_kind", ["postgresql"])  # the users of an SQLite file have one clock
@pytest.mark.parametrize("seconds", [90.0, -7_200.0])
async def test_what_a_pod_with_a_wrong_clock_writes_is_of_the_databases_clock(
    time: DatabaseTime, seconds: float
) -> None:
    async with await time.open() as right, await time.open(ShiftedClock(seconds)) as wrong:
        pod, workers = Store(wrong), Workers(wrong)
        before = right.clock.now()
        await workers.beat("pod-1:7:a", **ON_NODE_1)
        await pod.queued()
        await synced(pod)

        row = await pod.repositories.get("payments")
        (run,) = await pod.history.runs()
        (worker,) = await workers.alive()

        a_bit = timedelta(seconds=1)
        moments = [row.last_sync_at, run.queued_at, run.completed_at, worker.seen_at, wrong.clock.now()]
        assert all(before - a_bit <= moment <= right.clock.now() + a_bit for moment in moments if moment is not None)
        assert worker.clock_skew_seconds == pytest.approx(seconds, abs=5.0)
        assert right.clock.skew_seconds == pytest.approx(0.0, abs=5.0)


# Attempts without an end -------------------------------------------------------------------------------------------


async def test_lost_attempts_are_counted_once_by_the_worker_that_finds_them(store: Store) -> None:
    found: list[Run] = []
    others = Runs(store.database, on_lost=found.append)
    await store.queued()
    for attempt in range(3):
        run = await others.claim(f"dead-{attempt}", 60.0)
        assert run is not None
        await others.heartbeat(run, 60.0, figures=RunFigures(files_processed=7))
        await others.expire(run)

    assert [await others.claim("worker-2", 60.0) for _ in range(2)] == [None, None]

    assert [(lost.id, lost.trigger, lost.all_attempts[-1].files_processed) for lost in found] == [
        (run.id, RunTrigger.COMMAND, 7)
    ] * 3
    assert (await store.history.get(run.id)).error_code == "RUN_ABANDONED"


# Workers and sessions -------------------------------------------------------------------------------------------------


async def alive(store: Store) -> list[str]:
    return [each.name for each in await Workers(store.database).alive()]


async def silent(store: Store, name: str, seconds: float) -> None:
    """The worker was last heard of so long ago."""
    mine = update(WORKERS).where(WORKERS.c.name == name)
    await store.database.change(mine.values(seen_at=store.database.moment(-seconds)))


async def test_a_worker_without_heartbeat_is_not_alive_until_the_next_one(store: Store) -> None:
    workers = Workers(store.database)
    await workers.beat("pod-1:7:a", **ON_NODE_1)
    (joined,) = await workers.alive()
    await silent(store, "pod-1:7:a", ALIVE_SECONDS + 1)
    assert await alive(store) == []

    await workers.beat("pod-1:7:a", **ON_NODE_1)

    (again,) = await workers.alive()
    assert (again.name, again.started_at) == (joined.name, joined.started_at)


async def test_rows_of_dead_workers_are_deleted_by_those_that_live(store: Store) -> None:
    workers = Workers(store.database)
    await workers.beat("pod-1:7:killed", **ON_NODE_1)
    await workers.beat("pod-2:7:late", **ON_NODE_1)
    await silent(store, "pod-1:7:killed", 2 * 3600)
    await silent(store, "pod-2:7:late", 60)

    await workers.beat("pod-3:7:new", **ON_NODE_1)

    assert set(await store.database.scalars(select(WORKERS.c.name))) == {"pod-2:7:late", "pod-3:7:new"}
    await workers.beat("pod-1:7:killed", **ON_NODE_1)
    await workers.leave("pod-2:7:late")
    assert await alive(store) == ["pod-3:7:new", "pod-1:7:killed"], "its machine was in suspend for hours"


async def test_a_session_has_ended_once_it_was_signed_out(store: Store) -> None:
    ended = StoredEndedSessions(lambda: store.database)
    assert not await ended.has_ended("one")
    for _ in range(2):
        await ended.end("one")
        assert await ended.has_ended("one")
    assert not await ended.has_ended("two")


async def test_expired_sessions_are_deleted_when_a_session_ends(store: Store) -> None:
    ended = StoredEndedSessions(lambda: store.database)
    for name, age_seconds in (("old", SESSIONS_KEPT_SECONDS + 60), ("young", SESSIONS_KEPT_SECONDS - 60)):
        await ended.end(name)
        mine = update(ENDED_SESSIONS).where(ENDED_SESSIONS.c.id == name)
        await store.database.change(mine.values(ended_at=store.database.moment(-age_seconds)))

    await ended.end("new")

    assert set(await store.database.scalars(select(ENDED_SESSIONS.c.id))) == {"young", "new"}
