"""Who asks for a run, and what becomes of the run when they take that back."""

from __future__ import annotations

from typing import Any

from reposync.store.run import Run
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import TICK, Store

MINE = "11111111-1111-4111-8111-111111111111"


async def clicked(store: Store, asked_by: str = "token 1", **asked: Any) -> Run:
    run, _ = await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by=asked_by, **asked)
    return run


async def test_the_same_request_of_the_same_client_is_no_further_one(store: Store) -> None:
    run = await clicked_first(store)
    again = [await clicked(store), await clicked(store, "token 2"), await clicked(store, full=True)]

    assert {each.id for each in again} == {run.id}
    assert (again[-1].full, again[0]) == (True, run)
    requests = (await store.runs.requests([run.id]))[run.id]
    assert [(each.asked_by, each.full) for each in requests] == [
        ("token 1", False),
        ("token 2", False),
        ("token 1", True),
    ]


async def clicked_first(store: Store) -> Run:
    await store.repository()
    return await clicked(store)


# Taking it back -----------------------------------------------------------------------------------------------------


async def test_ctrl_c_of_a_command_leaves_the_run_of_a_push(store: Store) -> None:
    pushed = await store.queued(trigger=RunTrigger.WEBHOOK)
    same, is_new = await store.runs.enqueue("payments", RunTrigger.COMMAND, request_id=MINE, full=True)
    assert (same.id, is_new, same.full, same.priority) == (pushed.id, False, True, 0)

    left = await store.runs.withdraw(MINE, by="an interrupt")

    assert left is not None
    assert (left.id, left.status, left.full, left.priority) == (pushed.id, RunStatus.QUEUED, False, 10)
    assert left.trigger is RunTrigger.WEBHOOK


async def test_a_cancel_withdraws_all_requests_and_names_its_author(store: Store) -> None:
    await store.ticked()
    run = await clicked(store, "token 1")

    assert (await store.runs.request_cancel(run.id, by="zoe@laptop")).status is RunStatus.CANCELLED

    requests = (await store.runs.requests([run.id]))[run.id]
    assert [(each.trigger, each.asked_by, each.withdrawn_by) for each in requests] == [
        ("schedule", "schedule", "zoe@laptop"),
        ("http", "token 1", "zoe@laptop"),
    ]


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
    assert await store.runs.heartbeat(running, 60.0)
    again, _ = await store.runs.enqueue("payments", RunTrigger.HTTP, asked_by="token 2", removal=True)
    assert (again.id, again.status, again.removal) == (waiting.id, RunStatus.QUEUED, True)


# Failures at a command ----------------------------------------------------------------------------------------------


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


# Attempts and waiting -----------------------------------------------------------------------------------------------


async def test_hand_backs_do_not_raise_the_number_of_failures(store: Store) -> None:
    run = await store.running()
    for _ in range(9):
        await store.runs.release(run)
        run = await store.runs.claim("worker-1", 60.0)
    assert (run.attempt, run.failures, run.max_attempts) == (10, 1, 12)

    again = await store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "503")

    assert again.status is RunStatus.RETRYING
    assert (await store.runs.claim("worker-1", 60.0)).failures == 2
