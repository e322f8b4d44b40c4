"""When groups are due, and new names of their repositories, on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from reposync.errors import DefinitionChanged, RegistryConflict, RepositoryChanged
from reposync.store.tables import ProjectGroup
from tests.integration.store.conftest import COMMIT, Store, registration

A, B = "https://gitlab.example.com/a", "https://gitlab.example.com/b"
LONG_SECONDS = 3600.0


def key_of(group: ProjectGroup | None) -> str | None:
    return None if group is None else group.key


async def test_a_group_is_due_once_and_again_when_it_was_scheduled(store: Store) -> None:
    groups = store.groups
    await store.put_groups(A, B)
    taken = [await groups.take(LONG_SECONDS) for _ in range(3)]
    assert [key_of(group) for group in taken] == [A, B, None]
    assert taken[0] is not None and taken[0].definition == {"gitlab": "main", "group": "a"}

    assert taken[1] is not None
    await groups.schedule(taken[1], groups.now() - timedelta(seconds=1))
    assert key_of(await groups.take(LONG_SECONDS)) == B
    await store.put_groups(A)
    again = await groups.take(LONG_SECONDS)
    assert key_of(again) == A, "with a new definition it is due"
    await groups.make_due()
    assert again is not None
    await groups.schedule(again, groups.now() + timedelta(days=1))
    assert {key_of(await groups.take(LONG_SECONDS)) for _ in range(3)} == {A, B, None}, "made due while it was listed"
    await store.put_groups(gone=[A, B])
    assert await groups.take(LONG_SECONDS) is None


async def test_one_of_many_workers_gets_a_group_and_the_next_one_when_that_died(store: Store) -> None:
    await store.put_groups(A)
    taken = await asyncio.gather(*(store.groups.take(LONG_SECONDS) for _ in range(8)))
    assert sorted(map(key_of, taken), key=str) == [None] * 7 + [A]

    await store.groups.make_due()
    assert key_of(await store.groups.take(0.0)) == A
    assert key_of(await store.groups.take(LONG_SECONDS)) == A


async def test_a_group_of_the_file_and_one_that_was_put_never_replace_each_other(store: Store) -> None:
    await store.put_groups(A)
    await store.put_groups(B, origin="http")

    for key, origin in ((A, "http"), (B, "config")):
        with pytest.raises(RegistryConflict):
            await store.put_groups(key, origin=origin)

    assert [(row.key, row.origin) for row in await store.groups.all()] == [(A, "config"), (B, "http")]


async def test_repositories_of_a_group_that_is_gone_are_not_registered_again(store: Store) -> None:
    await store.put_groups(A)
    await store.repositories.register_all([registration("payments")], guard=store.groups.guard(A))
    await store.put_groups(gone=[A])
    with pytest.raises(RepositoryChanged, match="left the registry"):
        await store.repositories.register_all([registration("orders")], guard=store.groups.guard(A))
    assert await store.repositories.names() == ["payments"]


# Repositories ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["taken", "removed"])
async def test_a_name_that_was_taken_or_a_repository_that_was_removed_meanwhile_changes_nothing(
    store: Store, change: str
) -> None:
    first, second = await store.repository("a"), await store.repository("b")
    if change == "removed":
        await store.repositories.remove("b")

    with pytest.raises(RepositoryChanged):
        await store.repositories.rename(second, "a" if change == "taken" else "c")

    names = [row.name for row in await store.repositories.list()]
    assert names == (["a", "b"] if change == "taken" else ["a"])
    assert await store.repositories.by_id(first.id) == first


async def test_a_rename_keeps_what_a_sync_wrote_meanwhile(store: Store) -> None:
    row = await store.repository("a")
    await store.publishes(await store.running("a"))

    after = await store.renamed(row, "b")

    assert (after.name, after.last_commit) == ("b", COMMIT)


async def test_a_run_that_began_under_the_former_name_publishes_nothing_and_the_next_one_renews_names_and_links(
    store: Store,
) -> None:
    row = await store.repository("a")
    run = await store.running("a")
    building = await store.building(run)

    await store.renamed(row, "b")

    with pytest.raises(DefinitionChanged):
        await store.publishes(run, building, read=row)
    assert [version.links for version in await store.versions.of(row.id)] == [""]
    assert (await store.publishes(run, building, links="here")).links == "here"
    moved = registration("b", location="https://git.example.com/moved.git")
    await store.repositories.register(moved)
    assert [version.links for version in await store.versions.of(row.id)] == [""]
