"""A newer program shares the database: words that this one does not know are shown, and stop nothing."""

from __future__ import annotations

import pytest

from reposync.errors import RunStateConflict
from reposync.store.index_queries import search_scope, searched_versions
from reposync.store.status import RunStatus
from tests.fixtures.newer_rows import STATE, STATUS, newer_run, newer_versions
from tests.integration.store.conftest import ON_EVERY_DATABASE, Store


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


@ON_EVERY_DATABASE
async def test_a_run_with_an_unknown_status_is_over_and_others_go_on(store: Store) -> None:
    odd = await store.queued()
    await newer_run(store.database, odd.id, status=STATUS)

    seen = await store.runs.get(odd.id)
    assert (seen.status, seen.is_final) == (STATUS, True)
    assert [run.status for run in await store.runs.history()] == [STATUS]
    assert await store.runs.history(status=RunStatus.COMPLETED) == []
    assert await store.runs.active(odd.repository_id) == []
    assert await store.runs.latest_statuses(list(RunStatus)) == {}
    assert (await store.runs.latest())[odd.repository_id].status == STATUS
    assert (await store.runs.queue()).counts == {}
    assert (await store.runs.request_cancel(odd.id)).status == STATUS, "nobody knows what that would mean"
    for change in (store.runs.approve, store.runs.retry):
        with pytest.raises(RunStateConflict, match=STATUS):
            await change(odd.id)

    fresh = await store.queued_again()
    assert fresh.id != odd.id
    claimed = await store.runs.claim("worker-1", 60.0)
    assert claimed is not None and claimed.id == fresh.id


async def test_a_version_in_an_unknown_state_is_listed_and_not_searched(store: Store) -> None:
    run = await store.running()
    version = await store.building(run)
    await newer_versions(store.database, run.repository_id, state=STATE)

    (seen,) = await store.versions.of(run.repository_id)

    assert (seen.id, seen.state) == (version.id, STATE)
    assert [each.state for each in (await store.versions.all())[run.repository_id]] == [STATE]
    assert version.id in (await search_scope(store.database)).hidden_in("code")
    assert (await searched_versions(store.database, "payments")) == {STATE: ("code", version.id)}
    # A run of this program builds its own beside it.
    assert (await store.publishes(run, await store.building(run))).number == 2
