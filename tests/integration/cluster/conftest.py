"""Nodes of a real Qdrant under trouble: TEST_QDRANT_BINARY names the executable. Without it nothing is collected."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from pathlib import Path

import httpx
import pytest

from reposync.app.verification import Verification
from reposync.store.run import Run
from reposync.sync.progress import RunProgress
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_nodes import QdrantCluster, QdrantNode, qdrant_program
from tests.fixtures.qdrant_targets import CLUSTER, SERVER, Target, collections
from tests.fixtures.repositories import GitRepository
from tests.fixtures.syncing import sync
from tests.fixtures.world import World

collect_ignore_glob = [] if qdrant_program() else ["test_*.py"]

FILES = 1_600
Act = Callable[[], Awaitable[object]]


@pytest.fixture(scope="session")
def running_cluster() -> Generator[QdrantCluster, None, None]:
    program = qdrant_program()
    assert program is not None
    with QdrantCluster(program) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: QdrantCluster) -> Generator[QdrantCluster, None, None]:
    """Three nodes that are well, before a test and after it."""
    running_cluster.settle()
    yield running_cluster
    running_cluster.settle()


@pytest.fixture(scope="session")
def node() -> Generator[QdrantNode, None, None]:
    """A single server."""
    program = qdrant_program()
    assert program is not None
    with QdrantNode(program) as node:
        yield node


@pytest.fixture
def embeddings() -> Generator[EmbeddingServer, None, None]:
    with EmbeddingServer() as server:
        yield server


@contextlib.contextmanager
def world_on(target: Target, folder: Path, embeddings: EmbeddingServer) -> Iterator[World]:
    with collections(target) as collection:
        repository = GitRepository.create(folder / "project.git")
        world = World(folder, repository, embeddings, target.url, collection, target=target)
        world.configure(extra=fresh(world))
        yield world


@pytest.fixture
def closed_world(tmp_path: Path, cluster: QdrantCluster, embeddings: EmbeddingServer) -> Generator[World, None, None]:
    """On the cluster; its program talks to the first node, and a person who looks at the index as well."""
    with world_on(Target(CLUSTER, tuple(cluster.urls)), tmp_path, embeddings) as world:
        yield world
        cluster.settle()


@pytest.fixture
async def world(closed_world: World) -> AsyncGenerator[World, None]:
    async with closed_world.opened():
        yield closed_world


@pytest.fixture
def closed_server_world(tmp_path: Path, node: QdrantNode, embeddings: EmbeddingServer) -> Generator[World, None, None]:
    with world_on(Target(SERVER, (node.url,)), tmp_path, embeddings) as world:
        yield world


def fresh(world: World) -> str:
    """The repository to compare with, for the registry: the same one, synced when everything is quiet."""
    return f'  - {{name: fresh, path: "{world.repository.path}"}}\n'


async def sync_with(world: World, act: Act, *, after_files: int = FILES // 4, name: str = "project") -> Run:
    """A sync in the middle of which `act` is called, when so many files are done. It is over when both are."""
    acting: list[asyncio.Task[object]] = []

    async def do() -> object:
        return await act()

    def watch(now: RunProgress) -> None:
        if now.files_done >= after_files and not acting:
            acting.append(asyncio.create_task(do()))

    run = await sync(world.app, await world.app.catalog.find(name), full=False, approved=False, watch=watch)
    assert acting, f"nothing happened to this run: {run.status}: {run.error_message}"
    await asyncio.gather(*acting)
    return run


async def brought_to_an_end(world: World, run: Run) -> Run:
    """As a daemon does: attempts that may be repeated are, until one completes."""
    for _ in range(5):
        # A count that does not fit because a replica lags is not a changed index.
        assert run.error_code not in ("INDEX_CHANGED", "INDEX_REBUILT"), run.error_message
        if run.status == "completed":
            return run
        assert run.error_code == "INDEX_UNAVAILABLE", f"{run.error_code}: {run.error_message}"
        run = await world.sync()
    raise AssertionError(f"five attempts: {run.error_message}")


async def assert_exact(world: World) -> None:
    """By every node: the points of a fresh index of the same commit, each once, and nothing to do for the next sync."""
    await world.completed("fresh")
    again = await world.completed()
    assert (again.files_processed, again.error_code) == (0, None), again.error_message
    for url in world.target.urls:
        points = await points_by(world, url)
        assert points["fresh"], "there is something to compare"
        assert points["project"] == points["fresh"], f"by {url}"
        assert max(points["project"].values()) == 1, "some chunk is there twice"
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert verdict.exact, verdict


async def points_by(world: World, url: str) -> dict[str, Counter[tuple[object, ...]]]:
    """Repository -> its chunks, as this node reads them."""
    found: dict[str, Counter[tuple[object, ...]]] = {"project": Counter(), "fresh": Counter()}
    offset = None
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as client:
        while True:
            body = {"limit": 1000, "offset": offset, "with_payload": True}
            answer = await client.post(f"/collections/{world.collection}/points/scroll", json=body)
            page = answer.raise_for_status().json()["result"]
            for point in page["points"]:
                each = point["payload"]["metadata"]
                chunk = each["path"], each["chunk_index"], each["blob_sha"], point["payload"]["page_content"]
                found[each["repository"]][chunk] += 1
            if (offset := page["next_page_offset"]) is None:
                return found
