"""What a run leaves when it ends: what it stopped at, who takes its place, and how many files it could not read."""

from __future__ import annotations

from typing import Any

import pytest

from reposync.errors import LeaseLost
from reposync.store.run import RunFigures, RunProblem
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import ON_SQLITE, Store

pytestmark = ON_SQLITE

BRAKE = {"commit": "c" * 40, "planned": {"deleted": 812}, "losses": {"deleted": 812}, "indexed": 900}
UNREAD = RunFigures(files_failed=3)


async def test_a_blocked_run_says_what_it_stopped_at_and_needs_a_new_approval(store: Store) -> None:
    queued = await store.queued(trigger=RunTrigger.COMMAND, approved=True)
    run = await store.runs.claim("worker-1", 60.0)
    assert run is not None and run.id == queued.id and run.approved

    blocked = await store.runs.finish(run, RunStatus.BLOCKED, RunFigures(), "DELETION_BLOCKED", "812", brake=BRAKE)

    assert (blocked.status, blocked.brake, blocked.approved) == (RunStatus.BLOCKED, BRAKE, False)
    again = await store.runs.approve(run.id)
    assert (again.brake, again.approved) == (BRAKE, True)


async def test_what_an_approval_beforehand_turned_out_to_be_is_noted_while_the_run_goes_on(store: Store) -> None:
    run = await store.running()

    await store.runs.record_brake(run, BRAKE)

    assert (await store.runs.get(run.id)).brake == BRAKE
    await store.taken_over(run)
    with pytest.raises(LeaseLost):
        await store.runs.record_brake(run, {**BRAKE, "indexed": 1})
    assert (await store.runs.get(run.id)).brake == BRAKE


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
