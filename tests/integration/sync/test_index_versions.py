"""Settings change beside the living index: what is searched stays whole until the next version replaces it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from reposync.embedding.factory import open_embedder
from reposync.embedding.local import DIMENSION
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import FORMER_LOCAL_MODEL, LOCAL_MODEL, LOCAL_WINDOW, former_config
from reposync.runs.endings import ExecutionPolicy
from reposync.store.endings import STOPPING
from reposync.store.run import Ask, Run
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import IndexVersion, VersionState
from reposync.sync.progress import RunProgress
from tests.fixtures.repositories import Content, GitRepository
from tests.fixtures.syncing import sync
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import CODE, module

FILES = {"a.py": module("alpha"), "b.py": module("beta"), "docs/c.md": b"# Gamma\n\nwords about gamma\n"}
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


async def test_settings_that_return_find_the_version_that_they_made(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    made = []
    for size in (400, 900, 400):
        world.configure(size=size, extra="index: {keep_retired: 1h}\n")
        async with world.opened():
            run = await world.completed()
            made.append((await live(world)).id)
    assert made[0] == made[2] != made[1]
    assert (run.files_processed, run.chunks_embedded) == (0, 0)


@pytest.mark.parametrize("change", [another_model, another_chunk_size, another_collection])
async def test_a_source_that_is_away_leaves_the_living_index_as_it_is(closed_world: World, change: Change):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await live(world)
        points = await world.points(before.physical)
    change(world)
    away = world.repository.path.rename(world.folder / "away.git")
    async with world.opened():
        assert (await world.sync()).status == "failed"
        assert await live(world) == before
        assert await world.points(before.physical) == points
        assert await found(world, "beta") >= {"b.py"}
    away.rename(world.repository.path)
    async with world.opened():
        await world.completed()
        assert (await live(world)).id != before.id


@pytest.mark.full
async def test_a_force_push_back_after_a_run_that_was_cut_off_is_not_taken_for_unchanged(world: World):
    first = world.repository.commit({f"f{number}.py": module(f"name{number}", 4) for number in range(300)})
    await world.completed()
    before = await chunks(world)
    world.repository.commit({f"f{number}.py": module(f"other{number}", 4) for number in range(300)})
    assert (await handed_back_after_a_file(world)).status is RunStatus.QUEUED
    assert await chunks(world) != before

    world.repository.git("update-ref", "refs/heads/main", first)
    await world.completed()

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
        moved = corrected.row.model_copy(update={"location": str(other.path)})
        registering: list[Awaitable[object]] = []

        def correct_once(progress: RunProgress) -> None:
            if progress.phase == "indexing" and not registering:
                registering.append(asyncio.ensure_future(world.app.repositories.register(moved)))

        run = await sync(world.app, corrected, full=False, approved=False, watch=correct_once)
        assert run.status == "completed", run.error_message
        first, *_ = (await world.app.history.get(run.id)).all_attempts
        assert (first.outcome, first.error_code) == ("released", "SUPERSEDED")
        assert (await world.app.repositories.get("project")).location == str(other.path)
    world.edit_registry(str(world.repository.path), str(other.path))
    async with world.opened():
        await world.completed()
        assert {path for path, _ in await chunks(world)} == {"right.py"}


async def handed_back_after_a_file(world: World, *, full: bool = False) -> Run:
    """As if the process stopped once the run has stored a file more, or the vectors of one."""
    target = await world.app.catalog.find("project")
    await world.app.repositories.register(target.row)
    await world.app.runs.enqueue("project", Ask(RunTrigger.COMMAND, full=full))
    claimed = await world.app.claim((await world.app.repositories.get("project")).id)
    assert claimed is not None
    execution = world.app.execution(claimed, ExecutionPolicy())

    def watch(progress: RunProgress) -> None:
        if progress.chunks_done:
            execution.interrupt(STOPPING)

    return await world.app.execute(execution, watch)


@pytest.mark.full
@pytest.mark.parametrize("how", ["full", "chunks", "model", "remade"])
async def test_what_is_handed_back_goes_on_where_it_was(closed_world: World, how: str):
    world = closed_world
    # More than one batch, so that a part of it is stored before the run is handed back.
    world.repository.commit({f"f{number}.py": module(f"name{number}", 4) for number in range(300)})
    async with world.opened():
        await world.completed()
        if how == "remade":
            await world.drop_collection()
    if how == "chunks":
        another_chunk_size(world)
    elif how == "model":
        another_model(world)
    async with world.opened():
        done = []
        for _ in range(20):
            run = await handed_back_after_a_file(world, full=how == "full")
            done.append(run.files_processed)
            if run.status is RunStatus.COMPLETED:
                break
        assert run.status is RunStatus.COMPLETED
        assert len(done) > 2, "it was never interrupted"
        assert done == sorted(done)
        assert run.files_processed == 300
        assert len({path for path, _ in await chunks(world)}) == 300


async def test_an_index_without_prefixes_is_searched_without_until_one_with_them_is_live(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    # As a program before 0.2 used the model.
    world.edit_registry("model: test/words", 'model: nomic-embed-text, query_prefix: "", document_prefix: ""')
    world.embeddings.model = "nomic-embed-text"
    async with world.opened():
        await world.completed()
        before, plain = await chunks(world), world.embeddings.inputs[:]
    world.edit_registry(', query_prefix: "", document_prefix: ""', "")
    async with world.opened():
        world.embeddings.forget()
        assert await found(world, "alpha") >= {"a.py"}
        assert world.embeddings.inputs == ["alpha"]
        await world.completed()
        assert world.embeddings.inputs[1:] == [f"search_document: {text}" for text in plain]
        world.embeddings.forget()
        assert await found(world, "alpha") >= {"a.py"}
        assert world.embeddings.inputs[-1] == "search_query: alpha"
        assert await chunks(world) == before, "a prefix is no part of a chunk"


@pytest.mark.full
async def test_an_index_of_the_local_model_of_01_is_searched_by_meaning_until_the_new_one_is_live(
    closed_world: World, caplog: pytest.LogCaptureFixture
):
    world = closed_world
    registry = (world.folder / "repositories.yaml").read_text()
    of_server = next(line for line in registry.splitlines() if "test/words" in line)
    world.edit_registry(of_server, "embedding: {provider: local}")
    fruit = b"apples, pears and cherries grow on trees in an orchard\n"
    world.repository.commit({"fruit.txt": fruit, "net.py": b"def connect(host):\n    return socket(host)\n"})

    async def first_by_meaning() -> tuple[str, str]:
        hits = await world.app.searching.search("plums harvested by a farmer")  # words that are in no file
        return (await live(world)).settings["spec"]["model"], hits[0].path

    async with world.opened():
        configured = world.app.configuration.registry.embedding
        former = former_config(configured, EmbeddingSpec("local", FORMER_LOCAL_MODEL, DIMENSION, LOCAL_WINDOW))
        assert former is not None
        world.app._embedders[configured] = open_embedder(former)  # as 0.1 did, with the same registry
        await world.completed()
        assert await first_by_meaning() == (FORMER_LOCAL_MODEL, "fruit.txt")
        await world.app._embedders[configured].close()
    async with world.opened():
        assert await first_by_meaning() == (FORMER_LOCAL_MODEL, "fruit.txt")
        assert "searching words only" not in caplog.text
        run = await world.completed()
        assert (run.chunks_embedded, run.chunks_reused) == (2, 0)
        assert await first_by_meaning() == (LOCAL_MODEL, "fruit.txt")


async def test_going_back_to_an_old_model_is_setting_it_again_and_embeds_nothing(closed_world: World):
    world = closed_world
    world.configure(extra="index: {keep_retired: 1h}\n")
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        first, before = await live(world), await chunks(world)
    another_model(world)
    async with world.opened():
        await world.completed()
        assert (await live(world)).id != first.id
    world.edit_registry("model: test/others", "model: test/words")
    world.embeddings.model = "test/words"
    async with world.opened():
        world.embeddings.forget()

        run = await world.completed()

        assert world.embeddings.inputs == []
        assert (run.files_processed, run.chunks_embedded) == (0, 0)
        assert ((await live(world)).id, await chunks(world)) == (first.id, before)


# While a version is built, the live one follows the commits -----------------------------------------------------------


async def failed_build(world: World) -> None:
    """Nothing of the new version can be embedded."""
    run = await world.sync()
    assert (run.status, run.error_code) == ("failed", "EMBEDDING_ERROR"), run.error_message


@pytest.mark.parametrize("change", [another_model, another_chunk_size, another_collection])
async def test_a_push_is_searchable_before_the_next_version_is_built(closed_world: World, change: Change):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await live(world)
    change(world)
    world.embeddings.other_models = frozenset({"test/words"})
    head = world.repository.commit({"new.py": module("omega"), "b.py": None})
    searched: list[asyncio.Future[set[str]]] = []

    def search_once(progress: RunProgress) -> None:
        """When the new version gets its first file."""
        if progress.phase == "indexing" and progress.files_total >= len(FILES) and not searched:
            searched.append(asyncio.ensure_future(found(world, "omega beta")))

    async with world.opened():
        target = await world.app.catalog.find("project")
        run = await sync(world.app, target, full=False, approved=False, watch=search_once)
        assert (run.status, run.commit_after) == ("completed", head), run.error_message
        (paths,) = await asyncio.gather(*searched)
        assert ("new.py" in paths, "b.py" in paths) == (True, False)
        assert (await live(world)).id != before.id
        assert {path for path, _ in await chunks(world)} == {"a.py", "new.py", "docs/c.md"}
        assert run.files_processed == 3, "each file is counted once"
        assert len(world.embeddings.inputs) >= run.chunks_embedded


async def test_a_build_that_fails_leaves_the_live_version_at_the_new_commit(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await live(world)
    world.edit_registry("model: test/words", "model: test/others")
    head = world.repository.commit({"new.py": module("omega")})
    async with world.opened():
        await failed_build(world)
        after = await live(world)
        assert (after.id, after.commit_sha) == (before.id, head)
        assert await found(world, "omega") >= {"new.py"}
        assert (await world.app.repositories.get("project")).last_commit == head
        world.embeddings.forget()
        await failed_build(world)
        assert world.embeddings.inputs == [], "what the live version has is not embedded again"


@pytest.mark.parametrize("reason", ["the server has another model", "a different provider"])
async def test_a_model_that_cannot_be_asked_any_more_does_not_keep_the_next_version_from_being_built(
    closed_world: World, caplog: pytest.LogCaptureFixture, reason: str
):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
    if reason == "a different provider":
        world.edit_registry("provider: openai", "provider: ollama")
    else:
        another_model(world)
    world.repository.commit({"new.py": module("omega")})
    async with world.opened():
        await world.completed()
        assert await found(world, "omega") >= {"new.py"}
    assert "follows no commits until its new version is live" in caplog.text


async def test_a_mass_deletion_is_stopped_before_the_next_version_is_built(closed_world: World):
    world = closed_world
    files: dict[str, Content] = {f"f{number:02}.py": module(f"word{number}") for number in range(30)}
    world.repository.commit(files)
    async with world.opened():
        await world.completed()
    another_chunk_size(world)
    world.repository.commit(dict.fromkeys(list(files)[:29]))
    async with world.opened():
        run = await world.sync()
        assert (run.status, run.error_code) == ("blocked", "DELETION_BLOCKED")
        assert len(await world.indexed()) == 30
        await world.app.runs.approve(run.id, Ask(RunTrigger.COMMAND, "anna"))
        assert (await world.sync()).status == "completed"
        assert set(await world.indexed()) == {"f29.py"}
