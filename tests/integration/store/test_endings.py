"""How attempts and runs end: what they stopped at, their successors, and what an event leads to in each state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from reposync.errors import LeaseLost, LockHeld, RunStateConflict, SecretMissing
from reposync.store.endings import STOPPING, YIELDING, Block, Fail, Finish, HandBack, Retry
from reposync.store.run import IN_ADVANCE, MAX_ATTEMPTS, Ask, Run, RunFigures, RunProblem
from reposync.store.run_state import TRANSITIONS, Event, locked, move
from reposync.store.status import FINAL, LOST, RELEASED, WAITING, YIELDED, RunStatus, RunTrigger
from reposync.store.tables import RUNS
from tests.integration.store.conftest import COMMIT, ON_EVERY_DATABASE, TICK, Store


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


def brake(lost: int) -> dict[str, Any]:
    return {"commit": "c" * 40, "planned": {"vanished": lost}, "losses": {"vanished": lost}, "indexed": 900}


async def stops(store: Store, lost: int = 812, worker: str = "worker-1") -> Run:
    """The run that waits meets the deletion brake."""
    run = await store.claimed(worker)
    ending = Block("DELETION_BLOCKED", f"{lost} of 900 files would be lost.", brake=brake(lost))
    return await store.runs.end(run, ending, RunFigures())


async def blocked_runs(store: Store) -> list[Run]:
    return await store.history.runs(status=RunStatus.BLOCKED)


def asked(run: Run) -> list[tuple[str, str]]:
    return [(request.trigger, request.asked_by) for request in run.requests]


async def test_ticks_against_the_brake_are_one_blocked_run_and_none_after_its_approval(store: Store) -> None:
    await store.repository()
    for number in range(48):
        await store.tick(TICK + number * timedelta(minutes=30))
        await stops(store, 800 + number)

    (waits,) = await blocked_runs(store)
    assert (await store.history.queue()).counts == {RunStatus.BLOCKED: 1}
    assert (waits.brake, waits.error_message) == (brake(847), "847 of 900 files would be lost."), "the latest stop"
    await store.runs.approve(waits.id, Ask(RunTrigger.COMMAND))
    done = await store.ended()

    assert done.id == waits.id
    assert await blocked_runs(store) == []
    assert (await store.history.queue()).counts == {}


async def test_a_run_that_stops_beside_a_blocked_one_names_it_and_gives_it_its_requests(store: Store) -> None:
    await store.ticked()
    first = await stops(store, 700)
    await store.runs.enqueue("payments", Ask(RunTrigger.HTTP, asked_by="token 1", full=True))
    second = await stops(store, 812)

    assert (second.status, second.error_code) == (RunStatus.CANCELLED, "DELETION_BLOCKED")
    assert second.error_message is not None and f"Run {first.id} waits" in second.error_message
    (waits,) = await blocked_runs(store)
    assert (waits.id, waits.full, waits.approval) == (first.id, True, None)
    assert asked(waits) == [("schedule", "schedule"), ("http", "token 1")]
    assert second.askers == ["token 1"], "the history still says who asked"
    assert await store.runs.end(second, Block(), RunFigures()) == second, "a repetition changes nothing"


@pytest.mark.parametrize("full", [False, True])
async def test_a_completed_run_closes_the_blocked_one_with_a_message(store: Store, full: bool) -> None:
    await store.queued(trigger=RunTrigger.COMMAND, full=full)
    waits = await stops(store)
    await store.runs.enqueue("payments", Ask(RunTrigger.HTTP, full=full))
    done = await store.ended()

    closed = await store.history.get(waits.id)
    assert (closed.status, closed.error_code) == (RunStatus.CANCELLED, "SUPERSEDED")
    assert closed.error_message is not None and done.id in closed.error_message
    assert (await store.history.queue()).counts == {}


@pytest.mark.parametrize("asked", [{"full": True}, {"repair": True}])
async def test_what_a_completed_run_did_not_do_is_queued_again(store: Store, asked: dict[str, bool]) -> None:
    await store.queued(trigger=RunTrigger.COMMAND, **asked)
    waits = await stops(store)
    await store.tick(TICK)
    await store.ended()

    again = await store.history.get(waits.id)
    assert (again.status, again.brake, again.error_code) == (RunStatus.QUEUED, None, None)
    assert (again.full, again.repair) == (asked.get("full", False), asked.get("repair", False))


async def test_an_approval_covers_what_the_run_stopped_at_and_names_its_author(store: Store) -> None:
    await store.ticked()
    waits = await stops(store, 700)

    approved = await store.runs.approve(waits.id, Ask(RunTrigger.COMMAND, "zoe@laptop"))

    assert (approved.status, approved.approval, approved.brake) == (RunStatus.QUEUED, brake(700), brake(700))
    assert (approved.error_code, approved.error_message) == (None, None)
    request = approved.requests[-1]
    assert (request.asked_by, request.approval) == ("zoe@laptop", brake(700))
    worse = await stops(store, 812)
    assert (worse.id, worse.status, worse.approval, worse.brake) == (waits.id, RunStatus.BLOCKED, None, brake(812))


async def test_an_approval_beforehand_is_of_the_first_deletion_that_the_run_meets(store: Store) -> None:
    await store.queued(trigger=RunTrigger.COMMAND, approval=IN_ADVANCE)
    run = await store.claimed()
    await store.runs.record_brake(run, brake(700))
    noted = await store.history.get(run.id)
    assert (noted.approval, noted.brake) == (brake(700), brake(700)), "and goes on"
    await store.runs.end(run, STOPPING)

    waits = await stops(store, 812)

    assert (waits.approval, waits.brake) == (None, brake(812))
    await store.tick(TICK)
    await stops(store, 900)
    (waits,) = await blocked_runs(store)
    assert (waits.approval, waits.brake) == (None, brake(900))


async def test_an_approval_of_a_run_that_stopped_all_the_same_is_over(store: Store) -> None:
    await store.queued(trigger=RunTrigger.COMMAND, approval=IN_ADVANCE)
    assert (await stops(store, 700)).approval is None
    await store.tick(TICK)
    await stops(store, 812)

    (waits,) = await blocked_runs(store)
    assert (waits.approval, waits.brake) == (None, brake(812))


async def test_a_deletion_that_is_allowed_beside_a_blocked_run_is_the_one_that_it_stopped_at(store: Store) -> None:
    await store.ticked()
    waits = await stops(store, 700)

    run, _ = await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND, asked_by="zoe@laptop", approval=IN_ADVANCE))

    assert run.approval == brake(700)
    await stops(store, 812)
    assert (await store.history.get(waits.id)).approval is None
    after, _ = await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND, asked_by="zoe@laptop", approval=IN_ADVANCE))
    assert after.approval == brake(812)


@pytest.mark.parametrize("facts", [{"kind": "quota", "limit": 3}, None], ids=["of a newer program", "unknown"])
async def test_an_approval_of_a_run_that_stopped_at_something_else_is_of_that(
    store: Store, facts: dict[str, Any] | None
) -> None:
    await store.queued()
    waits = await store.runs.end(await store.claimed(), Block("QUOTA_REACHED", "It is too large.", brake=facts))

    assert (await store.runs.approve(waits.id, Ask(RunTrigger.COMMAND))).approval == facts


# Ends ---------------------------------------------------------------------------------------------------------------


async def test_files_that_could_not_be_read_are_those_of_the_latest_attempt(store: Store) -> None:
    run = await store.running()
    waits = await store.runs.end(run, Retry("FILES_FAILED", "3 files", delay_seconds=-1.0), RunFigures(files_failed=3))
    assert waits.files_failed == 3
    second = await store.runs.claim("worker-2", 60.0, run_id=run.id)
    assert second is not None

    done = await store.runs.end(second, Finish(), RunFigures(files_failed=1, files_processed=2))

    assert (done.files_failed, done.files_processed) == (1, 2)
    assert [each.files_failed for each in await store.attempts(run)] == [3, 1]


async def test_a_run_says_as_many_skipped_files_as_it_lists_whichever_attempt_met_them(store: Store) -> None:
    run = await store.running()
    logo = RunProblem("logo.png", "binary", "12 kB")
    await store.runs.add_problems(run, [logo, RunProblem("a.lock", "lock_file", ""), RunProblem("a.py", "failed", "")])
    await store.runs.end(run, STOPPING)  # before its figures count the files
    again = await store.claimed()
    await store.runs.add_problems(again, [logo, RunProblem("b.png", "binary", "8 kB")])

    done = await store.runs.end(again, Finish(), RunFigures(files_skipped=2))

    assert done.files_skipped == 3
    assert await store.history.count_problems(run.id) == {"binary": 2, "failed": 1, "lock_file": 1}


@pytest.mark.parametrize("row", ["is gone", "is gone, and the run cancelled", "is there"])
async def test_a_removal_whose_last_worker_died_is_completed_if_the_row_is_gone(store: Store, row: str) -> None:
    run = await store.running(trigger=RunTrigger.HTTP, removal=True, max_attempts=1)
    if row != "is there":
        await store.repositories.remove("payments", by=run)
    if row.endswith("cancelled"):
        await store.runs.cancel(run.id)
    await store.runs.expire(run)

    assert await store.runs.claim("worker-2", 60.0) is None

    ended = await store.history.get(run.id)
    if row == "is there":
        assert (ended.status, ended.error_code) == (RunStatus.FAILED, "RUN_ABANDONED")
    else:
        assert (ended.status, ended.error_code, ended.repository) == (RunStatus.COMPLETED, None, "payments")
        assert str(ended.error_message).startswith("An earlier attempt removed the repository")
    assert [each.outcome for each in await store.attempts(run)] == ["lost"]


# Runs that remove the points of a repository that is no longer registered -------------------------------------------

WORKER = "pod-a:1:0"


async def test_it_is_its_workers_from_the_first_moment_and_keeps_syncs_of_that_id_waiting(store: Store) -> None:
    row = await store.repository()
    await store.repositories.remove(row.name)

    run = await store.runs.claim_orphan_removal(row.id, row.name, WORKER, 60.0)

    assert run is not None
    assert (run.status, run.worker, run.attempt, run.removal, run.repair) == ("running", WORKER, 1, True, True)
    assert (await store.attempts(run))[0].worker == WORKER
    assert await store.runs.claim_orphan_removal(row.id, row.name, "another", 60.0) is None
    again = await store.repository()
    assert again.id == row.id
    sync, is_new = await store.runs.enqueue(row.name, Ask(RunTrigger.COMMAND))
    assert (is_new, sync.removal, sync.repair) == (True, False, False)
    assert await store.runs.claim("another", 60.0) is None
    await store.ended(run)
    assert (await store.ended()).id == sync.id
    assert await store.runs.claim_orphan_removal(row.id, row.name, WORKER, 60.0) is None, "it is registered"


async def test_the_removal_of_a_repository_that_was_registered_again_does_not_join_one_that_was_handed_back(
    store: Store,
) -> None:
    row = await store.repository()
    await store.repositories.remove(row.name)
    orphans = await store.runs.claim_orphan_removal(row.id, row.name, WORKER, 60.0)
    assert orphans is not None
    await store.runs.end(orphans, STOPPING)
    await store.repository()

    removal, is_new = await store.runs.enqueue(row.name, Ask(RunTrigger.COMMAND, removal=True))

    assert (is_new, removal.removal, removal.repair) == (True, True, False)
    assert (await store.history.get(orphans.id)).status is RunStatus.CANCELLED


# Attempts -------------------------------------------------------------------------------------------------------------


SOME = RunFigures(files_processed=1, files_deleted=2, files_skipped=3, chunks_embedded=4, chunks_reused=5)
MORE = RunFigures(files_processed=10, files_deleted=20, files_skipped=30, chunks_embedded=40, chunks_reused=50)
COUNTS = ("files_processed", "files_deleted", "chunks_embedded", "chunks_reused")


def counts(of: object) -> tuple[int, ...]:
    return tuple(getattr(of, name) for name in COUNTS)


async def outcomes(store: Store, run: Run) -> list[tuple[int, str, str | None]]:
    attempts = await store.attempts(run)
    for earlier, later in pairwise(attempts):
        assert earlier.ended_at is not None and earlier.started_at <= earlier.ended_at <= later.started_at
    return [(each.attempt, each.worker, each.outcome) for each in attempts]


async def test_both_attempts_of_a_run_whose_first_worker_was_killed_are_shown(store: Store) -> None:
    run = await store.running(worker="pod-1")
    assert await outcomes(store, run) == [(1, "pod-1", None)]
    await store.runs.heartbeat(run, 60.0, figures=SOME)
    taken = await store.taken_over(run, worker="pod-2")
    await store.runs.heartbeat(taken, 60.0, figures=RunFigures(files_processed=9))

    done = await store.runs.end(taken, Finish(), MORE)

    assert await outcomes(store, run) == [(1, "pod-1", LOST), (2, "pod-2", RunStatus.COMPLETED)]
    first, second = await store.attempts(run)
    assert (counts(first), counts(second)) == (counts(SOME), counts(MORE)), "its heartbeats are all that is known of it"
    assert counts(done) == (11, 22, 44, 55)


async def test_a_run_that_is_handed_back_shows_whether_its_worker_stopped_or_yielded(store: Store) -> None:
    run = await store.running(worker="pod-1")
    await store.runs.heartbeat(run, 60.0, figures=SOME)
    await store.runs.end(run, STOPPING)  # without figures: those of its heartbeats count
    run = await store.claimed("pod-2")
    await store.runs.end(run, YIELDING, SOME)
    run = await store.claimed("pod-3")

    done = await store.runs.end(run, Finish(), SOME)

    assert await outcomes(store, run) == [(1, "pod-1", RELEASED), (2, "pod-2", YIELDED), (3, "pod-3", "completed")]
    assert counts(done) == (3, 6, 12, 15)


async def test_attempts_that_are_handed_back_for_one_reason_are_one_line_however_many(store: Store) -> None:
    await store.queued()
    reasons = {"pod-1": SecretMissing("GITLAB_TOKEN is not set."), "pod-2": LockHeld("pod-9 holds it.")}
    back = {worker: HandBack(reason.code, str(reason)) for worker, reason in reasons.items()}
    await store.runs.end(await store.claimed("pod-2"), back["pod-2"], SOME)
    for _ in range(10):
        for worker, ending in back.items():
            run = await store.runs.end(await store.claimed(worker), ending)

    rows = await store.attempts(run)
    assert [(each.attempt, each.worker, each.error_code, each.outcome, each.times) for each in rows] == [
        (1, "pod-2", "LOCK_HELD", RELEASED, 1),  # this one did something
        (2, "pod-1", "SECRET_MISSING", RELEASED, 10),
        (3, "pod-2", "LOCK_HELD", RELEASED, 10),
    ]
    assert counts(rows[0]) == counts(SOME)
    assert rows[2].ended_at is not None and run.started_at is not None
    assert rows[2].started_at < run.started_at <= rows[2].ended_at, "from the first to the last of them"
    # What counts and what does not is as before.
    assert (run.attempt, run.failures, run.max_attempts) == (21, 0, MAX_ATTEMPTS + 21)
    done = await store.runs.end(await store.claimed("pod-3"), Finish(), SOME)
    assert (done.failures, counts(done)) == (1, (2, 4, 8, 10))


async def test_the_attempt_of_a_run_whose_repository_was_removed_ends_with_it(store: Store) -> None:
    run = await store.running(worker="pod-1")
    await store.runs.heartbeat(run, 60.0, figures=SOME)

    await store.repositories.remove("payments")

    assert await outcomes(store, run) == [(1, "pod-1", RunStatus.CANCELLED)]
    (attempt,) = await store.attempts(run)
    assert attempt.ended_at is not None and attempt.error_code == "REPOSITORY_REMOVED"
    assert counts(await store.history.get(run.id)) == counts(SOME)


# Durations ------------------------------------------------------------------------------------------------------------


async def handed_back(store: Store) -> Run:
    await store.runs.end(await store.running(), YIELDING)
    return await store.ended()


async def retried(store: Store) -> Run:
    await store.runs.end(await store.running(), Retry("FILES_FAILED", "3 files", delay_seconds=-1.0))
    return await store.ended()


async def taken_over_twice(store: Store) -> Run:
    run = await store.taken_over(await store.running())
    return await store.ended(await store.taken_over(run))


async def never_taken_over(store: Store) -> Run:
    run = await store.taken_over(await store.running(max_attempts=2))
    await store.runs.expire(run)
    assert await store.runs.claim("worker-3", 60.0) is None
    return await store.history.get(run.id)


async def cancelled_while_it_waits(store: Store) -> Run:
    run = await store.running()
    await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=600.0))
    return await store.runs.cancel(run.id)


async def retried_by_a_person(store: Store) -> Run:
    failed = await store.ended(await store.running(), RunStatus.FAILED)
    await store.runs.retry(failed.id, Ask(RunTrigger.COMMAND))
    return await store.ended()


async def approved(store: Store) -> Run:
    await store.queued()
    waits = await stops(store)
    await store.runs.approve(waits.id, Ask(RunTrigger.COMMAND))
    return await store.ended()


async def blocked_again(store: Store) -> Run:
    await store.ticked()
    waits = await stops(store)
    await store.tick(TICK + timedelta(hours=1))
    await stops(store)
    return await store.history.get(waits.id)


@ON_EVERY_DATABASE
@pytest.mark.parametrize(
    "ends",
    [
        *(handed_back, retried, taken_over_twice, never_taken_over, cancelled_while_it_waits),
        *(retried_by_a_person, approved, blocked_again),
    ],
)
async def test_a_run_lasts_as_long_as_all_its_attempts_and_from_the_first_start_to_the_end(
    store: Store, ends: Callable[[Store], Awaitable[Run]]
) -> None:
    run = await ends(store)

    shown, attempts = run.document, await store.attempts(run)
    seconds = [(each.ended_at - each.started_at).total_seconds() for each in attempts if each.ended_at is not None]
    assert len(seconds) == len(attempts) and (sum(seconds) or ends in (taken_over_twice, never_taken_over))
    assert shown["duration_seconds"] == pytest.approx(sum(seconds), abs=0.001)
    assert shown["started_at"] == attempts[0].started_at
    elapsed = shown["completed_at"] - shown["started_at"]
    assert (
        shown["elapsed_seconds"]
        == elapsed.total_seconds()
        >= (attempts[-1].started_at - attempts[0].started_at).total_seconds()
    )


async def test_an_attempt_whose_worker_died_ends_with_its_lease_and_not_when_that_is_noticed(store: Store) -> None:
    run = await store.running()
    night = {"started_at": EARLIER, "lease_until": EARLIER + timedelta(seconds=15)}
    await store.database.change(RUNS.update().values(**night))

    done = await store.ended(await store.claimed("worker-2"))

    first, _ = await store.attempts(run)
    assert first.ended_at == night["lease_until"]
    assert 15 <= done.document["duration_seconds"] < 600 < done.document["elapsed_seconds"]


async def test_the_commit_before_a_run_is_that_before_its_first_attempt(store: Store) -> None:
    first = await store.running()
    await store.publishes(first)  # the words of a first sync
    again = await store.taken_over(first)
    done = await store.runs.end(again, Finish(), RunFigures(commit_after=COMMIT))
    assert (done.commit_before, done.commit_after) == (None, COMMIT)

    second = await store.ended(await store.running())
    assert second.commit_before == COMMIT
    failed = await store.ended(await store.running(), RunStatus.FAILED)
    assert (await store.runs.retry(failed.id, Ask(RunTrigger.COMMAND))).commit_before == COMMIT


# Transitions ----------------------------------------------------------------------------------------------------------


EARLIER = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
USED: dict[str, Any] = {
    "attempt": 1,
    "worker": "worker-1",
    "started_at": EARLIER,
    "lease_until": EARLIER + timedelta(minutes=1),
    "progress": {"stage": "read"},
    "cancel_requested": True,
    "error_code": "SOURCE_UNAVAILABLE",
    "error_message": "503",
    "brake": {"commit": "c" * 40},
    "completed_at": EARLIER,
    "duration_seconds": 12.0,
}


async def in_state(store: Store, status: str) -> Run:
    """A run that was used before, in that state."""
    run = await store.queued()
    await store.database.change(RUNS.update().where(RUNS.c.id == run.id).values(status=status, **USED))
    return await store.history.get(run.id)


async def after(store: Store, run: Run, event: Event, **said: Any) -> Run:
    async with store.database.write() as connection:
        row = await connection.one(locked(connection, RUNS.c.id == run.id))
        await move(connection, row, event, **said)
    return await store.history.get(run.id)


async def test_an_event_that_does_not_apply_to_the_state_changes_nothing(store: Store) -> None:
    for status in RunStatus:
        run = await in_state(store, status)
        for event in Event:
            if (status, event) not in TRANSITIONS:
                with pytest.raises(RunStateConflict, match=f"Run {run.id} is {status}: {event} does not apply"):
                    await after(store, run, event)
        assert await store.history.get(run.id) == run
        await store.database.change(RUNS.delete())


@pytest.mark.parametrize(("status", "event"), sorted(TRANSITIONS), ids=lambda each: str(each))
async def test_what_a_run_carries_fits_its_new_state(store: Store, status: RunStatus, event: Event) -> None:
    before = await in_state(store, status)

    run = await after(store, before, event)

    if run.status in FINAL:
        assert run.lease_until is None
        assert run.completed_at is not None and run.completed_at > EARLIER
        assert status is not RunStatus.RUNNING or run.duration_seconds == 60.0, "until its lease ended"
    if run.status in WAITING:
        assert run.lease_until is None
    if status in FINAL and run.status in WAITING:  # a person, or what a later run left undone
        assert (run.cancel_requested, run.error_code, run.error_message) == (False, None, None)
        assert (run.completed_at, run.duration_seconds) == (None, None)
        assert run.brake == USED["brake"], "an approval is of what was met"
    if event is Event.CLAIM:
        assert run.progress is None
    if event is Event.CANCEL and status is RunStatus.RUNNING:
        assert run.cancel_requested and run.lease_until == USED["lease_until"]


@pytest.mark.parametrize("event", [Event.HAND_BACK, Event.APPROVE, Event.RETRY])
async def test_a_run_that_waits_again_leaves_the_place_to_one_that_is_queued(store: Store, event: Event) -> None:
    status = next(state for state, each in TRANSITIONS if each is event)
    run = await in_state(store, status)
    queued, is_new = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))
    assert is_new

    assert (await after(store, run, event)).status is RunStatus.RETRYING
    assert (await store.history.get(queued.id)).status is RunStatus.QUEUED


# Lost answers -------------------------------------------------------------------------------------------------------

WHY = LockHeld("pod-9 holds it.")


@pytest.mark.parametrize(
    "end",
    [
        lambda store, run: store.runs.end(run, STOPPING),
        lambda store, run: store.runs.end(run, YIELDING, SOME),
        lambda store, run: store.runs.end(run, HandBack(WHY.code, str(WHY), delay_seconds=-1.0)),
        lambda store, run: store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=-1.0), SOME),
        lambda store, run: store.runs.end(run, Finish(), SOME),
    ],
    ids=["released", "yielded", "handed back", "retried", "completed"],
)
async def test_the_end_of_an_attempt_is_written_once_if_its_answer_was_lost(
    store: Store, end: Callable[[Store, Run], Awaitable[Run]]
) -> None:
    await store.queued()
    run = await store.claimed()
    if (await end(store, run)).status in WAITING:  # another attempt, which waits for the same reason
        run = await store.claimed("worker-2")
    first, attempts = await end(store, run), await store.attempts(run)

    assert await end(store, run) == first
    assert await store.attempts(run) == attempts
    taken = await store.runs.claim("worker-3", 60.0)
    assert await end(store, run) == (taken or first), "also if a worker has it again"


async def test_an_attempt_that_a_different_worker_ended_is_lost(store: Store) -> None:
    run = await store.running(max_attempts=1)
    await store.runs.expire(run)
    assert await store.runs.claim("worker-2", 60.0) is None

    for end in (
        store.runs.end(run, STOPPING),
        store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=1.0)),
        store.runs.end(run, Fail(), SOME),
    ):
        with pytest.raises(LeaseLost):
            await end
