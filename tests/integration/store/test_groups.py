"""Groups and the repositories that follow their projects, on both databases."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import update

from reposync.errors import LeaseLost
from reposync.store.project_groups import (
    GroupClaim,
    GroupRepositories,
    ProjectGroups,
    RegistrationsChanged,
    RepositoryChange,
)
from reposync.store.repository import Registration, Repository
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import GROUPS
from tests.integration.store.conftest import Store

A, B = "https://gitlab.example.com/a", "https://gitlab.example.com/b"


async def due(groups: ProjectGroups, worker: str, *among: str, lease_seconds: float = 60) -> GroupClaim:
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


async def test_a_group_that_is_not_asked_for_is_not_claimed(groups: ProjectGroups) -> None:
    await groups.declare([A])
    assert await groups.claim_due("w1", 60, among=[B]) is None
    assert await groups.claim_due("w1", 60, among=[]) is None


async def test_to_declare_a_group_again_makes_it_due_and_keeps_what_is_known(groups: ProjectGroups) -> None:
    await groups.declare([A])
    await groups.record(await due(groups, "w1", A), in_an_hour, projects=7)

    await groups.declare([A])

    assert (await groups.list())[0].projects == 7
    assert (await due(groups, "w1", A)).key == A


async def test_many_get_one_group_each(groups: ProjectGroups) -> None:
    keys = [f"{A}/{number}" for number in range(4)]
    await groups.declare(keys)
    claimed = [await due(groups, f"w{number}", *keys) for number in range(4)]
    assert [each.key for each in claimed] == keys


async def test_a_lease_that_ran_out_is_nobodys_and_its_worker_writes_nothing(
    store: Store, groups: ProjectGroups
) -> None:
    await groups.declare([A])
    dead = await due(groups, "dead", A, lease_seconds=-1)
    claim = await due(groups, "w2", A)

    with pytest.raises(LeaseLost):
        await groups.renew(dead, 60)
    async with store.database.write() as connection:
        with pytest.raises(LeaseLost):
            await groups.require_held(dead, connection)
    assert not await groups.record(dead, in_an_hour, projects=9)
    await groups.release(dead)

    (state,) = await groups.list()
    assert (state.worker, state.projects) == ("w2", 0)
    await groups.renew(claim, 60)


async def test_what_a_claim_that_is_gone_guards_is_not_written(
    store: Store, groups: ProjectGroups, followed: GroupRepositories
) -> None:
    there = await store.repository("a")
    await groups.declare([A])
    dead = await due(groups, "w1", A, lease_seconds=-1)
    claim = await due(groups, "w1", A)
    new = Registration(name="b", location="/b", source="path", origin="command", collection="code")

    for guard in (partial(groups.require_held, dead), partial(groups.require_held, claim)):
        gone = guard.args == (dead,)
        for write in (
            followed.register_all([new], guard=guard),
            followed.apply_changes([RepositoryChange(there, {"branch": "main"})], guard=guard),
            followed.relocate(there, "/elsewhere", guard=guard),
        ):
            with pytest.raises(LeaseLost) if gone else nullcontext():
                await write
        assert [row.name for row in await followed.list()] == (["a"] if gone else ["a", "b"])


async def test_two_looks_of_one_worker_are_not_the_same(groups: ProjectGroups) -> None:
    """A look that hung beyond its lease, and the next one of the same process."""
    await groups.declare([A])
    first = await due(groups, "w1", A, lease_seconds=-1)
    second = await due(groups, "w1", A)

    assert not await groups.record(first, in_an_hour, projects=9)
    with pytest.raises(LeaseLost):
        await groups.renew(first, 60)
    assert await groups.record(second, in_an_hour, projects=7)


async def test_a_program_that_counts_no_attempts_takes_a_group_over_all_the_same(
    store: Store, groups: ProjectGroups
) -> None:
    await groups.declare([A])
    claim = await due(groups, "w1", A)
    async with store.database.write() as connection:
        await connection.execute(update(GROUPS).values(worker="pod of 0.2"))

    with pytest.raises(LeaseLost):
        await groups.renew(claim, 60)


async def test_a_person_takes_a_group_whoever_has_it(groups: ProjectGroups) -> None:
    first = await groups.claim(A, "person", 60)
    await groups.declare([A])
    assert await groups.claim_due("w1", 60, among=[A]) is None
    second = await groups.claim(A, "other", 60)

    with pytest.raises(LeaseLost):
        await groups.renew(first, 60)
    assert await groups.record(second, in_an_hour)


async def test_a_group_that_was_given_up_is_as_due_as_before(groups: ProjectGroups) -> None:
    await groups.declare([A])
    (before,) = await groups.list()
    await groups.release(await due(groups, "w1", A))
    (after,) = await groups.list()
    assert after == before.model_copy(update={"attempt": 1})
    assert (await due(groups, "w2", A)).key == A


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


async def project(store: Store, name: str, number: int) -> Repository:
    return await store.repositories.register(
        Registration(
            name=name,
            location=f"{A}/{name}",
            source="gitlab",
            origin="group",
            collection="code",
            project_id=number,
            cron_expression="@hourly",
            definition={"name": name},
            group_key=A,
        )
    )


async def test_names_go_round_in_a_circle_and_the_history_with_them(store: Store, followed: GroupRepositories) -> None:
    rows = [await project(store, name, number) for number, name in enumerate("abc")]
    runs = [(await store.runs.enqueue(row.name, RunTrigger.COMMAND))[0] for row in rows]

    await followed.apply_changes([RepositoryChange(row, {"name": name}) for row, name in zip(rows, "bca", strict=True)])

    assert [(await followed.by_id(row.id)).name for row in rows] == ["b", "c", "a"]
    assert [(await store.runs.get(run.id)).repository for run in runs] == ["b", "c", "a"]
    new = await project(store, "d", 9)
    assert new.id not in {row.id for row in rows}


async def test_a_name_that_is_taken_changes_nothing_at_all(store: Store, followed: GroupRepositories) -> None:
    first, second = await project(store, "a", 1), await project(store, "b", 2)

    with pytest.raises(RegistrationsChanged):
        await followed.apply_changes(
            [
                RepositoryChange(first, {"is_active": False, "paused_reason": "x"}),
                RepositoryChange(second, {"name": "a"}),
            ]
        )

    assert [row.name for row in await followed.list()] == ["a", "b"]
    assert (await followed.by_id(first.id)).is_active


@pytest.mark.parametrize("change", ["pause", "rename", "remove"])
async def test_what_a_person_changed_meanwhile_has_to_be_looked_at_again(
    store: Store, followed: GroupRepositories, change: str
) -> None:
    first, second = await project(store, "a", 1), await project(store, "b", 2)
    if change == "pause":
        await store.repositories.pause("b", "mine")
    elif change == "rename":
        await store.repositories.rename(second.id, "c")
    else:
        await store.repositories.remove("b")

    with pytest.raises(RegistrationsChanged):
        await followed.apply_changes(
            [RepositoryChange(first, {"name": "z"}), RepositoryChange(second, {"is_active": True})]
        )

    assert (await followed.by_id(first.id)).name == "a"


async def test_a_sync_that_was_published_meanwhile_is_no_reason_to_look_again(
    store: Store, followed: GroupRepositories
) -> None:
    row = await project(store, "a", 1)
    await followed.relocate(row, f"{A}/elsewhere")
    await followed.apply_changes([RepositoryChange(row, {"name": "b"})])
    assert ((await followed.by_id(row.id)).name, (await followed.by_id(row.id)).location) == ("b", f"{A}/elsewhere")


async def test_a_pause_cancels_what_waits_because_of_a_tick_and_nothing_else(
    store: Store, followed: GroupRepositories
) -> None:
    rows = [await project(store, name, number) for number, name in enumerate("abc")]
    triggers = [RunTrigger.WEBHOOK, RunTrigger.COMMAND, RunTrigger.WEBHOOK]
    runs = [(await store.runs.enqueue(row.name, trigger))[0] for row, trigger in zip(rows, triggers, strict=True)]

    await followed.apply_changes(
        [RepositoryChange(row, {"is_active": False, "paused_reason": "gone"}) for row in rows[:2]]
    )

    ended = [await store.runs.get(run.id) for run in runs]
    assert [run.status for run in ended] == [RunStatus.CANCELLED, RunStatus.QUEUED, RunStatus.QUEUED]
    assert [(await followed.by_id(row.id)).is_active for row in rows] == [False, False, True]


async def test_a_repository_that_goes_on_has_missed_no_tick(store: Store, followed: GroupRepositories) -> None:
    row = await project(store, "a", 1)
    await followed.apply_changes([RepositoryChange(row, {"is_active": False, "paused_reason": "gone"})])
    paused = await followed.by_id(row.id)
    await followed.apply_changes([RepositoryChange(paused, {"is_active": True, "paused_reason": None})])
    back = await followed.by_id(row.id)
    assert row.scheduled_since is not None
    assert back.scheduled_since is not None
    assert back.scheduled_since > row.scheduled_since


async def test_two_who_move_the_same_repositories_do_not_wait_for_each_other_for_ever(
    store: Store, followed: GroupRepositories
) -> None:
    rows = [await project(store, f"p{number}", number) for number in range(20)]
    ways = [[RepositoryChange(row, {"name": f"{row.name}-{way}"}) for row in rows] for way in "xy"]

    ended = await asyncio.gather(
        followed.apply_changes(ways[0]), followed.apply_changes(list(reversed(ways[1]))), return_exceptions=True
    )

    assert [type(each) for each in ended].count(RegistrationsChanged) == 1
    assert len({row.name[-1] for row in await followed.list()}) == 1
