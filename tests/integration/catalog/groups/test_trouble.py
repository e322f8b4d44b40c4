"""A GitLab that refuses, breaks off or answers nonsense, several pods, and a daemon that ends: nothing is lost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reposync.catalog import groups
from reposync.catalog.group_plan import BRAKE_PROJECTS
from reposync.errors import RepoSyncError, SourceError
from tests.integration.api.serving import eventually
from tests.integration.catalog.groups.conftest import PLATFORM, TOKEN, GroupWorld

pytestmark = pytest.mark.full

LIST = "/api/v4/groups/"


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (401, {"error": "invalid_token", "error_description": "Token is expired."}, "SOURCE_DENIED", "is expired"),
        (403, {"error": "insufficient_scope", "scope": "api read_api"}, "SOURCE_DENIED", "reading group platform need"),
        (404, {"message": "404 Group Not Found"}, "SOURCE_GONE", "Group platform was not found on"),
        (500, {"message": "500 Internal Server Error"}, "SOURCE_UNAVAILABLE", "the server answered 500"),
        (200, {"projects": []}, "SOURCE_CORRUPT", "the answer is no list"),
    ],
)
async def test_a_listing_that_fails_changes_nothing(
    world: GroupWorld,
    small_pages: int,
    status: int,
    body: dict[str, Any],
    code: str,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(small_pages + 1):
        world.project(f"platform/service-{number}")
    await world.discover()
    before = await world.rows()
    world.project("platform/new")
    world.server.projects[3].deleted = True
    world.server.faults.answer(status, json.dumps(body), path=LIST + ".*id_after=", times=None)

    with pytest.raises(SourceError) as raised:
        await world.discover()

    assert raised.value.code == code
    assert words in str(raised.value)
    assert TOKEN not in str(raised.value)
    await world.list_again()
    assert (await world.run_due(), world.results) == (1, ["failed"])
    (logged,) = [record for record in caplog.records if record.message == "group could not be discovered"]
    assert (logged.code, words in logged.reason) == (code, True)  # type: ignore[attr-defined]
    assert await world.rows() == before

    world.server.faults.clear()
    assert (await world.discover()).added == ("platform/new",)


@pytest.mark.parametrize("stripped", [(), ("X-Total",), ("X-Total", "X-Next-Page")])
@pytest.mark.parametrize("more", [0, 3])
async def test_a_listing_without_links_is_read_to_its_end(
    world: GroupWorld, small_pages: int, stripped: tuple[str, ...], more: int
) -> None:
    paths = {f"platform/service-{number}" for number in range(2 * small_pages + more)}
    for path in sorted(paths):
        world.project(path)
    world.server.faults.without_links(*stripped)
    assert (await world.discover()).listed == len(paths)
    assert (await world.discover()).unchanged == len(paths)
    assert await world.active() == paths


async def test_a_listing_with_fewer_rows_than_are_counted_pauses_nothing(world: GroupWorld, small_pages: int) -> None:
    for number in range(small_pages + 3):
        world.project(f"platform/service-{number}")
    await world.discover()
    before = await world.active()
    world.server.faults.without_links("X-Next-Page")
    report = await world.discover()
    assert (report.problem_code, report.paused) == ("GROUP_LISTING_FAULTY", ())
    assert f"it has {small_pages} of the {small_pages + 3} rows that GitLab counts" in str(report.problem)
    assert await world.active() == before


@pytest.mark.parametrize("count", [2, BRAKE_PROJECTS + 1])
async def test_a_listing_with_new_numbers_only_is_not_believed(world: GroupWorld, count: int) -> None:
    """A different instance behind the address, or a restored backup."""
    projects = [world.project(f"platform/service-{number}") for number in range(count)]
    await world.discover()
    before = await world.rows()

    def shift(by: int) -> None:
        for project in projects:
            project.id += by

    shift(10_000)
    report = await world.discover()
    assert (report.problem_code, report.added, report.paused) == ("GROUP_SHRANK", (), ())
    assert await world.rows() == before
    shift(-10_000)
    assert (await world.discover()).problem is None
    assert await world.rows() == before

    shift(10_000)
    for _ in range(2):
        assert (await world.discover()).problem_code == "GROUP_SHRANK"
        assert await world.rows() == before
    approved = await world.discover(approved=True)
    assert (approved.problem, len(approved.added), len(approved.paused)) == (None, count, count)


async def test_rows_that_are_no_projects_are_named_and_nothing_is_paused(world: GroupWorld) -> None:
    world.project("platform/a")
    world.project("platform/b")
    await world.discover()
    rows = [
        {"id": 1, "path_with_namespace": "platform/a2"},
        {"id": "2", "path_with_namespace": "platform/b"},
        {"id": 3},
        {"id": 4, "path_with_namespace": "platform/c\n"},
        "platform/d",
        {"id": 9, "path_with_namespace": "platform/new", "marked_for_deletion_on": None, "archived": None},
    ]
    world.server.faults.answer(200, json.dumps(rows), path=LIST, media_type="application/json")

    report = await world.discover()

    assert report.problem_code == "GROUP_LISTING_FAULTY"
    assert report.problem is not None
    assert "row 2 of page 1: its id is '2'" in report.problem
    assert "row 3 of page 1: the path of project 3 is missing" in report.problem
    assert "and 1 more" in report.problem
    assert (report.paused, report.added) == ((), ("platform/new",))
    assert await world.active() == {"platform/a2", "platform/b", "platform/new"}


async def test_a_group_that_is_not_there_is_an_error_of_the_group_alone(closed_world: GroupWorld) -> None:
    world = closed_world
    world.register("{gitlab: main, group: nobody}", PLATFORM)
    world.project("platform/a")
    async with world.opened():
        await world.list_again()

        assert await world.run_due() == 2

        assert await world.names() == {"platform/a"}
        assert world.results == ["failed", "ok"]


async def test_pages_that_link_in_a_circle_are_given_up(world: GroupWorld) -> None:
    link = f'<{world.server.url}/api/v4/groups/platform/projects?id_after=1>; rel="next"'
    row = json.dumps([{"id": 1, "path_with_namespace": "platform/a"}])
    world.server.faults.answer(200, row, path=LIST, headers={"Link": link}, media_type="application/json", times=None)

    with pytest.raises(SourceError, match="in a circle"):
        await world.discover()

    assert await world.names() == set()


# Several pods ------------------------------------------------------------------------------------------------------


async def test_a_person_does_not_wait_for_a_pod_that_looks_through_the_group(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.list_again()
    gate = world.server.faults.hold(path=LIST)
    slow = asyncio.create_task(world.run_due())
    await asyncio.to_thread(gate.arrived.wait, 30)

    report = await world.discover()
    gate.open()

    assert report.added == ("platform/a",)
    assert await slow == 1
    assert world.results == ["ok"]
    assert await world.active() == {(await world.row_of(project)).name} == {"platform/a"}


async def test_a_pod_that_ends_leaves_the_group_to_the_next_one(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "RETRY_SECONDS", 0.5)
    world.project("platform/a")
    await world.list_again()
    gate = world.server.faults.hold(path=LIST)
    ending = asyncio.create_task(world.run_due())
    await asyncio.to_thread(gate.arrived.wait, 30)

    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    gate.open()

    async def is_listed_again() -> bool:
        return await world.run_due() == 1

    await eventually(is_listed_again)
    assert await world.names() == {"platform/a"}


async def test_a_temporary_error_is_retried_soon_and_one_for_a_person_at_the_next_tick(
    closed_world: GroupWorld,
) -> None:
    world = closed_world
    world.register("{gitlab: main, group: platform, discover: '@yearly'}")
    async with world.opened():
        await world.list_again()
        world.server.faults.answer(502, "", path=LIST, times=None)
        now = await world.due_at()
        await world.run_due()
        assert await world.due_at() - now < timedelta(minutes=6)

        world.server.faults.clear()
        world.server.faults.answer(401, "{}", path=LIST, times=None)
        await world.list_again()
        await world.run_due()
        due = await world.due_at()
        assert (due.month, due.day, due.hour) == (1, 1, 0)


async def test_a_defect_ends_the_look_at_one_group_with_an_id_to_find_it_by(
    world: GroupWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.project("platform/a")
    registry = world.app.configuration.registry

    class Broken:
        def request(self, kind: str) -> None:
            raise ZeroDivisionError("secret")

        def rate_limited(self, seconds: float) -> None:
            raise AssertionError

    pod = replace(world.discovery, observer=Broken())
    await pod.list_again()
    assert await pod.run_due(registry) == 1

    (logged,) = [record for record in caplog.records if record.message == "group could not be discovered"]
    assert logged.code == RepoSyncError.code  # type: ignore[attr-defined]
    assert "ZeroDivisionError; the log has the details under" in logged.reason  # type: ignore[attr-defined]
    assert "secret" not in logged.reason  # type: ignore[attr-defined]
