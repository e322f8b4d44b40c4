"""A first sync stores words before meaning: what was stored is searched at once, and nothing is lost in between."""

from __future__ import annotations

import pytest

from reposync.app.index_overview import index_overview
from reposync.app.verification import Verification
from reposync.store.status import RunStatus
from reposync.store.tables import VersionState
from reposync.vectors.port import DENSE, SPARSE
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import module
from tests.integration.sync.test_index_versions import another_model, handed_back_after_a_file, versions

pytestmark = pytest.mark.full

FILES = {f"f{number}.py": module(f"name{number}", 4) for number in range(300)}


async def check_complete(world: World) -> None:
    (version,) = await versions(world)
    points = await world.points(version.physical)
    assert (version.state, version.id) == (VersionState.LIVE, (await world.app.repositories.get("project")).id)
    assert {point["payload"]["metadata"]["repository_id"] for point in points.values()} == {version.id}
    assert {frozenset(point["vector"]) for point in points.values()} == {frozenset({DENSE, SPARSE})}
    assert await world.indexed() == {path: sha for path, sha in (await world.expected()).items() if path != "data"}


async def test_words_are_searched_while_the_meaning_is_indexed(world: World) -> None:
    world.repository.commit(FILES)
    # The fourth batch is embedded after the first was stored; the first three take two requests each.
    world.embeddings.answer_next(401, after=7)
    failed = await world.sync()
    assert (failed.status, failed.error_code) == ("failed", "EMBEDDING_ERROR")

    hits = await world.app.searching.search("name77", limit=3)
    assert hits[0].path == "f77.py"
    assert all(hit.meaning_indexed is not None and 0 < hit.meaning_indexed < 1 for hit in hits)
    overview = await index_overview(world.app, "project")
    assert overview.meaning_indexed == hits[0].meaning_indexed
    (version,) = await versions(world)
    assert version.state is VersionState.LIVE and version.meaning_pending
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert "no_vector" not in verdict.counts, "the meaning that follows is not missed"

    plan = await world.preview()
    assert plan.files_to_read == 0 and plan.chunks >= plan.chunks_to_embed > 0
    run = await world.completed()
    assert plan.chunks_to_embed == run.chunks_embedded
    assert (failed.files_processed, run.files_processed, run.files_failed) == (300, 0, 0)
    assert (await world.app.searching.search("name77"))[0].meaning_indexed is None
    assert (await index_overview(world.app, "project")).meaning_indexed is None
    await check_complete(world)


async def test_a_first_sync_counts_and_reads_each_file_once(world: World) -> None:
    world.repository.commit({**FILES, "data": b"\0" * 5})
    run = await world.completed()
    assert (run.files_processed, run.files_skipped) == (300, 1)
    assert world.watched[-1]["bytes_read"] == sum(map(len, FILES.values())) + 5
    assert next(each["phase"] for each in world.watched if each["phase"] in ("words", "indexing")) == "words"
    assert len(world.embeddings.inputs) == run.chunks_embedded
    await check_complete(world)
    world.embeddings.forget()
    assert (await world.completed()).files_processed == 0
    assert world.embeddings.inputs == []


async def test_a_first_sync_that_is_interrupted_goes_on_where_it_was(world: World) -> None:
    world.repository.commit(FILES)
    phases = set()
    for _ in range(30):
        run = await handed_back_after_a_file(world)
        (version,) = await versions(world)
        phases.add((version.state, version.meaning_pending is not None))
        if run.status is RunStatus.COMPLETED:
            break
    assert run.status is RunStatus.COMPLETED
    assert {(VersionState.BUILDING, False), (VersionState.LIVE, True), (VersionState.LIVE, False)} == phases
    assert run.files_processed == 300
    # What is in flight when a turn is interrupted is embedded again.
    assert len(set(world.embeddings.inputs)) == 300 <= run.chunks_embedded <= len(world.embeddings.inputs)
    await check_complete(world)


async def test_a_commit_that_arrives_in_between_is_what_is_indexed(world: World) -> None:
    world.repository.commit(FILES)
    world.embeddings.answer_next(401, after=5)
    assert (await world.sync()).status == "failed"
    world.repository.commit({"new.py": module("omega"), "f1.py": module("other")})
    await world.completed()
    assert "new.py" in {hit.path for hit in await world.app.searching.search("omega")}
    await check_complete(world)


async def test_a_text_that_the_model_refuses_fails_its_file_alone(world: World) -> None:
    world.repository.commit(FILES | {"refused.py": module("name", 30) + b"# poison\n"})
    world.embeddings.refuses = "poison"
    run = await world.sync()
    assert (run.error_code, run.files_failed) == ("FILES_FAILED", 1)
    row = await world.app.repositories.get("project")
    (version,) = await versions(world)
    assert (row.last_commit, version.meaning_pending, version.partial_commit is not None) == (None, None, True)
    assert (await world.indexed()).keys() == FILES.keys(), "no chunk of the file is left"
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert {each.path for each in verdict.differences} == {"refused.py"}

    world.embeddings.refuses = None
    await world.completed()
    await check_complete(world)


async def test_a_search_while_meaning_is_indexed_ranks_by_words_alone(world: World) -> None:
    world.repository.commit(FILES)
    world.embeddings.answer_next(401, after=7)
    assert (await world.sync()).status == "failed"
    for repository in (None, "project"):
        hits = await world.app.searching.search("name77", repository=repository, limit=5)
        assert hits[0].path == "f77.py"
        assert not any(hit.parts.get("meaning", 0.0) for hit in hits)
    await world.completed()
    assert any(hit.parts.get("meaning", 0.0) for hit in await world.app.searching.search("name77", limit=5))


async def test_a_new_model_in_the_middle_is_built_beside_what_is_found_by_words(closed_world: World) -> None:
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        world.embeddings.answer_next(401, after=7)
        assert (await world.sync()).status == "failed"
    another_model(world)
    world.repository.commit({"new.py": module("omega")})
    async with world.opened():
        world.embeddings.answer_next(401, after=5)
        assert (await world.sync()).status == "failed"
        hits = await world.app.searching.search("omega")
        assert hits[0].path == "new.py", "words follow the commits"
        assert hits[0].meaning_indexed, "what has its meaning is still counted"
        await world.completed()
        assert (await world.app.searching.search("omega"))[0].meaning_indexed is None
        assert {version.meaning_pending for version in await versions(world)} == {None}


async def test_points_that_another_program_changes_or_deletes_meanwhile_are_stored_again(world: World) -> None:
    world.repository.commit(FILES)
    world.embeddings.answer_next(401, after=7)
    assert (await world.sync()).status == "failed"
    (version,) = await versions(world)
    points = await world.points(version.physical)
    changed, deleted = [point for point in points.values() if DENSE not in point["vector"]][:2]
    await world.put_points([{**changed, "payload": {**changed["payload"], "page_content": "something else"}}])
    await world.delete_points([deleted["id"]])
    assert (await world.sync()).error_code == "FILES_FAILED", "what was changed is read again by the next run"
    await world.completed()
    await check_complete(world)
