"""What a worker and a person may count on when they ask for, claim, hand back and end runs."""

from __future__ import annotations

import pytest

from reposync.errors import LeaseLost, RunNotFound, UsageError
from reposync.store.run import Released, RunFigures
from reposync.store.run_state import MAX_ATTEMPTS
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import TICK, Store


async def ended(store: Store, run, status: RunStatus = RunStatus.COMPLETED):
    return await store.runs.finish(run, status, RunFigures())


# Asking for a run ---------------------------------------------------------------------------------------------------


async def test_a_further_request_is_added_to_the_waiting_run(store: Store) -> None:
    await store.ticked()

    run, _ = await store.runs.enqueue("payments", RunTrigger.COMMAND, full=True, approved=True)
    again, _ = await store.runs.enqueue("payments", RunTrigger.WEBHOOK)

    assert (run.full, run.approved, run.priority) == (True, True, 0)
    assert (again.full, again.approved, again.priority) == (True, True, 0)
    assert again.trigger is RunTrigger.COMMAND, "that of the most urgent request"
    assert again.scheduled_for == TICK


async def test_a_click_does_not_wait_for_the_pause_before_the_next_attempt(store: Store) -> None:
    run = await store.running()
    await store.runs.retry_later(run, 3600.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")
    assert await store.runs.claim("worker-1", 60.0) is None

    clicked, created = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (clicked.id, created) == (run.id, False)
    assert (await store.runs.claim("worker-1", 60.0)).id == run.id


# Claiming -----------------------------------------------------------------------------------------------------------


async def test_a_person_goes_before_a_push_and_a_push_before_the_clock_and_among_equals_the_oldest(
    store: Store,
) -> None:
    for name, trigger in (("tick", RunTrigger.SCHEDULE), ("push", RunTrigger.WEBHOOK), ("click", RunTrigger.HTTP)):
        await store.queued(name, trigger)
        await store.queued(f"{name} again", trigger)

    order = [(await store.runs.claim("worker-1", 60.0)).repository for _ in range(6)]

    assert order == ["click", "click again", "push", "push again", "tick", "tick again"]


# Leases -------------------------------------------------------------------------------------------------------------


# Ends ---------------------------------------------------------------------------------------------------------------


async def test_a_finished_run_shows_what_it_did(store: Store) -> None:
    run = await store.running()
    figures = RunFigures(commit_before="a" * 40, commit_after="b" * 40, files_processed=3, chunks_embedded=9)

    done = await store.runs.finish(run, RunStatus.COMPLETED, figures)

    assert done == await store.runs.get(run.id)
    assert (done.status, done.commit_after, done.files_processed) == (RunStatus.COMPLETED, "b" * 40, 3)
    assert done.duration_seconds == pytest.approx((done.completed_at - done.started_at).total_seconds())
    assert done.lease_until is None and done.is_final


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
    await ended(store, run, RunStatus.FAILED)

    assert (await store.runs.retry(run.id)).max_attempts == 1 + MAX_ATTEMPTS
    await ended(store, await store.runs.claim("worker-1", 60.0), RunStatus.FAILED)
    assert (await store.runs.retry(run.id, max_attempts=5)).max_attempts == 2 + 5
    await ended(store, await store.runs.claim("worker-1", 60.0), RunStatus.BLOCKED)
    assert (await store.runs.approve(run.id, max_attempts=7)).max_attempts == 3 + 7


async def test_only_what_failed_or_was_cancelled_is_tried_again_and_only_what_is_blocked_is_approved(
    store: Store,
) -> None:
    run = await store.queued()
    for state in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.COMPLETED):
        if state is RunStatus.RUNNING:
            run = await store.runs.claim("worker-1", 60.0)
        elif state is RunStatus.COMPLETED:
            run = await ended(store, run)
        with pytest.raises(UsageError, match=f"is {state}, and only a failed or cancelled"):
            await store.runs.retry(run.id)
        with pytest.raises(UsageError, match=f"is {state}"):
            await store.runs.approve(run.id)
    blocked = await store.running("other")
    await ended(store, blocked, RunStatus.BLOCKED)
    with pytest.raises(UsageError, match="is blocked"):
        await store.runs.retry(blocked.id)
    for change in (store.runs.retry, store.runs.approve):
        with pytest.raises(RunNotFound):
            await change("no-such-run")

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


# The queue as a whole -----------------------------------------------------------------------------------------------


async def test_the_age_of_the_queue_is_that_of_the_oldest_run_that_is_due(store: Store) -> None:
    await store.runs.retry_later(await store.running("later"), 3600.0, "SOURCE_UNAVAILABLE", "503")
    assert (await store.runs.queue()).oldest_seconds == 0.0, "what a retry waits for is no backlog"

    old = await store.running("old")
    await store.runs.release(old, how=Released(delay_seconds=-500.0))
    await store.queued("new")

    assert 500.0 <= (await store.runs.queue()).oldest_seconds < 600.0


# What is said of a run ----------------------------------------------------------------------------------------------
