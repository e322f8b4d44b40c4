"""Projects that are renamed, moved, swapped and made anew: the repository stays the same one, its index too."""

from __future__ import annotations

import pytest

from reposync.catalog.groups import Discovery
from reposync.errors import IndexUnavailable
from reposync.store.endings import Finish
from reposync.store.run import Ask, RunFigures
from reposync.store.status import RunTrigger
from reposync.vectors.index import QdrantIndex
from tests.fixtures.embedding_server import EmbeddingServer
from tests.integration.catalog.groups.conftest import PLATFORM, QUICK, GroupWorld

TWO = (PLATFORM, "{gitlab: main, group: labs}")


async def test_a_renamed_project_keeps_its_index_and_embeds_nothing(closed_world: GroupWorld) -> None:
    world = closed_world
    with EmbeddingServer() as embeddings:
        world.register(
            PLATFORM, embedding=f'{{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64}}'
        )
        project = world.project("platform/payments", {"src/pay.py": b"def pay_the_invoice():\n    pass\n"})
        async with world.opened():
            await world.discover()
            await world.completed("platform/payments")
            before, points, embedded = await world.row_of(project), await world.points(), embeddings.input_count
            project.move("platform/core/billing")

            report = await world.discover()

            assert report.renamed == (("platform/payments", "platform/core/billing"),)
            row = await world.row_of(project)
            assert (row.id, row.name, row.last_commit) == (before.id, "platform/core/billing", before.last_commit)
            assert row.location == f"{world.server.url}/platform/core/billing"
            moved = await world.points()
            assert moved.keys() == points.keys()
            assert [point["vector"] for point in moved.values()] == [point["vector"] for point in points.values()]
            (hit,) = await world.app.searching.search("invoice", repository="platform/core/billing")
            assert hit.url == f"{world.server.url}/platform/core/billing/-/blob/HEAD/src/pay.py#L1-2"
            assert {run.repository for run in await world.app.runs.history()} == {"platform/core/billing"}
            searched = embeddings.input_count

            world.server.log.forget()
            run = await world.completed("platform/core/billing")
            assert (run.files_processed, len(world.server.log)) == (0, 1), "nothing changed: one call"
            assert embedded == len(points)
            assert embeddings.input_count == searched


async def test_a_repository_that_was_never_synced_is_renamed_without_an_index(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.discover()
    project.move("platform/b")

    assert (await world.discover()).renamed == (("platform/a", "platform/b"),)
    assert (await world.row_of(project)).location == f"{world.server.url}/platform/b"


async def test_a_repository_of_a_group_that_left_the_registry_gives_its_name_to_a_new_project(
    closed_world: GroupWorld,
) -> None:
    world = closed_world
    world.register("{gitlab: main, group: platform/core}")
    old = world.project("platform/core/a", {"old.py": b"x = 1\n"})
    async with world.opened():
        await world.discover()
        await world.completed("platform/core/a")
        world.register(PLATFORM)
        await world.reload()
        await world.declare()
        old.deleted = True
        new = world.project("platform/core/a", {"new.py": b"y = 1\n"})

        assert await world.run_due() == 1

        assert (await world.row_of(new)).name == "platform/core/a"
        former = await world.row_of(old)
        assert (former.name, former.is_active) == (f"platform/core/a-{old.id}", False)
        assert {(each["repository"], each["path"]) for each in await world.metadata()} == {(former.name, "old.py")}


async def test_a_group_that_was_renamed_is_followed_when_the_registry_says_so(closed_world: GroupWorld) -> None:
    world = closed_world
    project = world.project("platform/a")
    async with world.opened():
        await world.discover()
        before = await world.row_of(project)
        project.move("infra/a")
        world.server.groups.clear()
        world.register("{gitlab: main, group: infra}")
        await world.reload()
        await world.declare()
        assert not (await world.row_of(project)).is_active

        assert await world.run_due() == 1

        row = await world.row_of(project)
        assert (row.id, row.name, row.is_active) == (before.id, "infra/a", True)


async def test_names_in_an_index_wait_for_a_run_that_began_under_the_former_name(world: GroupWorld) -> None:
    project = world.project("platform/a", {"a.py": b"a = 1\n"})
    await world.discover()
    await world.completed("platform/a")
    run, _ = await world.app.runs.enqueue("platform/a", Ask(RunTrigger.COMMAND))
    claimed = await world.app.runs.claim("another", 60.0, run_id=run.id)
    assert claimed is not None
    project.move("platform/b")

    report = await world.discover()

    assert report.unsettled == ("platform/b",)
    assert {each["repository"] for each in await world.metadata()} == {"platform/a"}
    state = await world.group()
    assert (state.due_at - state.checked_at).total_seconds() <= 60  # type: ignore[operator]

    await world.app.runs.end(claimed, Finish(), RunFigures())
    assert (await world.discover()).unsettled == ()
    assert {each["repository"] for each in await world.metadata()} == {"platform/b"}


async def test_names_that_could_not_be_written_to_an_index_are_written_the_next_time(world: GroupWorld) -> None:
    project = world.project("platform/a", {"a.py": b"a = 1\n"})
    await world.discover()
    await world.completed("platform/a")
    project.move("platform/b")
    registry = world.app.configuration.registry

    def away(collection: str) -> QdrantIndex:
        raise IndexUnavailable("Qdrant at http://qdrant cannot be reached.")

    without = Discovery(world.app.database, away, "worker-1", retry=QUICK)
    with pytest.raises(IndexUnavailable):
        await without.discover(registry, registry.groups[0])
    assert (await world.group()).error_code == "INDEX_UNAVAILABLE"
    assert (await world.row_of(project)).name == "platform/b"

    await world.discover()

    assert {each["repository"] for each in await world.metadata()} == {"platform/b"}
    assert (await world.group()).error_code is None
