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
from tests.integration.sync.test_index_versions import handed_back_after_a_file, versions

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
    states = {version.state: version.has_words_only for version in await versions(world)}
    assert states == {VersionState.LIVE: True, VersionState.BUILDING: False}
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert "no_vector" not in verdict.counts, "the meaning that follows is not missed"

    run = await world.completed()
    assert (failed.files_processed + run.files_processed, run.files_failed) == (300, 0)
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
        phases.add(tuple(sorted((str(each.state), each.has_words_only) for each in await versions(world))))
        if run.status is RunStatus.COMPLETED:
            break
    assert run.status is RunStatus.COMPLETED
    assert (("building", True),) in phases
    assert (("building", False), ("live", True)) in phases
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
