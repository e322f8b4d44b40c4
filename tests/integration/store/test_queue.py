"""What a worker and a person may count on when they request, claim, hand back, cancel and end runs."""

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
from reposync.store.endings import STOPPING, YIELDING, Block, Fail, Finish, HandBack, Retry
from reposync.store.manifest import ManifestRow
from reposync.store.run import IN_ADVANCE, MAX_ATTEMPTS, Ask, Run, RunFigures, RunProblem
from reposync.store.run_state import MAX_REQUESTS
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import RUNS
from reposync.store.ticks import TickOutcome
from tests.integration.store.conftest import TICK, Store

# Asking for a run --------------------------------------------------------------------------------------------------


async def test_a_click_does_not_wait_for_the_pause_before_the_next_attempt(store: Store) -> None:
    run = await store.running()
    await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "GitLab answered 503.", delay_seconds=3600.0))
    assert await store.runs.claim("worker-1", 60.0) is None

    clicked, created = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))

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

    await (store.runs.retry if status is RunStatus.FAILED else store.runs.approve)(over.id, Ask(RunTrigger.COMMAND))

    assert (await store.claimed()).id == over.id


async def test_the_run_of_a_dead_worker_goes_on_before_those_that_wait(store: Store) -> None:
    dead = await store.running("dead", trigger=RunTrigger.SCHEDULE, lease_seconds=-1.0)
    await store.queued("clicked", RunTrigger.HTTP)

    assert (await store.claimed("worker-2")).id == dead.id


async def test_the_next_run_starts_at_once_when_the_one_before_killed_its_last_worker(store: Store) -> None:
    await store.running(lease_seconds=-1.0, max_attempts=1)
    queued, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))

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
    once = await store.runs.end(run, Finish(), RunFigures(files_processed=3))

    for again in (Finish(), Fail()):
        assert await store.runs.end(run, again, RunFigures()) == once
    assert await store.runs.cancel(run.id) == once


@pytest.mark.parametrize("how", ["fails", "stops"])
async def test_a_running_run_learns_of_its_cancellation_and_does_not_wait_again(store: Store, how: str) -> None:
    run = await store.running()

    assert (await store.runs.cancel(run.id)).status is RunStatus.RUNNING

    assert await store.runs.heartbeat(run, 60.0)
    if how == "fails":
        after = await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=1.0))
    else:
        after = await store.runs.end(run, STOPPING)
    assert after.status is RunStatus.CANCELLED


async def test_a_run_that_is_tried_again_has_as_many_attempts_as_it_is_given(store: Store) -> None:
    run = await store.running()
    await store.ended(run, RunStatus.FAILED)

    assert (await store.runs.retry(run.id, Ask(RunTrigger.COMMAND))).max_attempts == 1 + MAX_ATTEMPTS
    await store.ended(await store.runs.claim("worker-1", 60.0), RunStatus.FAILED)
    assert (await store.runs.retry(run.id, Ask(RunTrigger.COMMAND, max_attempts=5))).max_attempts == 2 + 5
    await store.ended(await store.runs.claim("worker-1", 60.0), RunStatus.BLOCKED)
    assert (await store.runs.approve(run.id, Ask(RunTrigger.COMMAND, max_attempts=7))).max_attempts == 3 + 7


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
            await store.runs.retry(run.id, Ask(RunTrigger.COMMAND))
        with pytest.raises(UsageError, match=f"is {state}"):
            await store.runs.approve(run.id, Ask(RunTrigger.COMMAND))
    blocked = await store.running("other")
    await store.ended(blocked, RunStatus.BLOCKED)
    with pytest.raises(UsageError, match="is blocked"):
        await store.runs.retry(blocked.id, Ask(RunTrigger.COMMAND))
    failed = await store.ended(await store.running("removed"), RunStatus.FAILED)
    await store.repositories.remove("removed")
    for change in (store.runs.retry, store.runs.approve):
        with pytest.raises(RunNotFound):
            await change("no-such-run", Ask(RunTrigger.COMMAND))
        with pytest.raises(RepositoryNotFound, match="'removed'"):
            await change(failed.id, Ask(RunTrigger.COMMAND))

    assert (await store.history.get(run.id)) == run


async def test_others_wait_where_a_run_of_another_repository_could_be_executed_now(store: Store) -> None:
    run = await store.running("huge")
    assert not await store.runs.others_wait(run)

    await store.runs.enqueue("huge", Ask(RunTrigger.HTTP))
    assert not await store.runs.others_wait(run), "its own next one"
    later = await store.running("later")
    await store.runs.enqueue("later", Ask(RunTrigger.HTTP))
    assert not await store.runs.others_wait(run), "another one that is busy"
    await store.runs.end(later, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=3600.0))
    assert await store.runs.others_wait(run), "the one that was queued behind it"
    await store.runs.claim("worker-2", 60.0)
    assert not await store.runs.others_wait(run), "one that is not due"

    await store.queued("small")
    assert await store.runs.others_wait(run)


@pytest.mark.parametrize("trigger", [RunTrigger.HTTP, RunTrigger.WEBHOOK])
async def test_a_run_knows_that_its_repository_is_to_be_synced_again_also_if_that_joined_a_run_that_yielded(
    store: Store, trigger: RunTrigger
) -> None:
    first = await store.running()
    assert not await store.runs.asked_again(first)
    await store.runs.enqueue("payments", Ask(trigger))
    assert await store.runs.asked_again(first)
    await store.runs.end(first, YIELDING)

    second = await store.claimed()

    assert second.id != first.id
    assert not await store.runs.asked_again(second), "the first waits for its next turn, and for nothing new"
    joined, is_new = await store.runs.enqueue("payments", Ask(trigger))
    assert (joined.id, is_new) == (first.id, False)
    assert await store.runs.asked_again(second)


async def test_a_tick_since_a_run_began_is_to_be_synced_and_one_before_it_is_not(store: Store) -> None:
    run = await store.running()
    assert await store.tick(TICK) == TickOutcome(queued=1)
    assert not await store.runs.asked_again(run)
    assert await store.runs.asked_again(run.model_copy(update={"started_at": TICK - timedelta(seconds=1)}))


# The queue as a whole ----------------------------------------------------------------------------------------------


async def test_the_age_of_the_queue_is_that_of_the_run_that_waits_longest_also_if_a_server_asks_for_that(
    store: Store,
) -> None:
    assert (await store.history.queue()).oldest_seconds == 0.0
    old = await store.running("old")
    await store.runs.end(old, HandBack(delay_seconds=-500.0))
    await store.queued("new")

    assert 500.0 <= (await store.history.queue()).oldest_seconds < 600.0

    asked = SourceUnavailable("The server asks to wait.", retry_after_seconds=3600.0)
    await store.runs.end(await store.running("asked"), HandBack(asked.code, str(asked), delay_seconds=3600.0))
    ages = update(RUNS).where(RUNS.c.error_code == asked.code)
    await store.database.change(ages.values(waits_since=store.database.moment(-2000.0)))

    assert 2000.0 <= (await store.history.queue()).oldest_seconds < 2100.0
    assert [run.repository for run in await store.history.long_waits(300.0)] == ["asked"]
    assert await store.history.long_waits(6000.0) == []


async def clicked(store: Store, asked_by: str = "token 1", **asked: Any) -> Run:
    run, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP, asked_by, **asked))
    return run


async def test_the_same_request_of_the_same_client_is_no_further_one(store: Store) -> None:
    await store.repository()
    run = await clicked(store)
    again = [await clicked(store), await clicked(store, "token 2"), await clicked(store, full=True)]

    assert {each.id for each in again} == {run.id}
    assert (again[-1].full, again[0]) == (True, run)
    joined = await store.history.get(run.id)
    assert joined == again[-1], "as the client was told"
    assert [(each.asked_by, each.full) for each in joined.requests] == [
        ("token 1", False),
        ("token 2", False),
        ("token 1", True),
    ]
    cancelled = await store.runs.cancel(run.id, by="zoe@laptop")
    assert (cancelled.error_code, cancelled.error_message) == ("RUN_CANCELLED", "Cancelled by zoe@laptop.")


async def test_of_thousands_of_requests_the_first_hundred_are_listed_and_all_count(store: Store) -> None:
    await store.repository()
    for number in range(MAX_REQUESTS + 1):
        run = await clicked(store, f"token {number}", full=number == MAX_REQUESTS)

    assert (len(run.requests), run.full) == (MAX_REQUESTS, True)
    assert run.askers == [*(f"token {number}" for number in range(5)), "95 more"]


@pytest.mark.parametrize("state", ["waiting", "running"])
@pytest.mark.parametrize("other", ["a push", "the same person", None])
async def test_ctrl_c_ends_a_run_that_nobody_else_asked_for_and_otherwise_only_the_waiting(
    store: Store, state: str, other: str | None
) -> None:
    run = await store.queued(asked_by="ann@laptop")
    if other is not None:
        trigger, by = (RunTrigger.WEBHOOK, "delivery 7") if other == "a push" else (RunTrigger.COMMAND, "ann@laptop")
        await store.runs.enqueue("payments", Ask(trigger, by))
    claimed = await store.claimed() if state == "running" else None

    await store.runs.interrupt(run.id)

    after = await store.history.get(run.id)
    assert (after.cancel_requested or after.status is RunStatus.CANCELLED) == (other is None)
    if claimed is not None:
        assert await store.runs.heartbeat(claimed, 60.0) == (other is None)
        ended = await store.runs.end(claimed, STOPPING)
        assert ended.status is (RunStatus.CANCELLED if other is None else RunStatus.QUEUED)
        assert other is not None or str(ended.error_message).startswith("The command that asked for it")


# Cancelling ---------------------------------------------------------------------------------------------------------


async def test_a_pause_cancels_what_ticks_and_pushes_asked_for_and_no_request_of_a_person(store: Store) -> None:
    await store.ticked()
    run, _ = await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND, full=True, approval=IN_ADVANCE))
    await store.runs.enqueue("payments", Ask(RunTrigger.WEBHOOK))
    pushed = await store.queued("other", RunTrigger.WEBHOOK)

    for name in ("payments", "other"):
        await store.repositories.pause(name, "being moved", by="token 1")

    left = await store.history.get(run.id)
    assert (left.status, left.trigger, left.full, left.approval) == ("queued", "command", True, IN_ADVANCE)
    ended = await store.history.get(pushed.id)
    assert (ended.status, ended.error_code) == (RunStatus.CANCELLED, "REPOSITORY_PAUSED")
    assert ended.error_message == "The repository was paused by token 1."


async def test_a_run_that_is_cancelled_because_its_repository_left_the_registry_says_so(store: Store) -> None:
    await store.ticked()

    await store.repositories.deactivate("payments")

    (run,) = await store.history.runs()
    assert (run.status, run.error_message) == (RunStatus.CANCELLED, "The repository has left the registry.")


async def test_a_removal_cancels_all_other_runs(store: Store) -> None:
    running = await store.running()
    await store.tick(TICK)
    waiting = await clicked(store, full=True, repair=True)

    removal, is_new = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP, "token 2", removal=True))

    assert is_new and removal.id != waiting.id
    assert (removal.removal, removal.full, removal.repair) == (True, False, False)
    assert (await store.history.get(waiting.id)).error_message == "The repository is being removed."
    row = await store.repositories.get("payments")
    assert (row.is_active, row.paused_reason) == (False, "It is being removed."), "no tick comes in between"
    assert await store.runs.heartbeat(running, 60.0)
    again, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP, "token 2", removal=True))
    assert (again.id, again.status, again.removal) == (removal.id, RunStatus.QUEUED, True)
    repaired = await clicked(store, repair=True)
    assert (repaired.id, repaired.removal, repaired.repair) == (removal.id, True, False), "it stays a removal"
    assert [run.status for run in await store.history.active(row.id)] == [RunStatus.RUNNING, RunStatus.QUEUED]


async def test_a_removal_that_could_not_be_queued_leaves_the_repository_as_it_is(store: Store) -> None:
    await store.repository(origin="command")
    async with store.database.write() as connection:
        await connection.execute(text("ALTER TABLE sync_runs RENAME COLUMN asked TO lost"))
    try:
        with pytest.raises(StoreUnavailable):
            await request_removal(store.repositories, store.runs, "payments", Ask(RunTrigger.HTTP, removal=True))
    finally:
        async with store.database.write() as connection:
            await connection.execute(text("ALTER TABLE sync_runs RENAME COLUMN lost TO asked"))

    row = await store.repositories.get("payments")
    assert (row.is_active, row.paused_reason) == (True, None)


# Failures at a command ---------------------------------------------------------------------------------------------


async def test_a_source_that_one_machine_cannot_reach_is_no_end_of_a_pushed_run(store: Store) -> None:
    pushed = await store.queued(trigger=RunTrigger.WEBHOOK)
    for _ in range(5):
        await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND))
        run = await store.claimed("laptop")
        failed = Fail("SOURCE_UNAVAILABLE", "no route", own_requests=1, delay_seconds=-1.0)
        back = await store.runs.end(run, failed)
        assert (back.id, back.status) == (pushed.id, RunStatus.RETRYING)

    run = await store.claimed("daemon")
    assert run.failures == 1, "those attempts do not count"
    again = await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=-1.0))
    assert again.status is RunStatus.RETRYING


# Attempts and waiting ----------------------------------------------------------------------------------------------


async def test_hand_backs_do_not_raise_the_number_of_failures(store: Store) -> None:
    run = await store.running()
    for _ in range(9):
        await store.runs.end(run, STOPPING)
        run = await store.runs.claim("worker-1", 60.0)
    assert (run.attempt, run.failures, run.max_attempts) == (10, 1, 12)

    again = await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=-1.0))

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
        store.runs.end(stale, Finish(), LATE),
        store.runs.end(stale, Block("DELETION_BLOCKED", "late"), LATE),
        store.runs.end(stale, Retry("SOURCE_UNAVAILABLE", "late", delay_seconds=1.0), LATE),
        store.runs.end(stale, STOPPING, LATE),
        store.runs.record_brake(stale, {"commit": "c" * 40}),
        store.runs.add_problems(stale, [RunProblem("a.py", "failed", "late")]),
        store.runs.forget_problems(stale, "failed"),
        store.manifests.record(stale, first.id, [FILE]),
        store.manifests.forget(stale, first.id, ["a.py"]),
        store.building(stale),
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
        store.runs.end(run, STOPPING),
        store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=1.0)),
        store.runs.end(run, Finish(), RunFigures()),
        store.manifests.record(run, run.repository_id, [FILE]),
    ):
        with pytest.raises(LeaseLost):
            await write

    assert await everything(store) == before
