"""What a search shows while versions become live, are built and go; and that others' repositories cost it nothing."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from reposync.errors import EmbeddingError, RepositoryNotFound
from reposync.search.facets import facets_of
from reposync.search.query import By, read_query
from reposync.store.run import Ask
from reposync.store.status import RunTrigger
from reposync.store.tables import VersionState
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import module
from tests.integration.sync.test_index_versions import (
    another_chunk_size,
    another_collection,
    another_model,
    live,
    versions,
)

FILES = {f"f{number}.py": module("alpha", 4) for number in range(12)}


class Meanwhile(httpx.AsyncBaseTransport):
    """Lets something happen once, between the database query of a search and its Qdrant query. `holds`: also before its
    second query, which is sent at the same time; what happens then sends none itself."""

    def __init__(
        self, happens: Callable[[], Awaitable[object]], before: str = "/points/query", *, holds: bool = False
    ) -> None:
        self._before = before
        self._real = httpx.AsyncHTTPTransport()
        self._held: contextlib.AbstractAsyncContextManager[object] = (
            asyncio.Lock() if holds else contextlib.nullcontext()
        )
        self._happens: Callable[[], Awaitable[object]] | None = happens
        self.searches = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(self._before):
            self.searches += 1
            async with self._held:
                if (happens := self._happens) is not None:
                    self._happens = None
                    await happens()
        return await self._real.handle_async_request(request)

    async def aclose(self) -> None:
        await self._real.aclose()


def copies(points: dict[str, dict[str, Any]], identity: str) -> list[dict[str, Any]]:
    """The same points under another id of a version."""
    made = []
    for point in points.values():
        metadata = point["payload"]["metadata"] | {"repository_id": identity}
        payload = point["payload"] | {"metadata": metadata}
        made.append(point | {"id": str(uuid.uuid4()), "payload": payload})
    return made


async def searched(world: World, *, limit: int = 5, repository: str | None = None) -> set[str]:
    """The versions of the hits, as many as were requested."""
    hits = await world.app.searching.search("alpha", limit=limit, repository=repository)
    assert len(hits) == limit
    return {hit.version for hit in hits}


@pytest.mark.parametrize("repository", [None, "project"])
@pytest.mark.parametrize("change", [another_model, another_chunk_size, another_collection])
async def test_a_version_that_becomes_live_during_a_search_is_what_it_answers_from(
    closed_world: World, change: Callable[[World], None], repository: str | None
) -> None:
    world = closed_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await live(world)
    change(world)
    async with world.opened():
        # Its own run removes the version before; the search has not read a point of it.
        world.app.index_transport = meanwhile = Meanwhile(world.completed)
        found = await searched(world, repository=repository)
        after = await live(world)
        assert await versions(world) == [after], "the one before is gone"
        assert {each["repository_id"] for each in await world.metadata()} == {after.id}

    assert (found, after.id != before.id, meanwhile.searches > 1) == ({after.id}, True, True)


async def test_a_version_that_begins_to_be_built_during_a_search_is_not_found(world: World) -> None:
    world.repository.commit(FILES)
    await world.completed()
    now, there = await live(world), await world.points()
    run, _ = await world.app.runs.enqueue("project", Ask(RunTrigger.COMMAND))
    claimed = await world.app.claim(run.repository_id)
    assert claimed is not None
    built: list[str] = []

    async def begins() -> None:
        version = await world.app.versions.add(
            claimed, VersionState.BUILDING, collection=now.collection, physical=now.physical
        )
        built.append(version.id)
        points = [point for _ in range(5) for point in copies(there, version.id)]
        for point in points:
            point["payload"]["metadata"]["path"] = f"{point['id']}.py"
        await world.put_points(points)

    world.app.index_transport = Meanwhile(begins, holds=True)
    world.app.indexes.clear()

    assert await searched(world, limit=12) == {now.id}
    assert built and built != [now.id]


async def test_points_of_a_second_installation_in_the_same_collection_are_found(world: World) -> None:
    world.repository.commit(FILES)
    await world.completed()
    now, there = await live(world), await world.points()
    stranger = str(uuid.uuid4())
    await world.put_points(copies(there, stranger))

    assert await searched(world, limit=24) == {now.id, stranger}


async def test_a_search_says_that_the_embedding_server_refuses_unless_the_repository_is_unknown(world: World) -> None:
    world.repository.commit(FILES)
    await world.completed()
    await searched(world)  # from now on the query is embedded while the database is read
    world.embeddings.answer_next(401, body={"error": {"message": "no"}}, times=2)

    with pytest.raises(EmbeddingError, match="401"):
        await searched(world)
    with pytest.raises(RepositoryNotFound):
        await searched(world, repository="missing")
    world.embeddings.reset()
    await searched(world)


async def test_words_that_only_ask_find_nothing_unless_the_question_has_no_others(world: World) -> None:
    files = {"asking.txt": b"What does this do? How do you use it?\n", "b.txt": b"sessions expire\n"}
    world.repository.commit(files)
    await world.completed()

    async def found(question: str) -> tuple[set[str], int]:
        hits = await world.app.searching.search(question, by=By.WORDS)
        counted = await facets_of(world.app, read_query(question))
        assert counted is not None
        return {hit.path for hit in hits}, counted.counted

    assert await found("how does a session expire") == ({"b.txt"}, 1)
    assert await found("how does it work") == ({"asking.txt"}, 1)


async def test_the_query_is_embedded_once_for_a_search(world: World) -> None:
    world.repository.commit(FILES)
    await world.completed()
    await searched(world)
    world.embeddings.forget()

    await searched(world)
    await searched(world, repository="project")
    assert len(world.embeddings.log) == 2


async def test_the_phrasings_of_a_question_are_embedded_in_one_request_and_searched_in_one(world: World) -> None:
    world.app.index_transport = batches = Meanwhile(_nothing, before="/points/query/batch")
    world.repository.commit(FILES | {"gamma.py": module("gamma", 4)})
    await world.completed()
    await searched(world)
    world.embeddings.forget()

    hits = await world.app.searching.search(["alpha", "gamma", "beta"], limit=5)

    assert [exchange.inputs for exchange in world.embeddings.log] == [3]
    assert batches.searches == 1
    paths = [hit.path for hit in hits]
    assert "gamma.py" in paths and len(paths) == len(set(paths)) == 5
    (gamma,) = [hit for hit in hits if hit.path == "gamma.py"]
    assert gamma.phrasings[0] == 2
    narrowed = await world.app.searching.search(["alpha path:gamma.py", "gamma", "beta"], limit=5)
    assert {hit.path for hit in narrowed} == {"gamma.py"}


async def _nothing() -> None:
    pass


async def test_after_a_change_of_the_model_a_query_is_embedded_as_early_as_before(world: World) -> None:
    world.repository.commit(FILES)
    await world.completed()
    await searched(world)
    registry = world.app.configuration.registry
    changed = registry.embedding.model_copy(update={"window": 100})
    world.app.adopt(registry.model_copy(update={"embedding": changed}))
    await world.completed()
    await searched(world)
    world.embeddings.forget()

    with pytest.raises(RepositoryNotFound):
        await searched(world, repository="missing")
    assert len(world.embeddings.log) == 1, "while the database was read"
