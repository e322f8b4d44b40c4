"""Settings change beside the living index: what is searched stays whole until the next version replaces it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from reposync.app.command_runs import sync
from reposync.store.tables import IndexVersion, VersionState
from reposync.store.versions import IndexHold
from reposync.sync.progress import RunProgress
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import CODE, module

FILES = {"a.py": module("alpha"), "b.py": module("beta"), "docs/c.md": b"# Gamma\n\nwords about gamma\n"}
PAUSED = IndexHold("paused", None)
Change = Callable[[World], None]


def another_model(world: World) -> None:
    world.edit_registry("model: test/words", "model: test/others")
    world.embeddings.model = "test/others"


def another_chunk_size(world: World) -> None:
    world.configure(size=900)


def another_collection(world: World) -> None:
    world.collection = f"{world.collection}-moved"
    world.configure()


async def versions(world: World) -> list[IndexVersion]:
    row = await world.app.repositories.get("project")
    return await world.app.versions.of(row.id)


async def live(world: World) -> IndexVersion:
    (found,) = [each for each in await versions(world) if each.state is VersionState.LIVE]
    return found


async def found(world: World, words: str) -> set[str]:
    return {hit.path for hit in await world.app.searching.search(words, limit=50)}


async def chunks(world: World) -> dict[tuple[str, int], str]:
    """(path, chunk) -> text of the live version's points; each once."""
    version = await live(world)
    points = (await world.points(version.physical)).values()
    mine = [point["payload"] for point in points if point["payload"]["metadata"]["repository_id"] == version.id]
    texts = {(each["metadata"]["path"], each["metadata"]["chunk_index"]): each["page_content"] for each in mine}
    assert len(texts) == len(mine)
    return texts


async def test_a_changed_collection_embeds_nothing(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await chunks(world)
    another_collection(world)
    async with world.opened():
        world.embeddings.forget()
        run = await world.completed()
        assert sum(exchange.inputs for exchange in world.embeddings.log) == 0
        assert run.chunks_embedded == 0
        assert await chunks(world) == before


async def test_a_changed_chunk_size_embeds_only_new_texts(closed_world: World):
    world = closed_world
    world.repository.commit({**FILES, "small.py": CODE})
    async with world.opened():
        await world.completed()
        known = set((await chunks(world)).values())
    another_chunk_size(world)
    async with world.opened():
        world.embeddings.forget()
        await world.completed()
        now = set((await chunks(world)).values())
        assert sorted(world.embeddings.inputs) == sorted(now - known)


async def test_a_name_leads_to_the_new_model_when_all_repositories_are_there(closed_world: World, tmp_path: Path):
    world = closed_world
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"x.py": module("xi")})
    world.repository.commit(FILES)
    second = f'  - {{name: other, path: "{other.path}"}}\n'
    world.configure(extra=second)
    async with world.opened():
        await world.completed()
        await world.completed("other")
        first = await world.physical()
    another_model(world)
    async with world.opened():
        await world.completed()
        assert await world.physical() == first, "one of the two is on the former model"
        assert await found(world, "xi") >= {"x.py"}
        assert await found(world, "alpha") >= {"a.py"}
        await world.completed("other")
        assert await world.physical() != first
        assert await found(world, "xi") >= {"x.py"}


async def test_a_definition_that_changes_during_a_run_is_not_overwritten_by_it(closed_world: World, tmp_path: Path):
    world = closed_world
    other = GitRepository.create(tmp_path / "right.git")
    other.commit({"right.py": CODE})
    world.repository.commit({"wrong.py": CODE})
    async with world.opened():
        corrected = await world.app.catalog.find("project")
        moved = corrected.registration().model_copy(update={"location": str(other.path)})
        registering: list[Awaitable[object]] = []

        def correct_once(progress: RunProgress) -> None:
            if progress.phase == "indexing" and not registering:
                registering.append(asyncio.ensure_future(world.app.repositories.register(moved)))

        run = await sync(world.app, corrected, full=False, approved=False, watch=correct_once)
        assert (run.status, run.error_code) == ("cancelled", "SUPERSEDED")
        row = await world.app.repositories.get("project")
        assert (row.location, row.last_commit) == (str(other.path), None)
        assert [each.status for each in await world.app.runs.active(row.id)] == ["queued"]
    world.edit_registry(str(world.repository.path), str(other.path))
    async with world.opened():
        await world.completed()
        assert {path for path, _ in await chunks(world)} == {"right.py"}


async def test_a_paused_change_waits_and_pushes_are_still_followed(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await live(world)
        await world.app.versions.set_hold(["project"], PAUSED)
    another_chunk_size(world)
    async with world.opened():
        world.repository.commit({"new.py": module("omega")})
        await world.completed()
        assert (await live(world)).id == before.id
        assert await found(world, "omega") >= {"new.py"}
        await world.app.versions.set_hold(["project"], None)
        await world.completed()
        assert (await live(world)).id != before.id


async def test_a_held_index_of_a_different_branch_waits_for_a_person(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    world.repository.git("branch", "release")
    async with world.opened():
        await world.completed()
        await world.app.versions.set_hold(["project"], PAUSED)
    world.edit_registry("{name: project,", "{name: project, branch: release,")
    async with world.opened():
        run = await world.sync()
        assert (run.status, run.error_code) == ("blocked", "INDEX_HELD")
        assert await found(world, "alpha") >= {"a.py"}


async def test_a_gate_keeps_the_live_version_where_answers_get_worse(closed_world: World):
    world = closed_world
    world.repository.commit({"a.py": module("alpha"), "b.py": module("beta")})
    (world.folder / "questions.yaml").write_text("- {question: alpha 3, repository: project, path: a.py}\n")
    gate = "index: {gate: questions.yaml}\n"
    async with world.opened():
        await world.completed()
        before = await live(world)
    world.configure(size=900, more='exclude: ["a.py"]', extra=gate)
    async with world.opened():
        run = await world.sync()
        assert (run.status, run.error_code) == ("blocked", "INDEX_GATE_CLOSED")
        assert "recall" in str(run.error_message)
        assert (await live(world)).id == before.id
        assert await found(world, "alpha") >= {"a.py"}
        await world.app.runs.approve(run.id)
        await world.completed()
        assert (await live(world)).id != before.id
