"""What a worker and a person may count on when they ask for, claim, hand back and end runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from reposync.errors import LeaseLost, RepositoryNotFound, RunNotFound, UsageError
from reposync.store.run import QueueFigures, RunFigures
from reposync.store.run_requests import MAX_ATTEMPTS
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import Store

TICK = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def ended(store: Store, run, status: RunStatus = RunStatus.COMPLETED):
    return await store.runs.finish(run, status, RunFigures())


# Asking for a run ---------------------------------------------------------------------------------------------------


async def test_a_second_click_returns_the_run_that_waits_already(store: Store) -> None:
    first = await store.queued()

    second, created = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (second.id, created) == (first.id, False)


async def test_what_a_second_click_asks_for_besides_is_added_to_the_run_that_waits(store: Store) -> None:
    await store.repository()
    await store.tick(TICK)

    run, _ = await store.runs.enqueue("payments", RunTrigger.COMMAND, full=True, approved=True)
    again, _ = await store.runs.enqueue("payments", RunTrigger.WEBHOOK)

    assert (run.full, run.approved, run.priority) == (True, True, 0)
    assert (again.full, again.approved, again.priority) == (True, True, 0)
    assert again.trigger is RunTrigger.COMMAND, "that of the most urgent request"
    assert again.scheduled_for == TICK


async def test_clicks_at_the_same_moment_queue_one_run(store: Store) -> None:
    await store.repository()

    answers = await asyncio.gather(*(store.runs.enqueue("payments", RunTrigger.HTTP) for _ in range(12)))

    assert len({run.id for run, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert len(await store.runs.history()) == 1


async def test_a_click_while_a_run_executes_queues_another_one(store: Store) -> None:
    running = await store.running()

    queued, created = await store.runs.enqueue("payments", RunTrigger.WEBHOOK)

    assert created and queued.id != running.id
    assert [run.id for run in await store.runs.active(running.repository_id)] == [running.id, queued.id]


async def test_a_click_does_not_wait_for_the_pause_before_the_next_attempt(store: Store) -> None:
    run = await store.running()
    await store.runs.retry_later(run, 3600.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")
    assert await store.runs.claim("worker-1", 60.0) is None

    clicked, created = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (clicked.id, created) == (run.id, False)
    assert (await store.runs.claim("worker-1", 60.0)).id == run.id


async def test_a_repository_that_is_not_registered_cannot_be_synced(store: Store) -> None:
    with pytest.raises(RepositoryNotFound, match="'nowhere'"):
        await store.runs.enqueue("nowhere", RunTrigger.HTTP)


# Claiming -----------------------------------------------------------------------------------------------------------


async def test_a_claimed_run_says_who_executes_it_and_until_when(store: Store) -> None:
    queued = await store.queued()

    run = await store.runs.claim("pod-1:42", 60.0)

    assert run is not None
    assert (run.id, run.status, run.worker, run.attempt) == (queued.id, RunStatus.RUNNING, "pod-1:42", 1)
    assert run.lease_until - run.started_at == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=1))
    assert await store.runs.get(queued.id) == run


async def test_a_person_who_waits_goes_before_a_push_and_a_push_before_the_clock(store: Store) -> None:
    for name, trigger in (("tick", RunTrigger.SCHEDULE), ("push", RunTrigger.WEBHOOK), ("click", RunTrigger.HTTP)):
        await store.queued(name, trigger)

    order = [(await store.runs.claim("worker-1", 60.0)).repository for _ in range(3)]

    assert order == ["click", "push", "tick"]


async def test_among_equals_the_oldest_goes_first(store: Store) -> None:
    names = ["one", "two", "three"]
    for name in names:
        await store.queued(name)

    assert [(await store.runs.claim("worker-1", 60.0)).repository for _ in names] == names


async def test_a_busy_repository_does_not_keep_workers_from_the_others(store: Store) -> None:
    await store.running("busy")
    await store.runs.enqueue("busy", RunTrigger.HTTP)
    other = await store.queued("other", RunTrigger.SCHEDULE)

    assert (await store.runs.claim("worker-2", 60.0)).id == other.id


async def test_many_workers_at_once_share_the_runs_without_a_repetition(store: Store) -> None:
    for number in range(10):
        await store.queued(f"repository-{number}")

    claimed = await asyncio.gather(*(store.runs.claim(f"worker-{number}", 60.0) for number in range(14)))
    claimed += [await store.runs.claim("worker-late", 60.0) for _ in range(10)]

    runs = [run for run in claimed if run is not None]
    assert sorted(run.repository for run in runs) == sorted(f"repository-{number}" for number in range(10))


async def test_a_run_that_was_asked_for_by_id_is_claimed_before_its_turn(store: Store) -> None:
    await store.queued("first")
    mine = await store.queued("second")

    assert (await store.runs.claim("worker-1", 60.0, run_id=mine.id)).id == mine.id
    assert await store.runs.claim("worker-1", 60.0, run_id=mine.id) is None


# Leases -------------------------------------------------------------------------------------------------------------


async def test_a_heartbeat_keeps_the_run(store: Store) -> None:
    run = await store.running(lease_seconds=-1.0)

    state = await store.runs.heartbeat(run, 60.0)

    assert state.lease_until > run.lease_until
    assert await store.runs.claim("worker-2", 60.0) is None


async def test_a_run_whose_worker_died_is_taken_over_when_its_lease_is_over(store: Store) -> None:
    run = await store.running(lease_seconds=-1.0)

    taken = await store.runs.claim("worker-2", 60.0)

    assert (taken.id, taken.worker, taken.attempt) == (run.id, "worker-2", 2)


async def test_a_worker_known_to_be_dead_is_not_waited_for(store: Store) -> None:
    run = await store.running(lease_seconds=3600.0)
    assert await store.runs.claim("worker-2", 60.0) is None

    await store.runs.expire(run)

    assert (await store.runs.claim("worker-2", 60.0)).id == run.id


async def test_the_lease_of_a_dead_worker_is_ended_and_not_its_successors(store: Store) -> None:
    dead = await store.running()
    await store.taken_over(dead)

    await store.runs.expire(dead)

    assert await store.runs.claim("worker-3", 60.0) is None


async def test_a_run_that_kills_every_worker_fails_and_says_so(store: Store) -> None:
    run = await store.running(lease_seconds=-1.0)
    for number in range(2, MAX_ATTEMPTS + 1):
        assert (await store.runs.claim(f"worker-{number}", -1.0)).attempt == number

    assert await store.runs.claim("worker-last", 60.0) is None

    dead = await store.runs.get(run.id)
    assert (dead.status, dead.error_code) == (RunStatus.FAILED, "RUN_ABANDONED")
    assert f"worker-{MAX_ATTEMPTS}" in dead.error_message
    assert dead.completed_at is not None and dead.duration_seconds is not None


async def test_the_next_run_starts_at_once_when_the_one_before_killed_its_last_worker(store: Store) -> None:
    await store.running(lease_seconds=-1.0)
    for _ in range(2, MAX_ATTEMPTS + 1):
        await store.runs.claim("worker-2", -1.0)
    queued, _ = await store.runs.enqueue("payments", RunTrigger.HTTP)

    assert (await store.runs.claim("worker-3", 60.0, run_id=queued.id)).id == queued.id


async def test_a_worker_that_lost_its_run_can_neither_keep_nor_end_nor_hand_it_back(store: Store) -> None:
    stale = await store.running()
    current = await store.taken_over(stale)

    for attempt in (
        store.runs.heartbeat(stale, 60.0),
        store.runs.heartbeat(stale, 60.0, {"stage": "late"}, RunFigures(files_processed=7)),
        store.runs.finish(stale, RunStatus.COMPLETED, RunFigures(files_processed=7)),
        store.runs.retry_later(stale, 1.0, "SOURCE_UNAVAILABLE", "late"),
        store.runs.release(stale),
        store.runs.add_problems(stale, []),
    ):
        if attempt.__name__ == "add_problems":
            await attempt  # nothing to write, nothing to lose
            continue
        with pytest.raises(LeaseLost, match="attempt 1 of worker-1"):
            await attempt

    assert await store.runs.get(stale.id) == current


async def test_the_same_worker_is_fenced_from_its_own_earlier_attempt(store: Store) -> None:
    stale = await store.running(worker="worker-1")
    await store.taken_over(stale, worker="worker-1")

    with pytest.raises(LeaseLost):
        await store.runs.heartbeat(stale, 60.0)


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


async def test_a_run_does_not_finish_as_something_that_is_no_end(store: Store) -> None:
    run = await store.running()

    with pytest.raises(ValueError, match="retrying"):
        await store.runs.finish(run, RunStatus.RETRYING, RunFigures())


async def test_a_failure_that_may_pass_is_tried_again_later(store: Store) -> None:
    run = await store.running()

    waits = await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")
    again = await store.runs.claim("worker-2", 60.0)

    assert (waits.status, waits.error_code) == (RunStatus.RETRYING, "SOURCE_UNAVAILABLE")
    assert (again.id, again.attempt) == (run.id, 2)


async def test_the_last_attempt_that_fails_ends_the_run(store: Store) -> None:
    run = await store.running()
    for _ in range(MAX_ATTEMPTS - 1):
        await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")
        run = await store.runs.claim("worker-1", 60.0)

    over = await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")

    assert (over.status, over.error_message) == (RunStatus.FAILED, "GitLab answered 503.")
    assert await store.runs.claim("worker-1", 60.0) is None


async def test_pods_that_are_replaced_again_and_again_do_not_use_up_the_attempts(store: Store) -> None:
    run = await store.running()
    for _ in range(MAX_ATTEMPTS * 2):
        assert (await store.runs.release(run)).status is RunStatus.QUEUED
        run = await store.runs.claim("worker-1", 60.0)

    assert (await store.runs.retry_later(run, 1.0, "SOURCE_UNAVAILABLE", "503")).status is RunStatus.RETRYING


async def test_a_waiting_run_is_cancelled_at_once(store: Store) -> None:
    run = await store.queued()

    cancelled = await store.runs.request_cancel(run.id)

    assert cancelled.status is RunStatus.CANCELLED and cancelled.completed_at is not None
    assert await store.runs.claim("worker-1", 60.0) is None


async def test_a_running_run_hears_of_its_cancellation_at_the_next_heartbeat(store: Store) -> None:
    run = await store.running()

    assert (await store.runs.request_cancel(run.id)).status is RunStatus.RUNNING

    assert (await store.runs.heartbeat(run, 60.0)).cancel_requested
    assert (await store.runs.retry_later(run, 1.0, "SOURCE_UNAVAILABLE", "503")).status is RunStatus.CANCELLED


async def test_a_cancelled_run_is_not_started_again_when_its_worker_stops(store: Store) -> None:
    run = await store.running()
    await store.runs.request_cancel(run.id)

    assert (await store.runs.release(run)).status is RunStatus.CANCELLED


async def test_cancelling_a_finished_run_leaves_it_as_it_is(store: Store) -> None:
    done = await ended(store, await store.running())

    assert await store.runs.request_cancel(done.id) == done


async def test_an_approved_run_goes_on_and_knows_that_it_may_delete(store: Store) -> None:
    run = await store.running()
    await ended(store, run, RunStatus.BLOCKED)
    assert await store.runs.claim("worker-1", 60.0) is None

    approved = await store.runs.approve(run.id)

    assert (approved.id, approved.status, approved.approved) == (run.id, RunStatus.QUEUED, True)
    claimed = await store.runs.claim("worker-1", 60.0)
    assert claimed.approved and claimed.attempt == 2


async def test_only_a_blocked_run_can_be_approved(store: Store) -> None:
    run = await store.queued()

    with pytest.raises(UsageError, match="is queued"):
        await store.runs.approve(run.id)
    with pytest.raises(RunNotFound):
        await store.runs.approve("no-such-run")


async def test_a_blocked_run_can_be_declined(store: Store) -> None:
    run = await store.running()
    await ended(store, run, RunStatus.BLOCKED)

    assert (await store.runs.request_cancel(run.id)).status is RunStatus.CANCELLED


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.CANCELLED])
async def test_a_run_that_failed_or_was_cancelled_can_be_tried_again(store: Store, status: RunStatus) -> None:
    run = await store.running()
    over = await store.runs.finish(run, status, RunFigures(), "SOURCE_DENIED", "401")

    again = await store.runs.retry(run.id)

    assert (over.status, again.id, again.status) == (status, run.id, RunStatus.QUEUED)
    assert (again.error_code, again.error_message, again.completed_at, again.duration_seconds) == (None,) * 4
    claimed = await store.runs.claim("worker-2", 60.0)
    assert (claimed.id, claimed.attempt, claimed.cancel_requested) == (run.id, 2, False)


async def test_a_run_that_is_tried_again_has_as_many_attempts_as_it_is_given(store: Store) -> None:
    run = await store.running()
    await ended(store, run, RunStatus.FAILED)

    assert (await store.runs.retry(run.id)).max_attempts == 1 + MAX_ATTEMPTS
    await ended(store, await store.runs.claim("worker-1", 60.0), RunStatus.FAILED)
    assert (await store.runs.retry(run.id, max_attempts=5)).max_attempts == 2 + 5
    await ended(store, await store.runs.claim("worker-1", 60.0), RunStatus.BLOCKED)
    assert (await store.runs.approve(run.id, max_attempts=7)).max_attempts == 3 + 7


async def test_only_what_failed_or_was_cancelled_can_be_tried_again(store: Store) -> None:
    run = await store.queued()
    for state in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.COMPLETED):
        if state is RunStatus.RUNNING:
            run = await store.runs.claim("worker-1", 60.0)
        elif state is RunStatus.COMPLETED:
            run = await ended(store, run)
        with pytest.raises(UsageError, match=f"is {state}, and only a failed or cancelled"):
            await store.runs.retry(run.id)
    blocked = await store.running("other")
    await ended(store, blocked, RunStatus.BLOCKED)
    with pytest.raises(UsageError, match="is blocked"):
        await store.runs.retry(blocked.id)
    with pytest.raises(RunNotFound):
        await store.runs.retry("no-such-run")

    assert (await store.runs.get(run.id)) == run


async def test_a_run_whose_repository_was_removed_can_be_neither_tried_again_nor_approved(store: Store) -> None:
    failed = await ended(store, await store.running(), RunStatus.FAILED)
    blocked = await ended(store, await store.running(), RunStatus.BLOCKED)
    await store.repositories.remove("payments")

    with pytest.raises(RepositoryNotFound, match="'payments'"):
        await store.runs.retry(failed.id)
    with pytest.raises(RepositoryNotFound, match="'payments'"):
        await store.runs.approve(blocked.id)


async def test_what_a_person_sends_back_goes_before_the_clock(store: Store) -> None:
    await store.repository("old")
    await store.tick(TICK, "old")
    failed = await ended(store, await store.runs.claim("worker-1", 60.0), RunStatus.FAILED)
    await store.queued("pushed", RunTrigger.WEBHOOK)

    await store.runs.retry(failed.id)

    assert (await store.runs.claim("worker-1", 60.0)).id == failed.id


async def test_a_run_that_had_its_share_waits_behind_the_others(store: Store) -> None:
    huge = await store.running("huge")
    await store.queued("small", RunTrigger.SCHEDULE)

    await store.runs.release(huge, priority=20)

    order = [(await store.runs.claim("worker-1", 60.0)).repository for _ in range(2)]
    assert order == ["small", "huge"]


async def test_a_dead_workers_run_goes_on_before_those_that_wait(store: Store) -> None:
    await store.repository("dead")
    await store.tick(TICK, "dead")
    dead = await store.runs.claim("worker-1", -1.0)
    await store.queued("clicked", RunTrigger.HTTP)

    assert (await store.runs.claim("worker-2", 60.0)).id == dead.id


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


async def test_a_run_that_nobody_may_take_over_is_not_waited_for(store: Store) -> None:
    run = await store.running("huge")
    dead = await store.running("poison", lease_seconds=-1.0)
    assert await store.runs.others_wait(run), "a dead worker's run"

    await store.runs.request_cancel(dead.id)

    assert not await store.runs.others_wait(run)


# The queue as a whole -----------------------------------------------------------------------------------------------


async def test_the_queue_is_counted_by_status_without_what_is_over(store: Store) -> None:
    assert await store.runs.queue() == QueueFigures({}, 0.0)
    for name in ("done", "failed"):
        await ended(store, await store.running(name), RunStatus.COMPLETED if name == "done" else RunStatus.FAILED)
    await ended(store, await store.running("blocked"), RunStatus.BLOCKED)
    await store.running("running")
    await store.runs.retry_later(await store.running("retrying"), 3600.0, "SOURCE_UNAVAILABLE", "503")
    for name in ("one", "two"):
        await store.queued(name)

    assert (await store.runs.queue()).counts == {
        RunStatus.QUEUED: 2,
        RunStatus.RETRYING: 1,
        RunStatus.RUNNING: 1,
        RunStatus.BLOCKED: 1,
    }


async def test_the_age_of_the_queue_is_that_of_the_oldest_run_that_is_due(store: Store) -> None:
    await store.runs.retry_later(await store.running("later"), 3600.0, "SOURCE_UNAVAILABLE", "503")
    assert (await store.runs.queue()).oldest_seconds == 0.0, "what a retry waits for is no backlog"

    old = await store.running("old")
    await store.runs.release(old, delay_seconds=-500.0)
    await store.queued("new")

    assert 500.0 <= (await store.runs.queue()).oldest_seconds < 600.0


# What is said of a run ----------------------------------------------------------------------------------------------


async def test_progress_is_what_the_worker_last_said(store: Store) -> None:
    run = await store.running()

    await store.runs.heartbeat(run, 60.0, {"stage": "read", "done": 1})
    await store.runs.heartbeat(run, 60.0, {"stage": "store", "path": "caf\udce9\0.py"})
    await store.runs.heartbeat(run, 60.0)

    assert (await store.runs.get(run.id)).progress == {"stage": "store", "path": "caf\udce9\0.py"}


async def test_a_new_attempt_says_nothing_yet_of_how_far_it_is(store: Store) -> None:
    run = await store.running()
    await store.runs.heartbeat(run, 60.0, {"stage": "read", "done": 1})

    assert (await store.taken_over(run)).progress is None


async def test_a_cancelled_run_whose_worker_died_is_not_taken_over(store: Store) -> None:
    run = await store.running(lease_seconds=-1.0)
    await store.runs.request_cancel(run.id)

    assert await store.runs.claim("worker-2", 60.0) is None
    assert (await store.runs.get(run.id)).status is RunStatus.CANCELLED
