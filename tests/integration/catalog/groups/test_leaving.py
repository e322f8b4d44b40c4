"""Projects that go away: paused with a reason, never removed, and resumed where the pause was ours."""

from __future__ import annotations

from typing import Any

import pytest

from reposync.store.run import Ask
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.ticks import TickOutcome, Ticks
from tests.integration.catalog.groups.conftest import TOKEN, GroupWorld

UNLISTED = "in the group's listing any more: it was moved or deleted, or is hidden from the token"


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        ({"archived": True}, "is archived"),
        ({"deleted": True}, f"is not {UNLISTED}"),
        ({"path": "other/a"}, f"is not {UNLISTED}"),
        ({"marked_for_deletion": True}, "is marked for deletion"),
        ({"repository_access_level": "disabled"}, "has its repository switched off"),
    ],
)
async def test_a_project_that_left_is_paused_with_the_reason_and_resumed_when_it_is_back(
    world: GroupWorld, leave: dict[str, Any], words: str
) -> None:
    project = world.project("platform/a", {"a.py": b"a = 1\n"})
    world.project("platform/b")
    await world.discover()
    await world.completed("platform/a")
    indexed = await world.points()
    before = {key: getattr(project, key) for key in leave}
    for key, value in leave.items():
        setattr(project, key, value)

    report = await world.discover()

    assert report.paused == (("platform/a", words),)
    row = await world.row_of(project)
    assert row.paused_reason is not None
    assert row.paused_reason.startswith(f"Left its group: the project {words}. Its index stays")
    assert "`reposync repos remove platform/a`" in row.paused_reason
    assert (row.is_active, report.problem, await world.points()) == (False, None, indexed)

    assert (await world.discover()).paused == ()
    assert (await world.row_of(project)).paused_reason == row.paused_reason

    for key, value in before.items():
        setattr(project, key, value)
    assert (await world.discover()).resumed == ("platform/a",)
    back = await world.row_of(project)
    assert (back.id, back.is_active, back.paused_reason) == (row.id, True, None)
    assert (await world.completed("platform/a")).files_processed == 0


async def test_what_waits_because_of_a_tick_is_cancelled_with_the_pause(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.discover()
    assert await Ticks(world.app.database).take(grace_seconds=300.0) == TickOutcome(first_runs=1)
    project.archived = True

    await world.discover()

    (run,) = await world.app.history.runs()
    assert (run.status, run.error_code) == (RunStatus.CANCELLED, "REPOSITORY_PAUSED")
    run, _ = await world.app.runs.enqueue("platform/a", Ask(RunTrigger.COMMAND))
    assert run.status is RunStatus.QUEUED, "a person may still sync it"


async def test_a_pause_of_a_person_stays_hers(world: GroupWorld) -> None:
    project = world.project("platform/a")
    world.project("platform/b")
    await world.discover()
    await world.app.repositories.pause("platform/a", "Too noisy.")
    project.archived = True
    await world.discover()
    project.archived = False

    report = await world.discover()

    assert (report.resumed, report.paused) == ((), ())
    assert (await world.row_of(project)).paused_reason == "Too noisy."
    project.move("platform/c")
    await world.discover()
    row = await world.row_of(project)
    assert (row.name, row.paused_reason) == ("platform/c", "Too noisy.")


async def test_a_project_that_is_excluded_from_now_on_is_paused(world: GroupWorld) -> None:
    assert (await world.discover()).problem is None, "a group without projects is none"
    world.project("platform/a")
    await world.discover()
    world.register("{gitlab: main, group: platform, exclude: [a]}")
    await world.reload()

    await world.discover()

    assert await world.active() == set()


async def test_a_pause_says_what_happened_last(world: GroupWorld) -> None:
    project = world.project("platform/a")
    world.project("platform/b")
    await world.discover()

    for change, words in (({"archived": True}, "is archived"), ({"path": "platform/c"}, "remove platform/c`")):
        for key, value in change.items():
            setattr(project, key, value)
        await world.discover()
        assert words in str((await world.row_of(project)).paused_reason)
    project.deleted = True
    await world.discover()
    assert UNLISTED in str((await world.row_of(project)).paused_reason)


# The brake ---------------------------------------------------------------------------------------------------------


async def test_a_listing_that_lost_more_than_half_changes_nothing_until_a_person_agrees(world: GroupWorld) -> None:
    projects = [world.project(f"platform/service-{number}") for number in range(30)]
    await world.discover()
    before = await world.rows()
    for project in projects[:16]:
        project.deleted = True
    new = world.project("platform/new")
    projects[20].move("platform/moved")

    report = await world.discover()

    assert report.problem_code == "GROUP_SHRANK"
    assert "without 16 of the 30" in str(report.problem)
    assert await world.rows() == before
    await world.list_again()
    assert (await world.run_due(), world.results) == (1, ["failed"])
    assert await world.rows() == before

    approved = await world.discover(approved=True)

    assert (approved.added, len(approved.renamed), len(approved.paused)) == (("platform/new",), 1, 16)
    assert len(await world.active()) == 15
    assert (await world.row_of(new)).is_active
    assert approved.problem is None


async def test_a_listing_that_lost_half_is_believed(world: GroupWorld) -> None:
    projects = [world.project(f"platform/service-{number}") for number in range(30)]
    await world.discover()
    for project in projects[:15]:
        project.deleted = True

    report = await world.discover()

    assert (report.problem, len(report.paused)) == (None, 15)


async def test_a_group_that_is_suddenly_empty_pauses_nothing(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.discover()
    world.server.tokens[TOKEN].projects = frozenset()

    report = await world.discover()

    assert (report.problem_code, report.paused) == ("GROUP_SHRANK", ())
    assert (await world.row_of(project)).is_active
    world.server.tokens[TOKEN].projects = None
    assert (await world.discover()).problem is None


async def test_a_project_that_the_listing_missed_between_two_pages_is_not_paused(
    world: GroupWorld, small_pages: int
) -> None:
    projects = [world.project(f"platform/service-{number}") for number in range(small_pages + 3)]
    await world.discover()
    world.server.faults.answer(405, "{}", path="keyset", times=None)
    world.server.faults.call(lambda: setattr(projects[0], "deleted", True), path="page=2")

    report = await world.discover()

    # The first of the second page slipped onto the first one, which had been read.
    assert (report.listed, report.paused) == (small_pages + 3, ())
    assert len((await world.discover()).paused) == 1
