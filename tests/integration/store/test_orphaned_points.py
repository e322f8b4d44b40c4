"""Runs for what a repository left that is registered no more."""

from __future__ import annotations

from reposync.store.run import RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import ON_SQLITE, Store

pytestmark = ON_SQLITE

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


async def test_there_is_none_for_what_is_registered(store: Store) -> None:
    row = await store.repository()

    assert await store.runs.claim_orphan_removal(row.id, row.name, WORKER, 60.0) is None
    assert await store.runs.history() == []


async def test_what_had_a_run_here_is_known_by_its_latest_name(store: Store) -> None:
    row = await store.repository()
    run, _ = await store.runs.enqueue(row.name, RunTrigger.COMMAND)
    await store.runs.request_cancel(run.id)
    await store.repositories.rename(row.id, "renamed")
    await store.repositories.remove("renamed")

    assert await store.runs.past_names([row.id, "unheard of"]) == {row.id: "renamed"}
