"""Projects that are renamed, moved, swapped and made anew: the repository stays the same one, its index too."""

from __future__ import annotations

from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.syncing import sync
from tests.integration.catalog.groups.conftest import PLATFORM, GroupWorld

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
            assert {run.repository for run in await world.app.history.runs()} == {"platform/core/billing"}
            (hit,) = await world.app.searching.search("invoice")
            assert hit.repository == "platform/core/billing"
            assert await world.differences("platform/core/billing") == {}, "that links are renewed later is no damage"

            world.server.log.forget()
            run = await world.completed("platform/core/billing")
            assert (run.files_processed, len(world.server.log)) == (0, 1), "nothing changed: one call"
            assert await world.differences("platform/core/billing") == {}
            moved = await world.points()
            assert moved.keys() == points.keys()
            assert [point["vector"] for point in moved.values()] == [point["vector"] for point in points.values()]
            assert {each["repository"] for each in await world.metadata()} == {"platform/core/billing"}
            (hit,) = await world.app.searching.search("invoice", repository="platform/core/billing")
            assert hit.url == f"{world.server.url}/platform/core/billing/-/blob/HEAD/src/pay.py#L1-2"
            assert embedded == len(points)
            assert embeddings.input_count == embedded + 2, "the questions"


async def test_a_repair_after_a_rename_completes_at_once_and_reads_only_what_changed(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.discover()
    await world.completed("platform/a")
    project.move("platform/b")
    world.repository.commit({"b.py": b"y = 2\n"})
    await world.discover()

    run = await sync(world.app, await world.app.catalog.find("platform/b"), repair=True)

    assert (run.status, run.attempt, run.files_processed) == ("completed", 1, 1), run.error_message
    assert {each["repository"] for each in await world.metadata()} == {"platform/b"}
    assert await world.differences("platform/b") == {}


async def test_a_repository_that_was_never_synced_is_renamed_without_an_index(world: GroupWorld) -> None:
    project = world.project("platform/a")
    await world.discover()
    project.move("platform/b")

    assert (await world.discover()).renamed == (("platform/a", "platform/b"),)
    assert (await world.row_of(project)).location == f"{world.server.url}/platform/b"


async def test_a_new_project_at_the_path_of_one_that_is_gone_has_its_number_in_its_name_until_that_is_removed(
    world: GroupWorld,
) -> None:
    old = world.project("platform/a", {"old.py": b"x = 1\n"})
    world.project("platform/b")
    await world.discover()
    await world.completed("platform/a")
    old.deleted = True
    new = world.project("platform/a", {"new.py": b"y = 1\n"})

    report = await world.discover()

    assert (report.added, report.kept_names) == ((f"platform/a-{new.id}",), ((f"platform/a-{new.id}", "platform/a"),))
    await world.completed(f"platform/a-{new.id}")
    held = {(each["repository"], each["path"]) for each in await world.metadata()}
    assert held == {("platform/a", "old.py"), (f"platform/a-{new.id}", "new.py")}

    assert (await world.discover()).kept_names == (), "it is shown once"
    await world.app.repositories.remove("platform/a")
    assert (await world.discover()).renamed == ((f"platform/a-{new.id}", "platform/a"),)
    assert (await world.completed("platform/a")).files_processed == 0
    assert ("platform/a", "new.py") in {(each["repository"], each["path"]) for each in await world.metadata()}


async def test_a_name_that_a_project_gives_up_is_free_for_the_next_one(world: GroupWorld) -> None:
    first, second = world.project("platform/a"), world.project("platform/b")
    await world.discover()
    first.move("platform/old")
    second.move("platform/a")
    new = world.project("platform/b")

    report = await world.discover()

    assert report.renamed == (("platform/a", "platform/old"), ("platform/b", "platform/a"))
    names = [(await world.row_of(project)).name for project in (first, second, new)]
    assert (names, report.kept_names) == (["platform/old", "platform/a", "platform/b"], ())


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
        await world.list_again()
        assert not (await world.row_of(project)).is_active

        assert await world.run_due() == 1

        row = await world.row_of(project)
        assert (row.id, row.name, row.is_active) == (before.id, "infra/a", True)
