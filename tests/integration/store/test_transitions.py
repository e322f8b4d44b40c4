"""The states of a run: what an event leads to, what it clears, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reposync.errors import RunStateConflict
from reposync.store.run import Run
from reposync.store.run_state import TRANSITIONS, Event, locked, move
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.tables import RUNS
from tests.integration.store.conftest import Store

EARLIER = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
USED: dict[str, Any] = {
    "attempt": 1,
    "worker": "worker-1",
    "started_at": EARLIER,
    "lease_until": EARLIER,
    "progress": {"stage": "read"},
    "cancel_requested": True,
    "error_code": "SOURCE_UNAVAILABLE",
    "error_message": "503",
    "brake": {"commit": "c" * 40},
    "completed_at": EARLIER,
    "duration_seconds": 12.0,
}


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


async def in_state(store: Store, status: str) -> Run:
    """A run that was used before, in that state."""
    run = await store.queued()
    async with store.database.write() as connection:
        await connection.execute(RUNS.update().where(RUNS.c.id == run.id).values(status=status, **USED))
    return await store.runs.get(run.id)


async def after(store: Store, run: Run, event: Event, **said: Any) -> Run:
    async with store.database.write() as connection:
        row = await connection.one(locked(connection, RUNS.c.id == run.id))
        await move(connection, row, event, **said)
    return await store.runs.get(run.id)


async def test_an_event_that_does_not_apply_to_the_state_changes_nothing(store: Store) -> None:
    for status in RunStatus:
        run = await in_state(store, status)
        for event in Event:
            if (status, event) not in TRANSITIONS:
                with pytest.raises(RunStateConflict, match=f"Run {run.id} is {status}: {event} does not apply"):
                    await after(store, run, event)
        assert await store.runs.get(run.id) == run
        async with store.database.write() as connection:
            await connection.execute(RUNS.delete())


@pytest.mark.parametrize(("status", "event"), sorted(TRANSITIONS), ids=lambda each: str(each))
async def test_what_a_run_carries_fits_its_new_state(store: Store, status: RunStatus, event: Event) -> None:
    before = await in_state(store, status)

    run = await after(store, before, event)

    if run.status in FINAL:
        assert run.lease_until is None
        assert run.completed_at is not None and run.completed_at > EARLIER
        assert status is not RunStatus.RUNNING or (run.duration_seconds or 0) > 12.0, "of this attempt"
    if run.status in WAITING:
        assert run.lease_until is None
    if status in FINAL and run.status in WAITING:  # a person, or what a later run left undone
        assert (run.cancel_requested, run.error_code, run.error_message) == (False, None, None)
        assert (run.completed_at, run.duration_seconds) == (None, None)
        assert run.brake == USED["brake"], "an approval is of what was met"
    if event is Event.CLAIM:
        assert run.progress is None
    if event is Event.WITHDRAW and status is RunStatus.RUNNING:
        assert run.cancel_requested and run.lease_until == EARLIER


@pytest.mark.parametrize("event", [Event.HAND_BACK, Event.APPROVE, Event.RETRY])
async def test_a_run_that_waits_again_leaves_the_place_to_one_that_is_queued(store: Store, event: Event) -> None:
    status = next(state for state, each in TRANSITIONS if each is event)
    run = await in_state(store, status)
    queued, is_new = await store.runs.enqueue("payments", RunTrigger.HTTP)
    assert is_new

    assert (await after(store, run, event)).status is RunStatus.RETRYING
    assert (await store.runs.get(queued.id)).status is RunStatus.QUEUED
