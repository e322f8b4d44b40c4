"""The versions of an index: which one is searched, and that it changes in one moment or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from reposync.errors import DefinitionChanged, RepositoryNotFound, StoreUnavailable
from reposync.store.index_queries import SearchScope, search_scope, searched_version
from reposync.store.manifest import ManifestRow
from reposync.store.tables import VERSIONS, VersionState
from reposync.store.versions import Versions
from reposync.visible import Visible
from tests.integration.store.conftest import COMMIT, WHEN, Store

FILE = ManifestRow("a.py", "a" * 40, 0o100644, 10, 1, None, "python", 1)
LIVE, BUILDING, RETIRED = VersionState.LIVE, VersionState.BUILDING, VersionState.RETIRED


async def states(store: Store, repository_id: str) -> list[tuple[int, VersionState]]:
    return [(each.number, each.state) for each in await store.versions.of(repository_id)]


async def test_the_first_version_has_the_id_of_the_repository_and_later_ones_have_their_own(store: Store) -> None:
    run = await store.running()

    first = await store.building(run)
    await store.publishes(run, first)
    second = await store.building(run)
    await store.publishes(run, second)
    await store.versions.remove(run, first.id)
    third = await store.building(run)

    assert first.id == run.repository_id
    assert len({first.id, second.id, third.id}) == 3
    assert [each.number for each in (first, second, third)] == [1, 2, 3]
    assert await states(store, run.repository_id) == [(2, LIVE), (3, BUILDING)]


async def test_a_version_is_found_by_words_until_all_its_points_have_dense_vectors(store: Store) -> None:
    run = await store.running()
    version = await store.building(run)
    await store.versions.begin_epoch(run, version, identity="x")
    await store.manifests.record(run, version.id, [FILE._replace(path=f"{number}.py") for number in range(4)])
    live = await store.publishes(run, version, meaning_pending=4)

    async def by_words() -> tuple[dict[str, float], bool, set[str]]:
        scope, searched = await search_scope(store.database), await searched_version(store.database, run.repository)
        assert searched is not None
        found = {each for versions in scope.by_words.values() for each in versions}
        return await store.manifests.meaning_indexed({version.id}), searched.by_words, found

    await store.versions.record_meaning(run, version.id, 3)
    assert await by_words() == ({version.id: 0.25}, True, {version.id})
    await store.publishes(run, live)
    assert await by_words() == ({}, False, set())


@pytest.mark.parametrize("state", [LIVE, BUILDING])
async def test_no_repository_has_two_versions_that_are_live_or_two_that_are_built(
    store: Store, state: VersionState
) -> None:
    run = await store.running()
    first = await store.building(run)
    if state is LIVE:
        await store.publishes(run, first)
    again = {"id": "another", "repository_id": run.repository_id, "number": 2, "state": state, "generation": 0}
    where = {"collection": "code", "physical": "code", "settings": {}, "attributes": {}, "epoch": 0}

    with pytest.raises((IntegrityError, StoreUnavailable)):
        await store.database.change(insert(VERSIONS).values(**again, **where, created_at=WHEN))

    assert await states(store, run.repository_id) == [(1, state)]


async def test_each_attempt_writes_under_a_higher_epoch_than_any_before_it(store: Store) -> None:
    run = await store.running()
    version = await store.building(run)

    async def begun(above: int | None) -> int:
        return await store.versions.begin_epoch(run, version, identity="index-1", above=above)

    assert [await begun(above) for above in (None, 41, 7, None, 2**52)] == [1, 42, 43, 44, 2**52 + 1]
    assert (await store.repositories.get("payments")).epoch == 2**52 + 1
    assert (await store.history.get(run.id)).full_from_epoch == 0, "that of its first attempt"
    other = await store.building(run, settings_key="settings-2")
    assert await store.versions.begin_epoch(run, other, identity="index-1") == 2**52 + 2


async def test_a_commit_that_is_held_but_for_some_files_does_not_take_the_place_of_the_complete_one(
    store: Store,
) -> None:
    run = await store.running()
    await store.publishes(run)

    first = (await store.versions.of(run.repository_id))[0]
    epoch = await store.versions.begin_epoch(run, first, identity="index-2")
    (begun,) = await store.versions.of(run.repository_id)
    assert (begun.fingerprint, begun.commit_sha) == (None, COMMIT), "its manifest is mixed until it is published"
    assert (begun.epoch, begun.index_identity) == (epoch, "index-2")

    partial = await store.publishes(run, commit="d" * 40, complete=False)
    assert (partial.commit_sha, partial.partial_commit) == (COMMIT, "d" * 40)
    assert (await store.repositories.get("payments")).last_commit == COMMIT

    complete = await store.publishes(run, commit="d" * 40)
    assert (complete.commit_sha, complete.partial_commit) == ("d" * 40, None)
    assert complete.live_at == first.live_at, "it is live since then"


@pytest.mark.parametrize("change", [{"location": "https://example.com/x.git"}, {"resolved": {"include": ["src"]}}])
async def test_a_run_that_read_another_definition_publishes_nothing(store: Store, change: dict[str, Any]) -> None:
    run = await store.running()
    await store.publishes(run)
    built = await store.building(run, settings_key="settings-2")
    read = await store.repositories.get("payments")
    await store.repository(**change)
    row, versions = await store.repositories.get("payments"), await store.versions.of(run.repository_id)

    for version in (versions[0], built):
        with pytest.raises(DefinitionChanged, match="The definition of 'payments' changed"):
            await store.publishes(run, version, read=read, commit="d" * 40)

    assert await store.repositories.get("payments") == row
    assert await store.versions.of(run.repository_id) == versions


async def test_a_retired_version_is_built_again_in_place_of_the_one_that_was_being_built(store: Store) -> None:
    run = await store.running()
    first, _ = await store.replaced(run)
    await store.manifests.record(run, first.id, [FILE])
    await store.building(run, settings_key="settings-3")

    again = await store.versions.build_again(run, first, generation=7)

    assert await states(store, run.repository_id) == [(1, BUILDING), (2, LIVE), (3, RETIRED)]
    assert (again.retired_at, again.fingerprint, again.generation) == (None, None, 7)
    assert (again.commit_sha, await store.manifests.load(first.id)) == (COMMIT, {"a.py": FILE}), "what it has counts"
    await store.publishes(run, again)
    assert await states(store, run.repository_id) == [(1, LIVE), (2, RETIRED), (3, RETIRED)]


async def test_a_name_may_move_when_every_active_repository_of_the_collection_is_live_there(store: Store) -> None:
    runs = {name: await store.running(name) for name in ("a", "b", "c")}
    await store.repository("never synced")
    for run in runs.values():
        await store.publishes(run)
    assert await store.versions.not_on("code", "code--2") == 3

    for name in ("a", "b"):
        built = await store.building(runs[name], settings_key="settings-2", physical="code--2")
        assert await store.versions.not_on("code", "code--2") == (3 if name == "a" else 2)
        await store.publishes(runs[name], built)
    await store.repositories.pause("c", "holidays")
    assert await store.versions.not_on("code", "code--2") == 0
    assert await store.versions.not_on("other", "code--2") == 0


async def test_a_collection_is_used_as_long_as_any_version_may_have_points_there(store: Store) -> None:
    run = await store.running()
    first, _ = await store.replaced(run, physical="code--2")
    await store.ended(run)
    assert await store.versions.physical_collections() == {"code", "code--2"}

    again = await store.running()
    await store.versions.remove(again, first.id)

    assert await store.versions.physical_collections() == {"code--2"}


async def test_what_commits_say_is_known_of_every_version_and_goes_with_the_repository(store: Store) -> None:
    run, other = await store.running(), await store.running("invoices")
    first, second = await store.publishes(run), await store.building(run)
    of_other = await store.publishes(other)
    every = [each.id for each in (first, second, of_other)]
    assert not await store.versions.asked_for_commit_words(run.repository_id, 60)

    await store.versions.record_commit_words(run, None)
    assert await store.versions.asked_for_commit_words(run.repository_id, 60), "its source was asked"
    assert not await store.versions.asked_for_commit_words(run.repository_id, -60)
    assert await store.versions.commit_words(every) == {}

    await store.versions.record_commit_words(run, b"new\0")
    await store.versions.record_commit_words(run, None)
    assert await store.versions.commit_words(every) == {first.id: b"new\0", second.id: b"new\0"}
    limited = Versions(store.database.limited(Visible(frozenset({other.repository_id}))))
    assert await limited.commit_words(every) == {}

    await store.repositories.remove(run.repository, by=run)
    assert await store.versions.commit_words(every) == {}


# What searches ask ----------------------------------------------------------------------------------------------------


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
    first = (await store.versions.of(run.repository_id))[0]
    await store.publishes(run, await store.versions.build_again(run, first))
    seen = await has_changed(seen)
    assert await search_scope(store.database) == seen, "and of nothing else"
    # Built, live, and the one before removed, all between two looks.
    await store.publishes(run, await store.building(run, settings_key="settings-3"))
    await store.versions.remove(run, first.id)
    await has_changed(seen)


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


async def test_a_search_within_a_repository_uses_its_live_version(store: Store) -> None:
    run = await store.running()
    assert await searched_version(store.database, "payments") is None
    _, live = await store.replaced(run, physical="code--2")
    await store.building(run, settings_key="settings-3", physical="code--3")

    assert await searched_version(store.database, "payments") == ("code--2", live.id, False)
    with pytest.raises(RepositoryNotFound):
        await searched_version(store.database, "payment")
