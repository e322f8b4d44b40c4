"""Groups that are registered over HTTP: the same as those of the registry file, beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from reposync.catalog.apply import Applying, Plan
from reposync.config.loading import load_registry
from reposync.errors import RegistryConflict
from tests.integration.api.serving import READER, TOKENS, client_of, parts_of, serving
from tests.integration.catalog.groups.conftest import PLATFORM, GroupWorld

LABS = {"gitlab": "main", "schedule": "every 2 hours", "exclude": ["archive-*"]}


@dataclass
class Groups:
    """`world` has the group `platform` in its registry file."""

    world: GroupWorld
    client: httpx.AsyncClient

    async def ask(self, method: str, path: str = "", status: int = 200, **options: Any) -> Any:
        answer = await self.client.request(method, f"/api/v1/groups{path}", **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def put(self, path: str = "labs", status: int = 200, **definition: Any) -> Any:
        return await self.ask("PUT", f"/{path}", status, json=definition or LABS)

    async def listed(self) -> dict[str, dict[str, Any]]:
        return {group["group"]: group for group in (await self.ask("GET"))["items"]}

    async def apply(self, *groups: str, more: str = "", on_request: bool = True) -> Plan:
        self.world.register(*groups, more=more)
        loaded = load_registry(self.world.folder / "repositories.yaml")
        return await Applying(self.world.app.database, loaded, by="test").apply(on_request=on_request)


@pytest.fixture
async def groups(world: GroupWorld) -> AsyncIterator[Groups]:
    world.server.groups |= {"labs", "platform/core"}
    async with client_of(parts_of(world.app)) as client:
        yield Groups(world, client)


async def test_the_projects_of_a_group_that_is_put_are_registered_and_found_by_every_walk(groups: Groups) -> None:
    world = groups.world
    world.project("labs/a", {"a.py": b"a = 1\n"})
    world.project("labs/archive-b")
    world.project("platform/c")

    put = await groups.put()

    assert (put["group"], put["origin"], put["repositories"]) == ("labs", "http", 0)
    assert put["definition"] == {"group": "labs", **LABS}
    assert await world.run_due() == 2
    assert await world.active() == {"labs/a", "platform/c"}
    assert (await world.rows())["labs/a"].cron_expression == "0 */2 * * *"
    await world.completed("labs/a")
    assert {path: group["repositories"] for path, group in (await groups.listed()).items()} == {
        "labs": 1,
        "platform": 1,
    }
    world.project("labs/new")
    answer = (await groups.client.post("/api/v1/discover")).json()
    assert [group["group"] for group in answer["groups"]] == ["labs", "platform"]
    assert "labs/new" in answer["items"]


async def test_a_put_that_is_repeated_changes_nothing_and_a_different_one_takes_effect(groups: Groups) -> None:
    world = groups.world
    world.project("labs/a")
    await groups.put()
    await world.run_due()
    before = await groups.listed()

    again = await groups.put(group="labs", **LABS)

    assert again == before["labs"] and await world.run_due() == 0
    less = await groups.put(gitlab="main", exclude=["a"])
    assert less["definition"] == {"group": "labs", "gitlab": "main", "exclude": ["a"]}
    assert await world.run_due() == 1
    assert await world.active() == set()


async def test_a_group_that_is_removed_deactivates_its_repositories_until_it_is_put_again(groups: Groups) -> None:
    world = groups.world
    project = world.project("labs/a", {"a.py": b"a = 1\n"})
    await groups.put()
    await world.run_due()
    await world.completed("labs/a")
    indexed = await world.points()

    removed = await groups.ask("DELETE", "/LABS")

    assert removed == {"group": "labs", "gitlab": "main", "deactivated": ["labs/a"]}
    row = await world.row_of(project)
    assert (row.has_left, await world.points()) == (True, indexed)
    assert set(await groups.listed()) == {"platform"}
    await groups.put()
    await world.run_due()
    assert (await world.row_of(project)).is_active


async def test_a_registry_file_that_is_applied_leaves_a_group_alone_that_was_put(groups: Groups) -> None:
    world = groups.world
    world.project("labs/a")
    world.project("platform/b")
    await groups.put()
    await world.run_due()

    plan = await groups.apply()

    assert [(change.kind, change.what) for change in plan.changes] == [("gone", "group main/platform")]
    assert await world.active() == {"labs/a"}
    assert set(await groups.listed()) == {"labs"}
    back = await groups.apply("{gitlab: main, group: platform, archived: true}")
    assert [(change.kind, change.what) for change in back.changes] == [("added", "group main/platform")]
    await world.run_due()
    assert await world.active() == {"labs/a", "platform/b"}


async def test_a_file_that_names_a_group_that_was_put_is_a_conflict_until_that_is_removed(groups: Groups) -> None:
    world = groups.world
    await groups.put()
    labs = "{gitlab: main, group: Labs}"

    refused = await groups.apply(PLATFORM, labs)
    conflict = refused.conflict()

    assert isinstance(conflict, RegistryConflict) and not refused.applied
    assert "the group 'labs' comes from a request over HTTP" in conflict.message
    assert refused.as_json()["conflicts"] == [{"what": "group main/labs", "theirs": "a request over HTTP"}]
    pod = await groups.apply(PLATFORM, labs, more="search: {ranking: plain}", on_request=False)
    assert pod.applied and pod.conflicts
    assert {path: group["origin"] for path, group in (await groups.listed()).items()} == {
        "labs": "http",
        "platform": "config",
    }
    await groups.ask("DELETE", "/labs")
    assert not (await groups.apply(PLATFORM, labs, on_request=False)).conflicts
    assert (await groups.listed())["Labs"]["origin"] == "config"
    assert await world.run_due() == 2


async def test_a_project_below_a_group_of_the_file_and_one_that_was_put_belongs_to_the_inner_one(
    groups: Groups,
) -> None:
    world = groups.world
    project = world.project("platform/core/a")
    await world.run_due()
    assert (await world.row_of(project)).group_key == f"{world.server.url}/platform"

    await groups.put("platform/core", gitlab="main")
    await world.list_again()
    await world.run_due()

    assert (await world.row_of(project)).group_key == f"{world.server.url}/platform/core"
    assert (await groups.listed())["platform/core"]["repositories"] == 1


async def test_a_group_that_was_put_follows_the_address_of_its_server(groups: Groups) -> None:
    world = groups.world
    project = world.project("labs/a")
    await groups.put()
    await world.run_due()
    moved = world.server.url.replace("127.0.0.1", "localhost")
    text = (world.folder / "repositories.yaml").read_text().replace(world.server.url, moved)
    (world.folder / "repositories.yaml").write_text(text)
    await world.reload()
    assert await world.active() == set()

    assert await world.run_due() == 2

    rows = [row for row in (await world.rows()).values() if row.project_id == project.id and row.is_active]
    assert [row.group_key for row in rows] == [f"{moved}/labs"]


async def test_what_cannot_be_put_or_removed_is_refused_with_the_reason(groups: Groups) -> None:
    for path, definition, status, code in (
        ("platform", {"gitlab": "main"}, 409, "GROUP_READ_ONLY"),
        ("Platform", {"gitlab": "main"}, 409, "GROUP_READ_ONLY"),
        ("labs", {"gitlab": "mian"}, 422, "CONFIG_INVALID"),
        ("labs", {"gitlab": "main", "group": "other"}, 422, "CONFIG_INVALID"),
        ("labs", {"gitlab": "main", "shedule": "never"}, 422, "CONFIG_INVALID"),
        ("labs", {"gitlab": "main", "discover": "sometimes"}, 422, "CONFIG_INVALID"),
        ("labs", {"exclude": ["a"]}, 422, "CONFIG_INVALID"),
    ):
        assert (await groups.put(path, status, **definition))["error"]["code"] == code, definition
    assert set(await groups.listed()) == {"platform"}
    await groups.put()
    assert (await groups.put("LABS", 409))["error"]["code"] == "GROUP_EXISTS"
    for path, status, code in (
        ("/platform", 409, "GROUP_READ_ONLY"),
        ("/nobody", 404, "GROUP_NOT_FOUND"),
        ("/labs?gitlab=other", 404, "GROUP_NOT_FOUND"),
    ):
        assert (await groups.ask("DELETE", path, status))["error"]["code"] == code, path


async def test_a_reader_sees_groups_and_changes_none(world: GroupWorld) -> None:
    async with serving(world.app, *TOKENS) as client:
        reader = {"Authorization": f"Bearer {READER}"}
        assert (await client.get("/api/v1/groups", headers=reader)).status_code == 200
        for method in ("PUT", "DELETE"):
            answer = await client.request(method, "/api/v1/groups/labs", headers=reader, json=LABS)
            assert answer.status_code == 403
