"""What watchers ask, on both databases."""

from __future__ import annotations

import pytest

from reposync.errors import LeaseLost
from reposync.store.index_queries import indexed_commits
from reposync.store.run import RunFigures
from reposync.store.status import RunStatus
from tests.integration.store.conftest import ON_SQLITE, Store

pytestmark = ON_SQLITE


async def test_runs_are_read_by_their_ids_and_those_that_are_gone_are_left_out(store: Store):
    runs = [await store.queued(name) for name in ("a", "b", "c")]

    found = await store.runs.by_ids({runs[0].id, runs[2].id, "gone"})

    assert found == {run.id: run for run in (runs[0], runs[2])}
    assert await store.runs.by_ids([]) == {}


async def test_progress_is_told_without_touching_lease_or_figures(store: Store):
    run = await store.running()

    await store.runs.report_progress(run, {"phase": "indexing", "files_done": 3})

    told = await store.runs.get(run.id)
    assert told.progress == {"phase": "indexing", "files_done": 3}
    assert (told.lease_until, told.status, told.files_processed) == (run.lease_until, RunStatus.RUNNING, 0)


async def test_nobody_tells_the_progress_of_a_run_that_is_another_attempts_or_over(store: Store):
    first = await store.running()
    second = await store.taken_over(first)

    with pytest.raises(LeaseLost):
        await store.runs.report_progress(first, {"phase": "indexing"})
    await store.runs.finish(second, RunStatus.COMPLETED, RunFigures())
    with pytest.raises(LeaseLost):
        await store.runs.report_progress(second, {"phase": "indexing"})
    assert (await store.runs.get(first.id)).progress is None


async def test_what_the_index_holds_is_read_for_many_repositories_at_once(store: Store):
    synced, fresh = await store.repository("synced"), await store.repository("fresh")
    await store.runs.enqueue("synced", "command")
    run = await store.claimed()
    await store.publishes(run)
    when = (await store.repositories.get("synced")).last_sync_at
    assert when is not None
    await store.repositories.pause("fresh", "holidays")

    found = await indexed_commits(store.database, {synced.id, fresh.id, "gone"})

    assert {key: (each.name, each.commit, each.last_sync_at, each.is_active) for key, each in found.items()} == {
        synced.id: ("synced", "c" * 40, when, True),
        fresh.id: ("fresh", None, None, False),
    }
    assert found[fresh.id].paused_reason == "holidays"
