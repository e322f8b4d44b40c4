"""Groups and the repositories that follow their projects, on both databases."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import update

from reposync.errors import DefinitionChanged, LeaseLost
from reposync.store.registry import GroupRepositories, ProjectGroups, RegistrationsChanged, RepositoryChange
from reposync.store.tables import GROUPS, ProjectGroup
from tests.integration.store.conftest import COMMIT, Store, registration

A, B = "https://gitlab.example.com/a", "https://gitlab.example.com/b"


async def due(groups: ProjectGroups, worker: str, *among: str, lease_seconds: float = 60) -> ProjectGroup:
    """The claim of a group that is due."""
    claim = await groups.claim_due(worker, lease_seconds, among=among)
    assert claim is not None
    return claim


def in_an_hour(now: datetime) -> datetime:
    return now + timedelta(hours=1)


@pytest.fixture
def groups(store: Store) -> ProjectGroups:
    return ProjectGroups(store.database)


@pytest.fixture
def followed(store: Store) -> GroupRepositories:
    return GroupRepositories(store.database)


async def test_a_declared_group_is_due_until_it_is_recorded(groups: ProjectGroups) -> None:
    await groups.declare([A, B])

    claim = await due(groups, "w1", A, B)
    assert (claim.key, (await due(groups, "w2", A, B)).key) == (A, B)
    assert await groups.claim_due("w3", 60, among=[A, B]) is None
    assert await groups.record(claim, in_an_hour, projects=7)

    first, second = await groups.list()
    assert (first.key, first.projects, first.worker, first.lease_until) == (A, 7, None, None)
    assert first.checked_at is not None
    assert first.due_at == in_an_hour(first.checked_at)
    assert (second.worker, second.checked_at) == ("w2", None)
    assert await groups.claim_due("w3", 60, among=[A, B]) is None
    await groups.declare([A])
    again = await due(groups, "w3", A)
    assert (again.key, again.projects) == (A, 7), "declared again it is due, and keeps what is known"
    await groups.record(again, in_an_hour)
    await groups.declare(["not asked for"])
    for among in ([A, B], []):
        assert await groups.claim_due("w3", 60, among=among) is None


async def test_one_of_many_workers_gets_a_group_and_the_next_one_when_it_gives_it_up(groups: ProjectGroups) -> None:
    await groups.declare([A])

    claims = await asyncio.gather(*(groups.claim_due(f"w{number}", 60, among=[A]) for number in range(8)))

    (claim,) = [each for each in claims if each is not None]
    await groups.release(claim)
    assert (await due(groups, "later", A)).key == A, "it is as due as before"


@pytest.mark.parametrize(
    ("worker", "lease_seconds"), [("w2", -1), ("w1", -1), ("person", 60)], ids=["lease is over", "its own", "a person"]
)
async def test_a_worker_that_lost_a_group_writes_nothing(
    store: Store, groups: ProjectGroups, worker: str, lease_seconds: float
) -> None:
    await groups.declare([A])
    dead = await due(groups, "w1", A, lease_seconds=lease_seconds)
    if worker == "person":
        assert await groups.claim_due("w2", 60, among=[A]) is None
        claim = await groups.claim(A, worker, 60)
    else:
        claim = await due(groups, worker, A)

    with pytest.raises(LeaseLost):
        await groups.renew(dead, 60)
    async with store.database.write() as connection:
        with pytest.raises(LeaseLost):
            await groups.require_held(dead, connection)
    assert not await groups.record(dead, in_an_hour, projects=9)
    await groups.release(dead)

    (state,) = await groups.list()
    assert (state.worker, state.projects) == (worker, 0)
    await groups.renew(claim, 60)
    await store.database.change(update(GROUPS).values(worker="pod of 0.2, which counts no attempts"))
    with pytest.raises(LeaseLost):
        await groups.renew(claim, 60)


async def test_what_a_claim_that_is_gone_guards_is_not_written(
    store: Store, groups: ProjectGroups, followed: GroupRepositories
) -> None:
    there = await store.repository("a")
    await groups.declare([A])
    dead = await due(groups, "w1", A, lease_seconds=-1)
    claim = await due(groups, "w1", A)
    new = registration("b")

    for guard in (partial(groups.require_held, dead), partial(groups.require_held, claim)):
        gone = guard.args == (dead,)
        for write in (
            followed.register_all([new], guard=guard),
            followed.apply_changes([RepositoryChange(there, {"branch": "main"})], guard=guard),
        ):
            with pytest.raises(LeaseLost) if gone else nullcontext():
                await write
        assert [row.name for row in await followed.list()] == (["a"] if gone else ["a", "b"])


async def test_an_error_stands_until_the_next_time_goes_well(groups: ProjectGroups) -> None:
    await groups.record(await groups.claim(A, "w1", 60), in_an_hour, projects=7)
    good = (await groups.list())[0]
    claim = await groups.claim(A, "w1", 60)
    await groups.record(claim, in_an_hour, error_code="SOURCE_GONE", error_message="gone\0" + "x" * 20_000)

    (state,) = await groups.list()
    assert (state.error_code, state.projects, state.checked_at) == ("SOURCE_GONE", 7, good.checked_at)
    assert str(state.error_message).startswith("gone␀xxx")
    assert len(str(state.error_message)) == 10_000

    await groups.record(await groups.claim(A, "w1", 60), in_an_hour, projects=8)
    (state,) = await groups.list()
    assert (state.error_code, state.error_message, state.projects) == (None, None, 8)


async def test_what_is_not_configured_any_more_is_forgotten(groups: ProjectGroups) -> None:
    await groups.declare([A, B])
    assert await groups.forget([B]) == [A]
    assert [state.key for state in await groups.list()] == [B]
    assert await groups.forget([]) == [B]


# Repositories ------------------------------------------------------------------------------------------------------


async def test_a_name_that_is_taken_changes_nothing_at_all(store: Store, followed: GroupRepositories) -> None:
    first, second = await store.repository("a"), await store.repository("b")

    with pytest.raises(RegistrationsChanged):
        pause = RepositoryChange(first, {"is_active": False, "paused_reason": "x"})
        await followed.apply_changes([pause, RepositoryChange(second, {"name": "a"})])

    assert [row.name for row in await followed.list()] == ["a", "b"]
    assert (await followed.by_id(first.id)).is_active


@pytest.mark.parametrize("change", ["pause", "rename", "remove"])
async def test_what_a_person_changed_meanwhile_has_to_be_looked_at_again(
    store: Store, followed: GroupRepositories, change: str
) -> None:
    first, second = await store.repository("a"), await store.repository("b")
    if change == "pause":
        await store.repositories.pause("b", "mine")
    elif change == "rename":
        await store.renamed(second, "c")
    else:
        await store.repositories.remove("b")

    with pytest.raises(RegistrationsChanged):
        rename = RepositoryChange(first, {"name": "z"})
        await followed.apply_changes([rename, RepositoryChange(second, {"is_active": True})])

    assert (await followed.by_id(first.id)).name == "a"


async def test_what_a_sync_wrote_meanwhile_is_no_reason_to_look_again(
    store: Store, followed: GroupRepositories
) -> None:
    row = await store.repository("a")
    await store.publishes(await store.running("a"))

    await followed.apply_changes([RepositoryChange(row, {"name": "b"})])

    after = await followed.by_id(row.id)
    assert (after.name, after.last_commit) == ("b", COMMIT)


async def test_a_run_that_began_under_the_former_name_publishes_nothing_and_the_next_one_renews_names_and_links(
    store: Store, followed: GroupRepositories
) -> None:
    row = await store.repository("a")
    run = await store.running("a")
    building = await store.building(run)

    await followed.apply_changes([RepositoryChange(row, {"name": "b"})])

    with pytest.raises(DefinitionChanged):
        await store.publishes(run, building, read=row)
    assert [version.links for version in await store.versions.of(row.id)] == [""]
    assert (await store.publishes(run, building, links="here")).links == "here"
    moved = registration("b", location="https://git.example.com/moved.git")
    await store.repositories.register(moved)
    assert [version.links for version in await store.versions.of(row.id)] == [""]
