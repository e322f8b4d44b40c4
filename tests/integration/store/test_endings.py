"""How runs end: what they stopped at, their successors, files that could not be read. At most one run of a repository
waits for a person."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reposync.store.run import Run, RunFigures, RunProblem
from reposync.store.status import RunStatus, RunTrigger
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


async def test_a_completed_run_closes_the_blocked_one_with_a_message(store: Store) -> None:
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


async def test_an_approval_covers_what_the_run_stopped_at_and_names_its_author(store: Store) -> None:
    await store.ticked()
    waits = await stops(store, 700)

    approved = await store.runs.approve(waits.id, by="zoe@laptop")

    assert (approved.status, approved.approved, approved.brake) == (RunStatus.QUEUED, True, brake(700))
    assert (approved.error_code, approved.error_message) == (None, None)
    request = (await store.runs.requests([waits.id]))[waits.id][-1]
    assert (request.asked_by, request.approval) == ("zoe@laptop", brake(700))
    worse = await stops(store, 812)
    assert (worse.id, worse.status, worse.approved, worse.brake) == (waits.id, RunStatus.BLOCKED, False, brake(812))


# Ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"full": True, "approved": True}])
async def test_a_run_that_was_overtaken_is_followed_by_one_that_does_what_it_was_to_do(
    store: Store, asked: dict[str, Any]
) -> None:
    run = await store.running(trigger=RunTrigger.WEBHOOK, **asked)

    await store.runs.finish(run, RunStatus.CANCELLED, RunFigures(), "SUPERSEDED", "registered anew", followed_up=True)

    (follower,) = await store.runs.active(run.repository_id)
    assert (follower.status, follower.trigger) == (RunStatus.QUEUED, RunTrigger.WEBHOOK)
    assert (follower.full, follower.approved) == (run.full, run.approved)
    await store.runs.finish(run, RunStatus.CANCELLED, RunFigures(), followed_up=True)
    assert [each.id for each in await store.runs.active(run.repository_id)] == [follower.id], "said twice, queued once"


async def test_files_that_could_not_be_read_are_those_of_the_latest_attempt(store: Store) -> None:
    run = await store.running()
    waits = await store.runs.retry_later(run, -1.0, "FILES_FAILED", "3 files", RunFigures(files_failed=3))
    assert waits.files_failed == 3
    second = await store.runs.claim("worker-2", 60.0, run_id=run.id)
    assert second is not None

    done = await store.runs.finish(second, RunStatus.COMPLETED, RunFigures(files_failed=1, files_processed=2))

    assert (done.files_failed, done.files_processed) == (1, 2)
    assert [each.files_failed for each in await store.runs.attempts(run.id)] == [3, 1]


async def test_how_often_a_file_failed_in_the_same_way_is_counted_by_runs(store: Store) -> None:
    for detail in ("died, at blob 1%", "died, at blob 1%", "died, at blob 2", "unreadable"):
        run = await store.running()
        await store.runs.add_problems(run, [RunProblem("a.py", "failed", detail), RunProblem("b.py", "binary", detail)])
        await store.runs.finish(run, RunStatus.COMPLETED, RunFigures())

    found = await store.runs.failures(run.repository_id, "died, at")
    assert found == {("a.py", "died, at blob 1%"): 2, ("a.py", "died, at blob 2"): 1}
    assert await store.runs.failures(run.repository_id, "died, at blob 1%") == {("a.py", "died, at blob 1%"): 2}
    assert await store.runs.failures("another", "died") == {}


@pytest.mark.parametrize("row", ["is gone", "is gone, and the run cancelled", "is there"])
async def test_a_removal_whose_last_worker_died_is_completed_if_the_row_is_gone(store: Store, row: str) -> None:
    run = await store.running(trigger=RunTrigger.HTTP, removal=True, max_attempts=1)
    if row != "is there":
        await store.repositories.remove("payments", by=run)
    if row.endswith("cancelled"):
        await store.runs.request_cancel(run.id)
    await store.runs.expire(run)

    assert await store.runs.claim("worker-2", 60.0) is None

    ended = await store.runs.get(run.id)
    if row == "is there":
        assert (ended.status, ended.error_code) == (RunStatus.FAILED, "RUN_ABANDONED")
    else:
        assert (ended.status, ended.error_code, ended.repository) == (RunStatus.COMPLETED, None, "payments")
        assert str(ended.error_message).startswith("An earlier attempt removed the repository")
    assert [each.outcome for each in await store.runs.attempts(run.id)] == ["lost"]


# Runs that remove the points of a repository that is no longer registered --------------------------------------------

WORKER = "pod-a:1:0"


async def test_it_is_its_workers_from_the_first_moment_and_keeps_syncs_of_that_id_waiting(store: Store) -> None:
    row = await store.repository()
    await store.repositories.remove(row.name)

    run = await store.runs.claim_orphan_removal(row.id, row.name, WORKER, 60.0)

    assert run is not None
    assert (run.status, run.worker, run.attempt, run.removal, run.repair) == ("running", WORKER, 1, True, True)
    assert (await store.runs.attempts(run.id))[0].worker == WORKER
    assert await store.runs.claim_orphan_removal(row.id, row.name, "another", 60.0) is None
    again = await store.repository()
    assert again.id == row.id
    sync, is_new = await store.runs.enqueue(row.name, RunTrigger.COMMAND)
    assert (is_new, sync.removal, sync.repair) == (True, False, False)
    assert await store.runs.claim("another", 60.0) is None
    await store.runs.finish(run, RunStatus.COMPLETED, RunFigures())
    claimed = await store.runs.claim("another", 60.0)
    assert claimed is not None and claimed.id == sync.id
