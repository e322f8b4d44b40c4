"""At most one run of a repository waits for a person, however often it stops, and none when there is nothing left to
decide."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reposync.store.run import Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import REQUESTS, RUNS
from tests.integration.store.conftest import ON_SQLITE, TICK, Store

pytestmark = ON_SQLITE


def brake(lost: int) -> dict[str, Any]:
    return {"commit": "c" * 40, "planned": {"vanished": lost}, "losses": {"vanished": lost}, "indexed": 900}


async def stops(store: Store, lost: int = 812, worker: str = "worker-1") -> Run:
    """The run that waits meets the deletion brake."""
    run = await store.claimed(worker)
    said = "DELETION_BLOCKED", f"{lost} of 900 files would be lost."
    return await store.runs.finish(run, RunStatus.BLOCKED, RunFigures(), *said, brake=brake(lost))


async def completes(store: Store) -> Run:
    run = await store.claimed()
    return await store.runs.finish(run, RunStatus.COMPLETED, RunFigures())


async def blocked_runs(store: Store) -> list[Run]:
    return await store.runs.history(status=RunStatus.BLOCKED)


async def live(store: Store, run: Run) -> list[tuple[str, str]]:
    requests = (await store.runs.requests([run.id])).get(run.id, [])
    return [(each.trigger, each.asked_by) for each in requests if each.is_live]


async def test_ticks_against_the_brake_are_one_blocked_run_and_none_after_its_approval(store: Store) -> None:
    await store.repository()
    for number in range(48):
        await store.tick(TICK + number * timedelta(minutes=30))
        await stops(store, 800 + number)

    (waits,) = await blocked_runs(store)
    assert (await store.runs.queue()).counts == {RunStatus.BLOCKED: 1}
    assert (waits.brake, waits.error_message) == (brake(847), "847 of 900 files would be lost."), "the latest stop"
    await store.runs.approve(waits.id)
    done = await completes(store)

    assert done.id == waits.id
    assert await blocked_runs(store) == []
    assert (await store.runs.queue()).counts == {}


async def test_a_run_that_stops_beside_a_blocked_one_names_it_and_gives_it_its_requests(store: Store) -> None:
    await store.ticked()
    first = await stops(store, 700)
    await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by="token 1", full=True)
    second = await stops(store, 812)

    assert (second.status, second.error_code) == (RunStatus.CANCELLED, "DELETION_BLOCKED")
    assert second.error_message is not None and f"Run {first.id} waits" in second.error_message
    (waits,) = await blocked_runs(store)
    assert (waits.id, waits.full, waits.approved) == (first.id, True, False)
    assert await live(store, waits) == [("schedule", "schedule"), ("http", "token 1")]
    assert (await store.runs.askers([second.id]))[second.id] == ["token 1"], "the history still says who asked"
    assert await live(store, second) == []


async def test_a_completed_run_closes_the_blocked_one_and_says_so(store: Store) -> None:
    await store.ticked()
    waits = await stops(store)
    await store.tick(TICK + timedelta(minutes=30))
    done = await completes(store)

    closed = await store.runs.get(waits.id)
    assert (closed.status, closed.error_code) == (RunStatus.CANCELLED, "SUPERSEDED")
    assert closed.error_message is not None and done.id in closed.error_message
    assert (await store.runs.queue()).counts == {}


@pytest.mark.parametrize("asked", [{"full": True}, {"repair": True}])
async def test_what_a_completed_run_did_not_do_is_queued_again(store: Store, asked: dict[str, bool]) -> None:
    await store.queued(trigger=RunTrigger.COMMAND, **asked)
    waits = await stops(store)
    await store.tick(TICK)
    await completes(store)

    again = await store.runs.get(waits.id)
    assert (again.status, again.brake, again.error_code) == (RunStatus.QUEUED, None, None)
    assert (again.full, again.repair) == (asked.get("full", False), asked.get("repair", False))


async def test_blocked_runs_that_an_earlier_program_left_become_one(store: Store) -> None:
    await store.repository()
    for number in range(3):
        await store.tick(TICK + number * timedelta(minutes=30))
        run = await store.runs.claim("worker-1", 60.0)
        async with store.database.write() as connection:
            await connection.execute(REQUESTS.delete())
            gone = RUNS.update().where(RUNS.c.id == run.id)
            await connection.execute(gone.values(status="blocked", completed_at=run.started_at, full=number == 1))
    await store.tick(TICK + timedelta(hours=3))
    await stops(store)

    (waits,) = await blocked_runs(store)
    assert waits.full, "what one of them was to do"


async def test_an_approval_is_of_what_the_run_stopped_at_and_says_whose_it_is(store: Store) -> None:
    await store.ticked()
    waits = await stops(store, 700)

    approved = await store.runs.approve(waits.id, by="zoe@laptop")

    assert (approved.status, approved.approved, approved.brake) == (RunStatus.QUEUED, True, brake(700))
    assert (approved.error_code, approved.error_message) == (None, None)
    request = (await store.runs.requests([waits.id]))[waits.id][-1]
    assert (request.asked_by, request.approval) == ("zoe@laptop", brake(700))
    worse = await stops(store, 812)
    assert (worse.id, worse.status, worse.approved, worse.brake) == (waits.id, RunStatus.BLOCKED, False, brake(812))


async def test_an_approved_run_is_not_cancelled_by_what_was_asked_of_it_before(store: Store) -> None:
    await store.ticked()
    waits = await stops(store)
    async with store.database.write() as connection:  # as an earlier program left it
        await connection.execute(RUNS.update().values(cancel_requested=True))

    await store.runs.approve(waits.id)

    run = await store.runs.claim("worker-1", 60.0)
    assert not (await store.runs.heartbeat(run, 60.0)).cancel_requested


async def test_saying_twice_that_a_run_stopped_beside_a_blocked_one_changes_nothing(store: Store) -> None:
    await store.ticked()
    await stops(store)
    await store.tick(TICK + timedelta(minutes=30))
    run = await store.runs.claim("worker-1", 60.0)
    once = await store.runs.finish(run, RunStatus.BLOCKED, RunFigures(), "DELETION_BLOCKED", "812", brake=brake(812))

    twice = await store.runs.finish(run, RunStatus.BLOCKED, RunFigures(), "DELETION_BLOCKED", "812", brake=brake(812))

    assert twice == once


async def test_a_run_of_a_tick_that_was_overtaken_is_followed_by_one_for_that_tick(store: Store) -> None:
    await store.ticked()
    run = await store.runs.claim("worker-1", 60.0)

    await store.runs.finish(run, RunStatus.CANCELLED, RunFigures(), "SUPERSEDED", "anew", followed_up=True)

    (follower,) = await store.runs.active(run.repository_id)
    assert await live(store, follower) == [("schedule", "schedule")]
    assert (await store.tick(TICK)).handled == 1
