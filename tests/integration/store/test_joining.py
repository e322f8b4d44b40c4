"""Asking for what is going to happen in any case is answered without a write, and never with a run that does less."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reposync.store.addresses import sqlite_url
from reposync.store.database import Database
from reposync.store.joining import waiting_run
from reposync.store.status import RunTrigger
from tests.integration.store.conftest import Store

TICK = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def joined(store: Store, **asked: bool) -> str | None:
    run = await waiting_run(store.database, "payments", RunTrigger.HTTP, **asked)
    return None if run is None else run.id


async def test_a_run_that_waits_is_joined(store: Store) -> None:
    run = await store.queued()

    assert await joined(store) == run.id
    assert await store.runs.get(run.id) == run, "as it was"


async def test_a_run_that_has_begun_or_ended_is_not_joined(store: Store) -> None:
    run = await store.running()
    assert await joined(store) is None

    await store.runs.release(run)
    assert await joined(store) == run.id
    await store.runs.request_cancel(run.id)
    assert await joined(store) is None


async def test_nobody_joins_the_run_of_another_repository_or_of_none(store: Store) -> None:
    await store.queued("other")
    assert await joined(store) is None
    await store.repository()
    assert await joined(store) is None


async def test_nobody_joins_a_run_of_what_left_the_registry_but_a_paused_repository_can_be_synced(store: Store) -> None:
    run = await store.queued()
    await store.repositories.pause("payments", "being moved")
    assert await joined(store) == run.id

    await store.repositories.deactivate("payments")
    assert await joined(store) is None


async def test_a_tick_that_waits_behind_others_is_not_joined_by_a_click_which_goes_first(store: Store) -> None:
    await store.repository()
    await store.tick(TICK)
    assert await joined(store) is None

    hastened, _ = await store.runs.enqueue("payments", RunTrigger.HTTP)
    assert await joined(store) == hastened.id


async def test_a_run_that_waits_for_its_next_attempt_is_not_joined(store: Store) -> None:
    run = await store.running()
    await store.runs.retry_later(run, 3_600.0, "SOURCE_UNAVAILABLE", "GitLab answered 503.")

    assert await joined(store) is None


@pytest.mark.parametrize("kind", ["full", "approved"])
async def test_whoever_asks_for_more_than_the_run_does_is_not_sent_to_it(store: Store, kind: str) -> None:
    await store.queued()
    assert await joined(store, **{kind: True}) is None

    more, _ = await store.runs.enqueue("payments", RunTrigger.HTTP, **{kind: True})
    assert await joined(store, **{kind: True}) == more.id
    assert await joined(store) == more.id, "who asks for less is"


@pytest.fixture
def file(upgraded_sqlite_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(upgraded_sqlite_file, tmp_path / "reposync.db"))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(RunTrigger), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_whatever_is_joined_would_have_been_left_as_it_is(
    file: Path, trigger: RunTrigger, was_full: bool, was_approved: bool, full: bool, approved: bool
) -> None:
    async def check() -> None:
        async with await Database.open(sqlite_url(file)) as database:
            store = Store(database)
            await store.repository()
            run, _ = await store.runs.enqueue("payments", trigger, full=was_full, approved=was_approved)
            found = await waiting_run(database, "payments", RunTrigger.HTTP, full=full, approved=approved)
            if found is not None:
                after, created = await store.runs.enqueue("payments", RunTrigger.HTTP, full=full, approved=approved)
                assert (after, created) == (found, False)
            await store.runs.request_cancel(run.id)

    asyncio.run(check())
