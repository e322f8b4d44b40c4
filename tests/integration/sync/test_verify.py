"""`verify` reports every way in which an index can be wrong, and a repair brings it back to what a fresh sync makes."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from reposync.app.documents import Verdict
from reposync.app.verification import Verification, find_orphaned_points
from reposync.content.model import content_hash
from reposync.errors import ConflictError
from reposync.operations.core import Actor
from reposync.operations.syncs import RemovalOptions, remove_leftovers
from reposync.store.endings import Finish
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunTrigger
from reposync.store.tables import FILES as MANIFEST
from reposync.sync.progress import RunProgress
from reposync.vectors.port import point_id
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.gitlab_world import GitLabWorld
from tests.fixtures.missing_blobs import unreadable
from tests.fixtures.repositories import Content, Symlink
from tests.fixtures.syncing import sync
from tests.fixtures.world import World, comparable
from tests.integration.sync.test_exactness import CODE, module
from tests.integration.sync.test_searching import Meanwhile

KEYS = ("path", "blob_sha", "chunk_index")
Points = dict[str, dict[str, Any]]
FILES: dict[str | bytes, Content] = {
    "a.py": CODE,
    "b.py": module("b", 30),
    "docs/c.md": b"# Title\n\nwords\n",
    b"caf\xe9\n.py": b"broken = 1\n",
    "link": Symlink("a.py"),
}
SKIPPED: dict[str | bytes, Content] = {"empty.py": b"", "data.bin2": b"\x00\x01" * 9, "yarn.lock": b"x 1\n"}


def verification(world: World, *, source: bool = False, logged: list[str] | None = None) -> Verification:
    return Verification(world.app, against_source=source, report=(logged if logged is not None else []).append)


async def verdict(world: World, *, source: bool = False, name: str = "project") -> Verdict:
    found = await verification(world, source=source).verify(name)
    assert found.trouble is None, found.trouble
    return found


async def repaired(world: World, name: str = "project") -> Run:
    run = await sync(world.app, await world.app.catalog.find(name), repair=True)
    assert run.status == "completed", f"{run.error_code}: {run.error_message}"
    return run


def vectors(points: Points) -> dict[str, Any]:
    return {key: point["vector"] for key, point in points.items()}


# Damage: what it does to the points, and the kinds of differences that it makes --------------------------------------

Damage = Callable[[Points, random.Random], tuple[list[str], list[dict[str, Any]]]]
"""-> ids that go, points that come"""


def _one(points: Points, chance: random.Random) -> dict[str, Any]:
    return copy.deepcopy(points[chance.choice(sorted(points, key=str))])


def lose(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    return chance.sample(sorted(points, key=str), chance.randint(1, len(points))), []


def saying(**said: Any) -> Damage:
    """A point of ours with other metadata; `...` takes a key away."""

    def change(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
        point = _one(points, chance)
        metadata = point["payload"]["metadata"] | said
        point["payload"]["metadata"] = {key: value for key, value in metadata.items() if value is not ...}
        return [], [point]

    return change


def another_text(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    point = _one(points, chance)
    point["payload"]["page_content"] = chance.choice(["something else\n", "", None, 7])
    return [], [point]


def as_another_file(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    """It says that it is a chunk of another file, whose points are all there."""
    point = _one(points, chance)
    path = point["payload"]["metadata"]["path"]
    others = {key: each for key, each in points.items() if each["payload"]["metadata"].get("path") != path}
    other = _one(others, chance) if others else point | {"payload": {"metadata": dict.fromkeys(KEYS, "x")}}
    for key in KEYS:
        point["payload"]["metadata"][key] = other["payload"]["metadata"][key]
    return [], [point]


def moved(first: int, last: int = 0) -> Damage:
    """Lines of its file that are further down."""

    def change(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
        point = _one(points, chance)
        metadata = point["payload"]["metadata"]
        for key, lines in (("start_line", first), ("end_line", first + last)):
            metadata[key] += lines
        return [], [point]

    return change


def twice(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    identity = chance.choice([str(uuid.UUID(int=chance.getrandbits(128), version=4)), chance.getrandbits(40)])
    return [], [_one(points, chance) | {"id": identity}]


def without_vector(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
    return [], [_one(points, chance) | {"vector": {}}]


def of_another(**said: Any) -> Damage:
    """A point with the id that it would have had at another path, blob or chunk."""

    def change(points: Points, chance: random.Random) -> tuple[list[str], list[dict[str, Any]]]:
        point = _one(points, chance)
        metadata = point["payload"]["metadata"] = point["payload"]["metadata"] | said
        keys = ("repository_id", "path", "blob_sha", "chunk_index")
        return [], [point | {"id": point_id(*(metadata[key] for key in keys))}]

    return change


WAYS: dict[str, tuple[Damage, set[str]]] = {
    "points are gone": (lose, {"missing"}),
    "another text": (another_text, {"altered"}),
    "another content hash": (saying(content_hash="0" * 32), {"altered"}),
    "another file": (as_another_file, {"altered"}),
    "a path that there is not": (saying(path="nowhere.py"), {"altered"}),
    "another repository's name": (saying(repository="old name"), {"altered"}),
    "another repository's id": (saying(repository_id=str(uuid.UUID(int=7))), {"missing"}),
    "a chunk that is no number": (saying(chunk_index="0"), {"altered"}),
    "another language": (saying(language="cobol"), {"altered"}),
    "tokens of another path": (saying(path_tokens=["/other/", "*.rs"]), {"altered"}),
    "lines that are none": (saying(start_line=9, end_line=2), {"altered"}),
    "a start that is none": (saying(start_index=-1), {"altered"}),
    "lines further down": (moved(3), {"altered"}),
    "another last line": (moved(0, 1), {"altered"}),
    "no commit": (saying(commit=None), {"altered"}),
    "another commit": (saying(commit="f" * 40), {"altered"}),
    "no url": (saying(url=...), {"altered"}),
    "another url": (saying(url="https://evil.example/x"), {"altered"}),
    "an older epoch": (saying(epoch=0), {"altered"}),
    "an epoch that is no number": (saying(epoch="later"), {"altered"}),
    "no vector": (without_vector, {"no_vector"}),
    "a second copy": (twice, {"extra"}),
    "a blob that was": (of_another(blob_sha="2" * 40), {"extra"}),
    "a blob that was, of a later epoch": (of_another(blob_sha="2" * 40, epoch=5_000), {"extra"}),
    "a tail that was": (of_another(chunk_index=77), {"extra"}),
    "a file that was": (of_another(path="gone.py"), {"extra"}),
}


async def damage(world: World, way: Damage, chance: random.Random) -> None:
    lost, come = way(await world.points(), chance)
    if lost:
        await world.delete_points(lost)
    if come:
        await world.put_points(come)


@pytest.mark.full
@pytest.mark.parametrize("some", range(4))
async def test_each_kind_of_damage_is_reported_and_repaired(world: World, some: int):
    world.repository.commit(FILES | SKIPPED)
    await world.completed()
    before = await world.points()
    for way in list(WAYS)[some::4]:
        do, kinds = WAYS[way]
        await damage(world, do, random.Random(way))

        found = await verdict(world)
        run = await repaired(world)

        assert {str(kind) for kind in found.counts} == kinds, way
        assert {str(each.kind) for each in found.differences} == kinds, way
        assert (run.trigger, run.error_code) == ("command", None), way
        assert str(run.error_message).startswith("Repaired on request: "), way
        after = await world.points()
        assert comparable(after) == comparable(before), way
        assert vectors(after) == vectors(before), way
    assert (await verdict(world, source=True)).exact
    assert (await world.completed()).error_code is None


@pytest.fixture
async def settled(world: World) -> tuple[World, Points]:
    world.repository.commit(FILES)
    await world.completed()
    return world, comparable(await world.points())


@settings(max_examples=SLOW_EXAMPLES)
@given(ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=2, max_size=6), seed=st.integers(0, 2**32))
async def test_any_damage_is_reported_and_a_repair_ends_where_a_fresh_sync_does(
    settled: tuple[World, Points], ways: list[str], seed: int
):
    world, fresh = settled
    chance = random.Random(seed)
    for way in ways:
        await damage(world, WAYS[way][0], chance)
        if not await world.points():
            break

    found = await verdict(world)
    assert not found.exact, "points that say that they are something else are no points of a fresh sync"
    await repaired(world)

    for leftover in await find_orphaned_points(world.app):  # a point that says that it is another repository's
        if leftover.repository_id == str(uuid.UUID(int=7)):
            assert leftover.repository_id is not None
            who, named = Actor.at_terminal("nobody"), {"repository_id": leftover.repository_id}
            with pytest.raises(ConflictError, match="never synced here"):
                await remove_leftovers(world.app, who, RemovalOptions(), **named)
            await remove_leftovers(world.app, who, RemovalOptions(unknown=True), **named)
    assert (await verdict(world, source=True)).exact
    assert comparable(await world.points()) == fresh


@pytest.mark.parametrize(
    "said", [{"url": "https://evil.example/x"}, {"commit": "f" * 40}], ids=lambda said: next(iter(said))
)
async def test_what_a_search_would_show_is_compared_if_all_points_were_changed_alike(
    gitlab_world: GitLabWorld, said: dict[str, str]
):
    world = gitlab_world
    world.repository.commit({"a.py": module("a", 30)})
    await world.completed()
    world.repository.commit({"b.py": module("b", 900)})
    await world.completed()
    fresh = comparable(await world.points())
    assert (await verdict(world)).exact
    points = copy.deepcopy(list((await world.points()).values()))
    for point in points:
        point["payload"]["metadata"] |= said
    await world.put_points(points)

    found = await verdict(world)
    await repaired(world)

    assert {path for each in found.differences if (path := each.path)} == {"a.py", "b.py"}
    assert found.counts == {"altered": len(points)}
    assert comparable(await world.points()) == fresh


CELLS = [{"cell_type": "code", "source": "def load():\n    return 1\n"}]
NOTEBOOK = json.dumps({"cells": CELLS, "nbformat": 4}, indent=1)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a.py", {"page_content": "def evil():\n    pass\n"}),
        ("a.py", {"symbols": [{"name": "evil", "kind": "class", "start_line": 1, "end_line": 2}]}),
        ("n.ipynb", {"start_line": 7, "end_line": 7}),
    ],
    ids=["a text with its hash", "definitions", "lines of a notebook"],
)
async def test_with_the_source_whatever_a_search_shows_is_derived_again_and_repaired(
    world: World, path: str, said: dict[str, Any]
):
    world.repository.commit({"a.py": CODE, "n.ipynb": NOTEBOOK.encode()})
    await world.completed()
    fresh = comparable(await world.points())
    points = copy.deepcopy(await world.points())
    point = next(each for each in points.values() if each["payload"]["metadata"]["path"] == path)
    if text := said.get("page_content"):
        point["payload"] |= {"page_content": text}
        said = {"content_hash": content_hash(text), "start_line": 1, "end_line": 2, "start_index": 0}
    point["payload"]["metadata"] |= said
    await world.put_points([point])

    found = await verdict(world, source=True)
    assert {each.path: str(each.kind) for each in found.differences} == {path: "content"}
    assert found.needs_full
    run = await sync(world.app, await world.app.catalog.find("project"), full=True, repair=True)

    assert run.status == "completed", run.error_message
    assert comparable(await world.points()) == fresh
    assert (await verdict(world, source=True)).exact


async def test_rows_that_do_not_fit_the_commit_are_reported_by_the_source_and_repaired(world: World):
    world.repository.commit(FILES | {"d.py": b"d = 1\n", "e.py": b"e = 1\n"})
    await world.completed()
    fresh = comparable(await world.points())
    row = await world.app.repositories.get("project")
    run, _ = await world.app.runs.enqueue("project", Ask(RunTrigger.SCHEDULE))
    claimed = await world.app.runs.claim("vandal", 60, run_id=run.id)
    assert claimed is not None
    rows = await world.app.manifests.load(row.id)
    await world.app.manifests.forget(claimed, row.id, ["d.py", "link"])
    await world.app.manifests.record(
        claimed, row.id, [rows["e.py"]._replace(path="never.py"), rows["b.py"]._replace(chunks=1)]
    )
    await world.app.runs.end(claimed, Finish(), RunFigures())

    alone, by_source = await verdict(world), await verdict(world, source=True)
    assert {str(kind) for kind in alone.counts} == {"extra", "missing"}
    unlisted = {each.path: each.what for each in by_source.differences if str(each.kind) == "unlisted"}
    assert "d.py" in {each.path for each in by_source.differences if str(each.kind) == "missing"}
    assert unlisted == {
        "link": "must be skipped (symlink), but the manifest does not say so",
        "never.py": "is in the manifest and not in the commit",
    }
    await repaired(world)

    assert comparable(await world.points()) == fresh
    assert (await verdict(world, source=True)).exact


async def left_out(world: World, path: str, **columns: Any) -> None:
    """The manifest says that the file is not indexed, and it has no points."""
    ids = [key for key, point in (await world.points()).items() if point["payload"]["metadata"]["path"] == path]
    await world.delete_points(ids)
    async with world.app.database.write() as connection:
        await connection.execute(update(MANIFEST).where(MANIFEST.c.path == path).values(chunks=0, **columns))


@pytest.mark.parametrize(
    ("reason", "size_bytes"), [("too_large", 42_035), ("failed", 42_035), ("failed", None), ("excluded", None)]
)
async def test_a_file_that_the_manifest_wrongly_leaves_out_is_missing_and_is_read_by_a_repair(
    world: World, reason: str, size_bytes: int | None
):
    world.repository.commit(FILES)
    await world.completed()
    await left_out(world, "a.py", skip_reason=reason, size_bytes=size_bytes)
    found = await verdict(world, source=True)
    assert [(each.kind, each.path) for each in found.differences] == [("missing", "a.py")]
    if reason == "too_large":
        with unreadable(world.repository, "a.py"):
            unproven = await verification(world, source=True).verify("project")
            assert not unproven.exact
            assert "a.py" in (unproven.trouble or "")
    await repaired(world)
    assert (await verdict(world, source=True)).exact
    assert await world.points()


async def test_an_index_between_two_commits_is_not_exact(world: World):
    world.repository.many(450)
    await world.completed()
    world.repository.many(450, content=lambda n: b"other = %d\n" % n)
    target = await world.app.catalog.find("project")
    cut_off: list[asyncio.Task[Run]] = []

    def cut(progress: RunProgress) -> None:
        if progress.files_done:
            cut_off[0].cancel()

    syncing = sync(world.app, target, full=False, approved=False, watch=cut)
    cut_off.append(asyncio.create_task(syncing))
    with pytest.raises(asyncio.CancelledError):
        await cut_off[0]

    found = await verdict(world)

    assert dict(found.counts) == {"unfinished": 1}
    await repaired(world)
    assert (await verdict(world, source=True)).exact
    assert await world.indexed() == await world.expected()


async def test_points_in_another_collection_are_reported_and_removed(closed_world: World):
    world = closed_world
    world.configure(extra=f"  - {{name: other, path: '{world.repository.path}', collection: {world.collection}-b}}\n")
    async with world.opened():
        world.repository.commit(FILES)
        await world.completed()
        await world.completed("other")
        strays = [point | {"id": str(uuid.uuid4())} for point in (await world.points()).values()]
        beside = World(world.folder, world.repository, world.embeddings, world.qdrant_url, f"{world.collection}-b")
        mine = await beside.points()
        await beside.put_points(strays)

        found = await verdict(world)
        assert dict(found.counts) == {"elsewhere": len(strays)}
        assert (await verdict(world, name="other")).exact
        run = await repaired(world)

        assert f"{len(strays)} points in other collections" in str(run.error_message)
        assert await beside.points() == mine
        assert (await verdict(world)).exact


# Beside syncs --------------------------------------------------------------------------------------------------------


async def test_a_verification_waits_for_an_active_sync_and_reports_no_difference(world: World):
    world.repository.commit({f"{n}.py": module(f"f{n}", 20) for n in range(8)})
    await world.completed()
    world.repository.commit({f"{n}.py": module(f"g{n}", 20) for n in range(8)})
    logged: list[str] = []
    with world.embeddings.holding():
        syncing = asyncio.create_task(world.completed())
        await asyncio.to_thread(world.embeddings.wait_for_waiting, 1)
        verifying = asyncio.create_task(verification(world, logged=logged).verify("project"))
        while not logged:
            await asyncio.sleep(0.01)
        assert not verifying.done()
    run = await syncing
    found = await verifying

    assert found.exact, found
    assert found.commit == run.commit_after
    assert logged == [f"project: waits for run {run.id}"]


@pytest.mark.parametrize("source", [False, True])
async def test_a_sync_while_it_reads_is_no_difference(closed_world: World, source: bool):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
    async with world.opened():
        head = world.repository.commit({"a.py": b"a = 2\n", "docs/c.md": None})
        world.app.index_transport = meanwhile = Meanwhile(world.completed, "/points/scroll")
        found = await verdict(world, source=source)
        assert meanwhile.searches > 1
        assert (found.exact, found.commit) == (True, head), found


async def test_an_index_that_does_not_answer_proves_nothing(closed_world: World):
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
    async with world.opened():
        world.app.index_transport = httpx.MockTransport(lambda request: httpx.Response(403, text="no"))
        found = await verification(world).verify("project")
        assert not found.exact
        assert "403" in str(found.trouble)


async def test_points_that_a_removal_left_do_not_affect_a_new_repository_of_that_name(closed_world: World):
    """Their epochs are later than the first ones of the new repository."""
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        for number in range(4):
            world.repository.commit({"a.py": b"a = %d\n" % number})
            await world.completed()
        await world.app.repositories.remove("project")
    world.repository.commit({b"b.py": None, b"a.py": CODE, b"caf\xe9\n.py": None})
    async with world.opened():
        await world.completed()
        assert await world.indexed() == await world.expected()
        assert (await verdict(world, source=True)).exact


async def test_a_repair_that_finds_nothing_wrong_writes_nothing(world: World):
    world.repository.commit(FILES)
    await world.completed()
    before, row = await world.points(), await world.app.repositories.get("project")

    run = await repaired(world)

    assert (run.error_code, run.files_processed) == (None, 0)
    assert await world.points() == before
    assert (await world.app.repositories.get("project")).epoch == row.epoch
