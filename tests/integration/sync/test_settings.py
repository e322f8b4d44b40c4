"""A change of settings changes the index to what a fresh sync would make, and embeds no text again that it has."""

from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World, comparable
from tests.integration.sync.test_exactness import CODE, module


async def test_a_full_sync_reads_everything_and_embeds_nothing_that_is_known(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b")})
    await world.completed()
    before = comparable(await world.points())
    world.embeddings.forget()
    run = await world.completed(full=True)
    assert run.files_processed == 2
    assert world.embeddings.log == []
    assert comparable(await world.points()) == before


async def test_a_plan_reports_what_a_sync_would_do_and_writes_nothing(world: World):
    world.repository.commit({"a.py": CODE, "b.py": module("b"), "c.py": CODE + b"# c\n"})
    registered = await world.app.repositories.list()
    plan = await world.preview()
    assert (plan.files_to_store, plan.files_unchanged, plan.commit_before) == (3, 0, None)
    assert plan.chunks_to_embed == plan.chunks
    assert await world.app.repositories.list() == registered
    assert await world.app.runs.history() == []
    assert world.embeddings.log == [] or all(each.inputs == 1 for each in world.embeddings.log)
    run = await world.completed()
    assert run.chunks_embedded == plan.chunks_to_embed

    world.repository.commit({"a.py": None, "c.py": None, "d.py": CODE, "b.py": module("b", 61)})
    plan = await world.preview()
    before = await world.points()
    assert (plan.files_to_store, plan.files_to_delete, plan.files_renamed) == (2, 2, 1)
    assert await world.points() == before
    run = await world.completed()
    assert (run.chunks_embedded, run.files_deleted) == (plan.chunks_to_embed, 2)
    assert (await world.preview()).files_to_read == 0


async def test_two_repositories_of_one_collection_leave_each_other_alone(closed_world: World, tmp_path):

    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"a.py": CODE, "x.py": module("x")})
    closed_world.configure(extra=f'  - {{name: other, path: "{other.path}"}}\n')
    closed_world.repository.commit({"a.py": CODE})
    async with closed_world.opened() as world:
        await world.completed("project")
        world.embeddings.forget()
        await world.completed("other")
        assert sum(each.inputs for each in world.embeddings.log) < 12, "a.py is known from the other repository"
        other.commit({"a.py": None})
        await world.completed("other")
        assert {(each["repository"], each["path"]) for each in await world.metadata()} == {
            ("project", "a.py"),
            ("other", "x.py"),
        }
