"""The life of a group on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tests.integration.catalog.groups.conftest import GroupWorld


async def test_a_group_lives_on_either_database(closed_world: GroupWorld, database_url: str) -> None:
    world = closed_world
    world.database_url = database_url
    first, second = world.project("platform/a", {"1.py": b"a = 1\n"}), world.project("platform/b")
    gone = world.project("platform/c")
    async with world.opened():
        registry = world.app.configuration.registry
        await world.list_again()
        pods = [world.discovery for _ in range(4)]
        assert sum(await asyncio.gather(*(pod.run_due(registry) for pod in pods))) == world.listings() == 1
        assert timedelta(0) < await world.due_at() - world.app.history.now() <= timedelta(minutes=30)
        await world.completed("platform/a")
        ids = {project.id: (await world.row_of(project)).id for project in (first, second, gone)}

        first.path, second.path = second.path, first.path
        gone.deleted = True
        new = world.project("platform/c")
        report = await world.discover()

        assert report.added == (f"platform/c-{new.id}",)
        assert [name for name, _ in report.paused] == ["platform/c"]
        assert set(report.kept_names) == {
            *(("platform/a", "platform/b"), ("platform/b", "platform/a"), (f"platform/c-{new.id}", "platform/c"))
        }
        assert {project.id: (await world.row_of(project)).id for project in (first, second, gone)} == ids
        names = [(await world.row_of(project)).name for project in (first, second, new)]
        assert names == ["platform/a", "platform/b", f"platform/c-{new.id}"]
        assert (await world.completed("platform/a")).files_processed == 0
        assert {each["url"] for each in await world.metadata()} == {
            f"{world.server.url}/platform/b/-/blob/HEAD/1.py#L1"
        }
        again = await world.discover()
        assert (again.renamed, again.kept_names, again.paused, again.added, again.unchanged) == ((), (), (), (), 3)
        assert (again.projects, again.problem) == (3, None)
