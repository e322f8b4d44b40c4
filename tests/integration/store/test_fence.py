"""The fence: a worker whose run was taken over, or whose repository was removed, writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from reposync.errors import LeaseLost
from reposync.store.columns import metadata
from reposync.store.manifest import ManifestRow
from reposync.store.run import RunFigures, RunProblem
from reposync.store.status import RunStatus
from tests.integration.store.conftest import Store

FILE = ManifestRow("a.py", "a" * 40, 0o100644, 10, 1, None, "python", 1)
LATE = RunFigures(files_processed=7)


async def everything(store: Store) -> dict[str, list[Any]]:
    async with store.database.read() as connection:
        return {
            table.name: sorted((await connection.execute(select(table))).all(), key=repr)
            for table in metadata.sorted_tables
        }


@pytest.mark.parametrize("successor", ["worker-1", "worker-2"])
async def test_an_attempt_that_was_taken_over_changes_nothing(store: Store, successor: str) -> None:
    stale = await store.running(worker="worker-1")
    first, second = await store.replaced(stale)
    await store.manifests.record(stale, first.id, [FILE])
    read = await store.repositories.get("payments")
    await store.taken_over(stale, worker=successor)
    before = await everything(store)

    for write in (
        store.runs.heartbeat(stale, 60.0),
        store.runs.heartbeat(stale, 60.0, {"stage": "late"}, LATE),
        store.runs.report_progress(stale, {"stage": "late"}),
        store.runs.finish(stale, RunStatus.COMPLETED, LATE),
        store.runs.finish(stale, RunStatus.CANCELLED, LATE, followed_up=True),
        store.runs.retry_later(stale, 1.0, "SOURCE_UNAVAILABLE", "late", LATE),
        store.runs.release(stale, LATE),
        store.runs.record_brake(stale, {"commit": "c" * 40}),
        store.runs.add_problems(stale, [RunProblem("a.py", "failed", "late")]),
        store.runs.forget_problems(stale, "failed"),
        store.manifests.record(stale, first.id, [FILE]),
        store.manifests.forget(stale, first.id, ["a.py"]),
        store.manifests.clear(stale, first.id),
        store.building(stale),
        store.versions.set_columns(stale, second.id, links="late"),
        store.versions.build_again(stale, first),
        store.versions.begin_epoch(stale, second, identity="late"),
        store.publishes(stale, second, read=read, commit="e" * 40),
        store.publishes(stale, first, read=read, commit="e" * 40),
        store.versions.remove(stale, first.id),
        store.repositories.remove("payments", by=stale),
    ):
        with pytest.raises(LeaseLost, match="attempt 1 of worker-1"):
            await write
    await store.runs.expire(stale)

    assert await everything(store) == before


async def test_a_worker_whose_repository_was_removed_finds_its_lease_lost(store: Store) -> None:
    run = await store.running()
    await store.repositories.remove("payments")
    before = await everything(store)

    for write in (
        store.runs.heartbeat(run, 60.0),
        store.runs.release(run),
        store.runs.retry_later(run, 1.0, "SOURCE_UNAVAILABLE", "503"),
        store.runs.finish(run, RunStatus.COMPLETED, RunFigures()),
        store.manifests.record(run, run.repository_id, [FILE]),
    ):
        with pytest.raises(LeaseLost):
            await write

    assert await everything(store) == before
