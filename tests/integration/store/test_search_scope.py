"""What a search asks the database: what is live, what must not be found, and that the answer costs the same however
many repositories there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import delete, event

from reposync.errors import RepositoryNotFound
from reposync.store.index_queries import SearchScope, findable, search_scope, searched_repository
from reposync.store.tables import REPOSITORIES, VERSIONS, VersionState
from tests.integration.store.conftest import ON_EVERY_DATABASE, WHEN, Store


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


async def test_search_learns_of_a_version_that_was_built_and_became_live_between_two_looks(store: Store) -> None:
    run = await store.running()
    first = await store.publishes(run)
    seen = await search_scope(store.database)

    await store.publishes(run, await store.building(run, settings_key="settings-2"))
    await store.versions.remove(run, first.id)

    assert not seen.still_holds(await search_scope(store.database))


async def test_points_of_versions_that_are_not_live_are_hidden_in_the_collection_that_has_them(store: Store) -> None:
    run, other = await store.running(), await store.running("other")
    first, _ = await store.replaced(run, physical="code--2")
    building = await store.building(run, settings_key="settings-3", physical="code--3")
    await store.publishes(other)

    found = await search_scope(store.database)

    assert (found.collections, found.names) == ({"code", "code--2"}, set())
    assert {name: found.hidden_in(name) for name in ("code", "code--2", "code--3")} == {
        "code": {first.id},
        "code--2": set(),
        "code--3": {building.id},
    }


async def test_a_repository_that_older_programs_alone_have_synced_is_searched_by_the_name_of_its_collection(
    store: Store,
) -> None:
    await store.repository("never synced", collection="empty")
    await store.synced_by_an_old_pod("payments")
    row = await store.repositories.get("payments")

    found = await search_scope(store.database)

    assert (found.names, found.collections) == ({"code"}, set())
    assert await findable(store.database, [row.id]) == {row.id: True}
    assert (await searched_repository(store.database, "payments")).collection == "code"
    assert (await searched_repository(store.database, "never synced")).collection is None


async def test_what_an_old_pod_writes_is_not_found_if_no_version_has_that_id_any_more(store: Store) -> None:
    run = await store.running()
    first, second = await store.replaced(run, physical="code--2")
    await store.versions.remove(run, first.id)
    assert (first.id, run.repository_id) == (run.repository_id, run.repository_id)

    await store.synced_by_an_old_pod("payments")

    assert await findable(store.database, [run.repository_id, second.id]) == {
        run.repository_id: False,
        second.id: True,
    }


async def test_points_may_be_found_as_long_as_their_version_is_live(store: Store) -> None:
    run = await store.running()
    live = await store.publishes(run)
    building = await store.building(run, settings_key="settings-2")
    assert await findable(store.database, [live.id, building.id, "unknown"]) == {live.id: True, building.id: False}

    await store.publishes(run, building)

    assert await findable(store.database, [live.id, building.id]) == {live.id: False, building.id: True}
    await store.repositories.remove("payments")
    assert await findable(store.database, [live.id, building.id]) == {}


async def test_a_search_within_a_repository_goes_to_the_version_that_is_asked_for(store: Store) -> None:
    run = await store.running()
    _, live = await store.replaced(run, physical="code--2")
    building = await store.building(run, settings_key="settings-3", physical="code--3")

    found = await searched_repository(store.database, "payments")

    assert found.collection is None
    assert found.versions[VersionState.LIVE] == ("code--2", live.id)
    assert found.versions[VersionState.BUILDING] == ("code--3", building.id)
    with pytest.raises(RepositoryNotFound):
        await searched_repository(store.database, "payment")


# What it costs --------------------------------------------------------------------------------------------------------


@contextmanager
def rows_read(store: Store) -> Iterator[list[tuple[str, int]]]:
    """Statement and number of rows that came back, of every SELECT."""
    counted: list[tuple[str, int]] = []

    def note(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        # Both drivers' adapters have read all of it by then.
        rows = getattr(cursor, "_rows", ())
        counted.append((statement, len(rows)))

    engine = store.database._engine.sync_engine
    event.listen(engine, "after_cursor_execute", note)
    try:
        yield counted
    finally:
        event.remove(engine, "after_cursor_execute", note)


async def registered(store: Store, count: int) -> None:
    """So many repositories, each with a live version, of GitLab projects 1 to `count`."""
    names = [f"repository-{number:04}" for number in range(1, count + 1)]
    await store.database_rows(names)
    run = await store.running(names[0])
    live = await store.publishes(run)
    rows = await store.repositories.list(names)
    async with store.database.write() as connection:
        for number, row in enumerate(rows, 1):
            changes = {
                "source": "gitlab",
                "location": f"https://gitlab.example.com/group/{row.name}",
                "project_id": number if number % 2 else None,
                "cron_expression": "0 * * * *",
                "last_sync_at": WHEN,
                "live_version": row.id,
            }
            await connection.execute(REPOSITORIES.update().where(REPOSITORIES.c.id == row.id).values(**changes))
        version = dict((await connection.execute(VERSIONS.select())).mappings().one())
        await connection.execute(delete(VERSIONS))
        same = {key: value for key, value in version.items() if key not in ("id", "repository_id")}
        await connection.execute(VERSIONS.insert(), [{"id": row.id, "repository_id": row.id, **same} for row in rows])
    assert live.id in {row.id for row in rows}


@ON_EVERY_DATABASE
async def test_a_search_and_a_push_read_the_same_rows_however_many_repositories_there_are(store: Store) -> None:
    read = {}
    for count in (5, 300):
        await registered(store, count)
        ids = [(await store.repositories.get(f"repository-{number:04}")).id for number in (1, 2)]
        with rows_read(store) as counted:
            found = await search_scope(store.database)
            assert await findable(store.database, ids) == dict.fromkeys(ids, True)
            assert len((await searched_repository(store.database, "repository-0003")).versions) == 1
            places = ["https://gitlab.example.com/group/repository-0004"]
            assert len(await store.repositories.of_project(1, ["https://elsewhere.example.com/x"])) == 1
            assert len(await store.repositories.of_project(4, places)) == 1
        assert (found.collections, found.hidden) == ({"code"}, {})
        assert counted, "no statement was seen"
        read[count] = [number for _, number in counted]
        for name in [f"repository-{number:04}" for number in range(1, count + 1)]:
            await store.repositories.remove(name)
    assert read[5] == read[300] != [0] * len(read[5])
    assert sum(read[300]) < 12
