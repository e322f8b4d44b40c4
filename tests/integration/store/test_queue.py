"""What a worker and a person may count on when they request, claim, hand back, withdraw and end runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update

from reposync.catalog.targets import request_removal
from reposync.errors import (
    LeaseLost,
    RepositoryNotFound,
    RunNotFound,
    SourceUnavailable,
    StoreUnavailable,
    UsageError,
)
from reposync.store.columns import metadata
from reposync.store.manifest import ManifestRow
from reposync.store.run import Released, Run, RunFigures, RunProblem
from reposync.store.run_state import MAX_ATTEMPTS
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import ATTEMPTS, RUNS
from tests.integration.store.conftest import TICK, Store

# Asking for a run --------------------------------------------------------------------------------------------------


async def test_a_click_does_not_wait_for_the_pause_before_the_next_attempt(store: Store) -> None:
    run = await store.running()
    await store.runs.retry_later(run, 3600.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")
    assert await store.runs.claim("worker-1", 60.0) is None

    clicked, created = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (clicked.id, created) == (run.id, False)
    assert (await store.runs.claim("worker-1", 60.0)).id == run.id


# Claiming ----------------------------------------------------------------------------------------------------------


async def test_a_person_goes_before_a_push_and_a_push_before_the_clock_and_among_equals_the_oldest(
    store: Store,
) -> None:
    for name, trigger in (("tick", RunTrigger.SCHEDULE), ("push", RunTrigger.WEBHOOK), ("click", RunTrigger.HTTP)):
        await store.queued(name, trigger)
        await store.queued(f"{name} again", trigger)

    order = [(await store.runs.claim("worker-1", 60.0)).repository for _ in range(6)]

    assert order == ["click", "click again", "push", "push again", "tick", "tick again"]


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.BLOCKED])
async def test_what_a_person_sends_back_goes_before_pushes(store: Store, status: RunStatus) -> None:
    await store.ticked()
    over = await store.ended(status=status)
    await store.queued("pushed", RunTrigger.WEBHOOK)

    await (store.runs.retry if status is RunStatus.FAILED else store.runs.approve)(over.id)

    assert (await store.claimed()).id == over.id


async def test_the_run_of_a_dead_worker_goes_on_before_those_that_wait(store: Store) -> None:
    dead = await store.running("dead", trigger=RunTrigger.SCHEDULE, lease_seconds=-1.0)
    await store.queued("clicked", RunTrigger.HTTP)

    assert (await store.claimed("worker-2")).id == dead.id


async def test_the_next_run_starts_at_once_when_the_one_before_killed_its_last_worker(store: Store) -> None:
    await store.running(lease_seconds=-1.0, max_attempts=1)
    queued, _ = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (await store.runs.claim("worker-2", 60.0, run_id=queued.id)).id == queued.id


async def test_two_pods_share_the_queue_without_a_repetition(store: Store, open_database) -> None:
    queued = [(await store.queued(f"repository-{number}")).id for number in range(20)]
    claimed: list[str] = []

    async def claim(pod: Store) -> None:
        while run := await pod.runs.claim("worker-1", 60.0):
            claimed.append(run.id)

    pods = [Store(await open_database()) for _ in range(3)]
    await asyncio.gather(*map(claim, pods))

    assert sorted(claimed) == sorted(queued)


# Ends --------------------------------------------------------------------------------------------------------------


async def test_saying_twice_that_a_run_is_finished_changes_nothing(store: Store) -> None:
    run = await store.running()
    once = await store.runs.finish(run, RunStatus.COMPLETED, RunFigures(files_processed=3))

    assert await store.runs.finish(run, RunStatus.COMPLETED, RunFigures()) == once
    with pytest.raises(LeaseLost):
        await store.runs.finish(run, RunStatus.FAILED, RunFigures())
    assert await store.runs.request_cancel(run.id) == once


@pytest.mark.parametrize("how", ["fails", "stops"])
async def test_a_running_run_learns_of_its_cancellation_and_does_not_wait_again(store: Store, how: str) -> None:
    run = await store.running()

    assert (await store.runs.request_cancel(run.id)).status is RunStatus.RUNNING

    assert await store.runs.heartbeat(run, 60.0)
    if how == "fails":
        after = await store.runs.retry_later(run, 1.0, "SOURCE_UNAVAILABLE", "503")
    else:
        after = await store.runs.release(run)
    assert after.status is RunStatus.CANCELLED


async def test_a_run_that_is_tried_again_has_as_many_attempts_as_it_is_given(store: Store) -> None:
    run = await store.running()
    await store.ended(run, RunStatus.FAILED)

    assert (await store.runs.retry(run.id)).max_attempts == 1 + MAX_ATTEMPTS
    await store.ended(await store.runs.claim("worker-1", 60.0), RunStatus.FAILED)
    assert (await store.runs.retry(run.id, max_attempts=5)).max_attempts == 2 + 5
    await store.ended(await store.runs.claim("worker-1", 60.0), RunStatus.BLOCKED)
    assert (await store.runs.approve(run.id, max_attempts=7)).max_attempts == 3 + 7


async def test_only_what_failed_or_was_cancelled_is_tried_again_and_only_what_is_blocked_is_approved(
    store: Store,
) -> None:
    run = await store.queued()
    for state in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.COMPLETED):
        if state is RunStatus.RUNNING:
            run = await store.runs.claim("worker-1", 60.0)
        elif state is RunStatus.COMPLETED:
            run = await store.ended(run)
        with pytest.raises(UsageError, match=f"is {state}, and only a failed or cancelled"):
            await store.runs.retry(run.id)
        with pytest.raises(UsageError, match=f"is {state}"):
            await store.runs.approve(run.id)
    blocked = await store.running("other")
    await store.ended(blocked, RunStatus.BLOCKED)
    with pytest.raises(UsageError, match="is blocked"):
        await store.runs.retry(blocked.id)
    failed = await store.ended(await store.running("removed"), RunStatus.FAILED)
    await store.repositories.remove("removed")
    for change in (store.runs.retry, store.runs.approve):
        with pytest.raises(RunNotFound):
            await change("no-such-run")
        with pytest.raises(RepositoryNotFound, match="'removed'"):
            await change(failed.id)

    assert (await store.runs.get(run.id)) == run


async def test_others_wait_where_a_run_of_another_repository_could_be_executed_now(store: Store) -> None:
    run = await store.running("huge")
    assert not await store.runs.others_wait(run)

    await store.runs.enqueue("huge", RunTrigger.HTTP)
    assert not await store.runs.others_wait(run), "its own next one"
    later = await store.running("later")
    await store.runs.enqueue("later", RunTrigger.HTTP)
    assert not await store.runs.others_wait(run), "another one that is busy"
    await store.runs.retry_later(later, 3600.0, "SOURCE_UNAVAILABLE", "503")
    assert await store.runs.others_wait(run), "the one that was queued behind it"
    await store.runs.claim("worker-2", 60.0)
    assert not await store.runs.others_wait(run), "one that is not due"

    await store.queued("small")
    assert await store.runs.others_wait(run)


# The queue as a whole ----------------------------------------------------------------------------------------------


async def test_the_age_of_the_queue_is_that_of_the_run_that_waits_longest_also_if_a_server_asks_for_that(
    store: Store,
) -> None:
    assert (await store.runs.queue()).oldest_seconds == 0.0
    old = await store.running("old")
    await store.runs.release(old, how=Released(delay_seconds=-500.0))
    await store.queued("new")

    assert 500.0 <= (await store.runs.queue()).oldest_seconds < 600.0

    asked = SourceUnavailable("The server asks to wait.", retry_after_seconds=3600.0)
    await store.runs.release(await store.running("asked"), how=Released(delay_seconds=3600.0, reason=asked))
    ages = update(ATTEMPTS).where(ATTEMPTS.c.error_code == asked.code)
    await store.database.change(ages.values(ended_at=store.database.moment(-2000.0)))

    assert 2000.0 <= (await store.runs.queue()).oldest_seconds < 2100.0
    assert [run.repository for run in await store.runs.long_waits(300.0)] == ["asked"]
    assert await store.runs.long_waits(6000.0) == []


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.RETRYING])
async def test_a_pause_of_ten_years_that_an_earlier_program_wrote_ends_after_the_longest_pause(
    store: Store, status: RunStatus
) -> None:
    run = await store.queued("payments")
    of_it, ten_years = update(RUNS).where(RUNS.c.id == run.id), store.database.moment(315_360_000.0)
    await store.database.change(of_it.values(status=status, not_before=ten_years))

    assert await store.runs.claim("worker-1", 60.0) is None

    shortened = await store.runs.get(run.id)
    longest = 3600.0 if status is RunStatus.QUEUED else 86_400.0
    assert shortened.next_attempt_at is not None
    assert shortened.next_attempt_at <= store.runs.now() + timedelta(seconds=longest + 1)


MINE = "11111111-1111-4111-8111-111111111111"


async def clicked(store: Store, asked_by: str = "token 1", **asked: Any) -> Run:
    run, _ = await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by=asked_by, **asked)
    return run


async def test_the_same_request_of_the_same_client_is_no_further_one(store: Store) -> None:
    await store.repository()
    run = await clicked(store)
    again = [await clicked(store), await clicked(store, "token 2"), await clicked(store, full=True)]

    assert {each.id for each in again} == {run.id}
    assert (again[-1].full, again[0]) == (True, run)
    requests = (await store.runs.requests([run.id]))[run.id]
    assert [(each.asked_by, each.full) for each in requests] == [
        ("token 1", False),
        ("token 2", False),
        ("token 1", True),
    ]
    await store.runs.request_cancel(run.id, by="zoe@laptop")
    assert {each.withdrawn_by for each in (await store.runs.requests([run.id]))[run.id]} == {"zoe@laptop"}


# Taking it back ----------------------------------------------------------------------------------------------------


async def test_a_pause_withdraws_ticks_and_pushes_and_no_request_of_a_person(store: Store) -> None:
    await store.ticked()
    run, _ = await store.runs.enqueue("payments", RunTrigger.COMMAND, full=True, approved=True)
    await store.runs.enqueue("payments", RunTrigger.WEBHOOK)

    await store.repositories.pause("payments", "being moved", by="token 1")

    left = await store.runs.get(run.id)
    assert (left.status, left.trigger, left.full, left.approved) == (RunStatus.QUEUED, RunTrigger.COMMAND, True, True)
    withdrawn = {each.trigger: each.withdrawn_by for each in (await store.runs.requests([run.id]))[run.id]}
    assert withdrawn == {"schedule": "token 1", "command": None, "webhook": "token 1"}


async def test_a_removal_withdraws_all_other_requests(store: Store) -> None:
    running = await store.running()
    await store.tick(TICK)
    waiting = await clicked(store, full=True, repair=True)

    removal, is_new = await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by="token 2", removal=True)

    assert (removal.id, is_new) == (waiting.id, False)
    assert (removal.removal, removal.full, removal.repair) == (True, False, False)
    row = await store.repositories.get("payments")
    assert (row.is_active, row.paused_reason) == (False, "It is being removed."), "no tick comes in between"
    assert await store.runs.heartbeat(running, 60.0)
    again, _ = await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by="token 2", removal=True)
    assert (again.id, again.status, again.removal) == (waiting.id, RunStatus.QUEUED, True)
    repaired = await clicked(store, repair=True)
    assert (repaired.id, repaired.removal, repaired.repair) == (waiting.id, True, False), "it stays a removal"


async def test_a_removal_that_could_not_be_queued_leaves_the_repository_as_it_is(store: Store) -> None:
    await store.repository(origin="command")
    async with store.database.write() as connection:
        await connection.execute(text("ALTER TABLE run_requests RENAME TO lost"))
    try:
        with pytest.raises(StoreUnavailable):
            await request_removal(store.repositories, store.runs, "payments", RunTrigger.HTTP)
    finally:
        async with store.database.write() as connection:
            await connection.execute(text("ALTER TABLE lost RENAME TO run_requests"))

    row = await store.repositories.get("payments")
    assert (row.is_active, row.paused_reason) == (True, None)


# Failures at a command ---------------------------------------------------------------------------------------------


async def test_a_source_that_one_machine_cannot_reach_is_no_end_of_a_pushed_run(store: Store) -> None:
    pushed = await store.queued(trigger=RunTrigger.WEBHOOK)
    for number in range(5):
        mine = f"{MINE[:-1]}{number}"
        await store.runs.enqueue("payments", RunTrigger.COMMAND, request_id=mine)
        run = await store.runs.claim("laptop", 60.0)
        back = await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "no route", final_unless_others=mine)
        await store.runs.withdraw(mine, by="laptop")
        assert (back.id, back.status) == (pushed.id, RunStatus.RETRYING)

    run = await store.runs.claim("daemon", 60.0)
    assert run.failures == 1, "those attempts do not count"
    assert (await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "503")).status is RunStatus.RETRYING


# Attempts and waiting ----------------------------------------------------------------------------------------------


async def test_hand_backs_do_not_raise_the_number_of_failures(store: Store) -> None:
    run = await store.running()
    for _ in range(9):
        await store.runs.release(run)
        run = await store.runs.claim("worker-1", 60.0)
    assert (run.attempt, run.failures, run.max_attempts) == (10, 1, 12)

    again = await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "503")

    assert again.status is RunStatus.RETRYING
    assert (await store.runs.claim("worker-1", 60.0)).failures == 2


# The fence: a worker whose run was taken over, or whose repository was removed ----------------------------------------


FILE = ManifestRow("a.py", "a" * 40, 0o100644, 10, 1, None, "python", 1)
LATE = RunFigures(files_processed=7)


async def everything(store: Store) -> dict[str, list[Any]]:
    async with store.database.read() as connection:
        return {
            table.name: sorted((await connection.execute(select(table))).all(), key=repr)
            for table in metadata.sorted_tables
        }


@pytest.mark.parametrize("successor", ["worker-1", "worker-2"])
async def test_an_attempt_that_was_taken_over_changes_nothing(store: Store, successor: str) -> None:
    stale = await store.running(worker="worker-1")
    first, second = await store.replaced(stale)
    await store.manifests.record(stale, first.id, [FILE])
    read = await store.repositories.get("payments")
    await store.taken_over(stale, worker=successor)
    before = await everything(store)

    for write in (
        store.runs.heartbeat(stale, 60.0),
        store.runs.heartbeat(stale, 60.0, {"stage": "late"}, LATE),
        store.runs.report_progress(stale, {"stage": "late"}),
        store.runs.finish(stale, RunStatus.COMPLETED, LATE),
        store.runs.finish(stale, RunStatus.CANCELLED, LATE, followed_up=True),
        store.runs.retry_later(stale, 1.0, "SOURCE_UNAVAILABLE", "late", LATE),
        store.runs.release(stale, LATE),
        store.runs.record_brake(stale, {"commit": "c" * 40}),
        store.runs.add_problems(stale, [RunProblem("a.py", "failed", "late")]),
        store.runs.forget_problems(stale, "failed"),
        store.manifests.record(stale, first.id, [FILE]),
        store.manifests.forget(stale, first.id, ["a.py"]),
        store.manifests.clear(stale, first.id),
        store.building(stale),
        store.versions.set_columns(stale, second.id, links="late"),
        store.versions.build_again(stale, first),
        store.versions.begin_epoch(stale, second, identity="late"),
        store.publishes(stale, second, read=read, commit="e" * 40),
        store.publishes(stale, first, read=read, commit="e" * 40),
        store.versions.remove(stale, first.id),
        store.repositories.remove("payments", by=stale),
    ):
        with pytest.raises(LeaseLost, match="attempt 1 of worker-1"):
            await write
    await store.runs.expire(stale)

    assert await everything(store) == before


async def test_a_worker_whose_repository_was_removed_finds_its_lease_lost(store: Store) -> None:
    run = await store.running()
    await store.repositories.remove("payments")
    before = await everything(store)

    for write in (
        store.runs.heartbeat(run, 60.0),
        store.runs.release(run),
        store.runs.retry_later(run, 1.0, "SOURCE_UNAVAILABLE", "503"),
        store.runs.finish(run, RunStatus.COMPLETED, RunFigures()),
        store.manifests.record(run, run.repository_id, [FILE]),
    ):
        with pytest.raises(LeaseLost):
            await write

    assert await everything(store) == before
