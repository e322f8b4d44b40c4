"""Which projects of a group are registered, and what is said about them."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from reposync.store.repository import Registration
from reposync.store.tables import GROUPS
from tests.integration.catalog.groups.conftest import PLATFORM, GroupWorld


async def test_three_hundred_projects_register_themselves_in_four_requests(world: GroupWorld) -> None:
    for number in range(300):
        world.project(f"platform/team-{number % 7}/service-{number}")

    report = await world.discover()

    assert (report.listed, report.projects, len(report.added)) == (300, 300, 300)
    assert world.listings() == len(world.server.log) == 4, "three full pages, and one that says that there is no more"
    assert await world.active() == {f"platform/team-{number % 7}/service-{number}" for number in range(300)}
    path = "platform/team-0/service-0"
    row = (await world.rows())[path]
    assert (row.location, row.source, row.origin) == (f"{world.server.url}/{path}", "gitlab", "group")
    assert (row.project_id, row.collection, row.cron_expression) == (1, world.collection, "0 */6 * * *")
    assert row.group_key == f"{world.server.url}/platform"
    assert row.definition == {"name": path, "gitlab": "main", "project": path}

    again = await world.discover()

    assert (again.unchanged, again.added, again.renamed, again.paused, again.resumed) == (300, (), (), (), ())
    assert (await world.rows())[path] == row
    assert (again.projects, again.problem) == (300, None)


async def test_only_projects_whose_paths_fit_are_registered(closed_world: GroupWorld) -> None:
    world = closed_world
    world.register('{gitlab: main, group: platform, include: ["core/", "platform/web*"], exclude: ["**/archive-*"]}')
    for path in ("core/a", "core/archive-b", "web", "web-shop", "tools/web", "tools/core/c"):
        world.project(f"platform/{path}")

    async with world.opened():
        report = await world.discover()

        assert set(report.added) == {f"platform/{path}" for path in ("core/a", "web", "web-shop", "tools/core/c")}
        assert report.skipped == {
            "is left out by `include` or `exclude` of the group": ("platform/core/archive-b", "platform/tools/web")
        }


async def test_projects_that_cannot_be_synced_yet_are_left_out_and_counted(world: GroupWorld) -> None:
    world.project("platform/archived", archived=True)
    world.project("platform/empty", {})
    world.project("platform/going").marked_for_deletion = True
    world.project("platform/wiki-alone").repository_access_level = "disabled"
    world.project("platform/members").repository_access_level = "private"
    world.project("platform/" + "long-" * 50)

    report = await world.discover()

    assert report.added == ("platform/members",)
    assert {reason: len(paths) for reason, paths in report.skipped.items()} == {
        "is archived": 1,
        "has no commit yet": 1,
        "is marked for deletion": 1,
        "has its repository switched off": 1,
        "has a path that cannot be a name here": 1,
    }
    assert report.problem is None


async def test_archived_projects_are_registered_if_configured(closed_world: GroupWorld) -> None:
    world = closed_world
    world.register("{gitlab: main, group: platform, archived: true}")
    world.project("platform/old", archived=True)

    async with world.opened():
        assert (await world.discover()).added == ("platform/old",)


async def test_without_a_token_public_projects_are_registered_but_no_archived_ones(closed_world: GroupWorld) -> None:
    world = closed_world
    world.register(PLATFORM, token=False)
    world.project("platform/hidden")
    world.project("platform/open", visibility="public")
    old = world.project("platform/old", visibility="public", archived=True)

    async with world.opened():
        assert (await world.discover()).added == ("platform/open",)
        old.archived = False
        await world.discover()
        assert await world.active() == {"platform/open", "platform/old"}
        old.archived = True
        assert len((await world.discover()).paused) == 1


async def test_groups_and_their_projects_with_one_schedule_are_due_at_different_moments(
    closed_world: GroupWorld,
) -> None:
    world = closed_world
    names = ("a", "b", "c", "d", "e")
    world.register(*(f"{{gitlab: main, group: {name}, discover: H H * * *, schedule: H * * * *}}" for name in names))
    for name in names:
        world.project(f"{name}/project")
    async with world.opened():
        await world.list_again()

        assert await world.run_due() == len(names)

        rows = (await world.rows()).values()
        due = await world.app.database.scalars(select(GROUPS.c.due_at))
    assert len({row.cron_expression for row in rows}) > 1
    assert len(set(due)) > 1


@pytest.mark.parametrize(("schedule", "cron"), [("every 2 hours", "0 */2 * * *"), ("never", None)])
async def test_a_change_of_the_groups_schedule_reaches_its_repositories(
    world: GroupWorld, schedule: str, cron: str | None
) -> None:
    world.project("platform/a")
    await world.discover()
    world.register(f"{{gitlab: main, group: platform, schedule: {schedule}}}")
    await world.reload()

    reports = [await world.discover() for _ in range(2)]

    row = (await world.rows())["platform/a"]
    assert (row.cron_expression, row.is_active) == (cron, True)
    assert [(each.added, each.renamed, each.unchanged) for each in reports] == [((), (), 0), ((), (), 1)]


# Whose project it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        "{name: payments, gitlab: main, project: platform/payments}",
        "{name: payments, gitlab: main, project: Platform/Payments}",
        "{name: platform/payments, git: https://git.example.com/other.git}",
    ],
)
async def test_a_project_that_is_listed_by_name_or_path_is_left_to_its_entry(
    closed_world: GroupWorld, entry: str
) -> None:
    world = closed_world
    world.register(PLATFORM, more=f"repositories: [{entry}]")
    world.project("platform/payments")
    world.project("platform/a")

    async with world.opened():
        report = await world.discover()

        assert report.added == ("platform/a",)
        assert list(report.skipped.values()) == [("platform/payments",)]


async def test_a_project_that_was_registered_by_a_request_is_left_to_that_wherever_it_moves(world: GroupWorld) -> None:
    project = world.project("platform/payments")
    place = {"location": f"{world.server.url}/{project.path}", "source": "gitlab", "project_id": project.id}
    await world.app.repositories.register(Registration(name="mine", origin="http", collection="code", **place))

    for path in ("platform/payments", "platform/billing"):
        project.path = path
        assert (await world.discover()).skipped == {"is listed under `repositories` as mine": (path,)}
    assert await world.names() == {"mine"}


async def test_a_repository_that_is_listed_by_name_from_now_on_is_paused_in_the_group(world: GroupWorld) -> None:
    project = world.project("platform/payments")
    await world.discover()
    world.register(PLATFORM, more="repositories: [{name: payments, gitlab: main, project: platform/payments}]")
    await world.reload()

    report = await world.discover()

    assert report.paused == (("platform/payments", "is listed under `repositories` as payments"),)
    assert "repos remove platform/payments" in str((await world.row_of(project)).paused_reason)


async def test_a_repository_that_is_no_longer_listed_by_name_goes_on_in_the_group_with_its_index(
    closed_world: GroupWorld,
) -> None:
    world = closed_world
    world.register(PLATFORM, more="repositories: [{name: payments, gitlab: main, project: platform/payments}]")
    project = world.project("platform/payments", {"a.py": b"a = 1\n"})
    async with world.opened():
        await world.completed("payments")
        before = await world.row_of(project)
        world.register(PLATFORM)
        await world.reload()
        await world.app.repositories.deactivate("payments")

        report = await world.discover()

        row = await world.row_of(project)
        assert report.renamed == (("payments", "platform/payments"),)
        assert (row.id, row.is_active, row.origin) == (before.id, True, "group")
        assert (await world.completed("platform/payments")).files_processed == 0
        assert {each["repository"] for each in await world.metadata()} == {"platform/payments"}


async def test_of_two_groups_the_inner_one_has_the_project_in_any_order(closed_world: GroupWorld) -> None:
    world = closed_world
    inner = "{gitlab: main, group: platform/core, exclude: [core-b], schedule: every 3 hours}"
    world.register(PLATFORM, inner)
    for path in ("platform/a", "platform/core/a", "platform/core/core-b"):
        world.project(path)

    async with world.opened():
        for _ in range(2):
            await world.discover(0)
            await world.discover(1)

        assert {name: row.cron_expression for name, row in (await world.rows()).items()} == {
            "platform/a": "0 */6 * * *",
            "platform/core/a": "0 */3 * * *",
            "platform/core/core-b": "0 */6 * * *",
        }
        assert await world.active() == await world.names()


async def test_a_name_of_a_different_repository_is_not_taken_and_is_reported(world: GroupWorld) -> None:
    project = world.project("platform/a")
    second = world.project(f"platform/a-{project.id}")
    await world.app.repositories.register(
        Registration(
            name="platform/a", location="https://git.example.com/a.git", source="git", origin="command", collection="x"
        )
    )

    report = await world.discover()

    numbered = f"platform/a-{project.id}"
    assert report.kept_names == ((numbered, "platform/a"), (f"{numbered}-{second.id}", numbered))
    assert (await world.row_of(project)).is_active and (await world.row_of(second)).is_active
    assert (await world.rows())["platform/a"].source == "git"


async def test_a_person_who_takes_a_group_out_of_the_registry_switches_its_repositories_off(world: GroupWorld) -> None:
    project, paused = world.project("platform/a"), world.project("platform/b")
    await world.discover()
    await world.app.repositories.pause("platform/b", "Not now.")
    world.register()
    await world.reload()
    await world.list_again()

    row = await world.row_of(project)
    assert (row.is_active, row.paused_reason) == (False, None)
    assert await world.discovery.run_due(world.app.configuration.registry) == 0

    world.register(PLATFORM)
    await world.reload()
    await world.list_again()
    assert await world.run_due() == 1
    back = await world.row_of(project)
    assert (back.id, back.is_active) == (row.id, True)
    assert (await world.row_of(paused)).paused_reason == "Not now."
