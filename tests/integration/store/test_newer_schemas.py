"""Databases and rows of newer programs, and databases that no release made."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import text

from reposync.errors import RunStateConflict, StoreUnavailable
from reposync.store.database import Database
from reposync.store.endings import STOPPING
from reposync.store.index_queries import search_scope, searched_version
from reposync.store.run import Ask, RunFigures
from reposync.store.schema import HEAD, VERSION_TABLE
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import RUNS, VERSIONS
from tests.fixtures.newer_rows import STATE, STATUS, TRIGGER, newer
from tests.integration.store.conftest import Store

# Schemas -------------------------------------------------------------------------------------------------------------


async def change_revision(database: Database, revision: str) -> None:
    """What a migration of a later version records."""
    await database.change(text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))


@pytest.mark.parametrize("operation", ["upgrade", "require_current"])
@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("9999_for_9000", "9999_for_9000, which is newer"),
        ("9999", "9999, which is newer"),
        ("0004", "0004, which is older than that of 0.2.0, .* Upgrade it with version 0.2.1 first"),
    ],
)
async def test_a_schema_that_this_version_cannot_work_with_is_refused_and_unchanged(
    empty: Database, operation: str, revision: str, message: str
) -> None:
    await empty.upgrade()
    await change_revision(empty, revision)

    with pytest.raises(StoreUnavailable, match=message):
        await empty.upgrade() if operation == "upgrade" else (await empty.schema()).require("here")

    assert (await empty.schema()).state == "incompatible"
    assert (await empty.schema()).revision == revision


async def test_a_compatible_schema_of_a_newer_version_is_used(empty: Database) -> None:
    await empty.upgrade()
    await change_revision(empty, f"9999_for_{HEAD}")

    assert await empty.upgrade() is False
    (await empty.schema()).require("here")

    assert (await empty.schema()).state == "ahead"
    assert (await empty.schema()).revision == f"9999_for_{HEAD}"


def test_a_current_schema_is_recognised_without_loading_alembic(database_url: str) -> None:
    program = """
import asyncio, sys
from reposync.store.database import Database

async def main():
    async with await Database.open(sys.argv[1]) as database:
        print(await database.upgrade(), "alembic" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program, database_url], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["False", "False"], done.stderr


# Words ---------------------------------------------------------------------------------------------------------------


async def test_a_run_with_an_unknown_status_is_over_and_others_go_on(store: Store) -> None:
    odd = await store.queued()
    await newer(store.database, RUNS.c.id, odd.id, status=STATUS)

    seen = await store.history.get(odd.id)
    assert (seen.status, seen.is_final) == (STATUS, True)
    assert [run.status for run in await store.history.runs()] == [STATUS]
    assert await store.history.runs(status=RunStatus.COMPLETED) == []
    assert await store.history.active(odd.repository_id) == []
    assert await store.history.latest_statuses(list(RunStatus)) == {}
    assert (await store.history.latest())[odd.repository_id].status == STATUS
    assert (await store.history.queue()).counts == {}
    assert (await store.runs.cancel(odd.id)).status == STATUS, "nobody knows what that would mean"
    for change in (store.runs.approve, store.runs.retry):
        with pytest.raises(RunStateConflict, match=STATUS):
            await change(odd.id, Ask(RunTrigger.COMMAND))

    fresh, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))
    assert fresh.id != odd.id
    claimed = await store.runs.claim("worker-1", 60.0)
    assert claimed is not None and claimed.id == fresh.id


async def test_a_run_with_an_unknown_trigger_is_claimed_kept_and_finished(store: Store) -> None:
    waiting = await store.queued()
    await newer(store.database, RUNS.c.id, waiting.id, trigger=TRIGGER)

    run = await store.claimed()
    await store.runs.heartbeat(run, 60.0, {"phase": "indexing"}, RunFigures())
    handed_back = await store.runs.end(run, STOPPING)
    ended = await store.ended()

    assert [(each.id, each.trigger) for each in (run, handed_back, ended)] == [(waiting.id, TRIGGER)] * 3
    assert ended.status is RunStatus.COMPLETED


async def test_a_version_in_an_unknown_state_is_listed_and_not_searched(store: Store) -> None:
    run = await store.running()
    version = await store.building(run)
    await newer(store.database, VERSIONS.c.repository_id, run.repository_id, state=STATE)

    (seen,) = await store.versions.of(run.repository_id)

    assert (seen.id, seen.state) == (version.id, STATE)
    assert [each.state for each in (await store.versions.all())[run.repository_id]] == [STATE]
    assert version.id in (await search_scope(store.database)).hidden_in("code")
    assert await searched_version(store.database, "payments") is None
    # A run of this program builds its own beside it.
    assert (await store.publishes(run, await store.building(run))).number == 2
