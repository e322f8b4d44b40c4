"""What a search asks the database: what is live, what must not be found, and that the answer costs the same however
many repositories there are."""

from __future__ import annotations

import pytest

from reposync.errors import RepositoryNotFound
from reposync.store.index_queries import SearchScope, search_scope, searched_versions
from reposync.store.tables import VersionState
from tests.integration.store.conftest import ON_EVERY_DATABASE, Store


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


@ON_EVERY_DATABASE
async def test_search_learns_of_every_version_that_becomes_live_or_is_retired(store: Store) -> None:
    run = await store.running()
    seen = await search_scope(store.database)

    async def has_changed(seen: SearchScope) -> SearchScope:
        now = await search_scope(store.database)
        assert not seen.still_holds(now)
        return now

    await store.publishes(run)
    seen = await has_changed(seen)
    second = await store.building(run, settings_key="settings-2")
    seen, before = await search_scope(store.database), seen
    assert before.still_holds(seen), "nothing became live"
    await store.publishes(run, second)
    seen = await has_changed(seen)
    await store.versions.roll_back("payments")
    seen = await has_changed(seen)
    await store.versions.roll_back("payments")
    seen = await has_changed(seen)
    assert await search_scope(store.database) == seen, "and of nothing else"


async def test_points_of_versions_that_are_not_live_are_hidden_in_the_collection_that_has_them(store: Store) -> None:
    run, other = await store.running(), await store.running("other")
    first, _ = await store.replaced(run, physical="code--2")
    building = await store.building(run, settings_key="settings-3", physical="code--3")
    await store.publishes(other)

    found = await search_scope(store.database)

    assert found.collections == {"code", "code--2"}
    assert {name: found.hidden_in(name) for name in ("code", "code--2", "code--3")} == {
        "code": {first.id},
        "code--2": set(),
        "code--3": {building.id},
    }


async def test_points_may_be_found_as_long_as_their_version_is_live(store: Store) -> None:
    run = await store.running()
    live = await store.publishes(run)
    building = await store.building(run, settings_key="settings-2")
    assert (await search_scope(store.database, [live.id, building.id, "unknown"])).findable == {
        live.id: True,
        building.id: False,
    }

    await store.publishes(run, building)

    assert (await search_scope(store.database, [live.id, building.id])).findable == {live.id: False, building.id: True}
    await store.repositories.remove("payments")
    assert (await search_scope(store.database, [live.id, building.id])).findable == {}


async def test_a_search_within_a_repository_uses_the_requested_version(store: Store) -> None:
    run = await store.running()
    _, live = await store.replaced(run, physical="code--2")
    building = await store.building(run, settings_key="settings-3", physical="code--3")

    found = await searched_versions(store.database, "payments")

    assert found[VersionState.LIVE] == ("code--2", live.id)
    assert found[VersionState.BUILDING] == ("code--3", building.id)
    with pytest.raises(RepositoryNotFound):
        await searched_versions(store.database, "payment")
