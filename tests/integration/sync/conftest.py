import itertools
import os
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_world import TOKEN, GitLabWorld
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

_numbers = itertools.count()


@dataclass(frozen=True)
class Qdrant:
    url: str


@pytest.fixture(scope="session")
def qdrant() -> Generator[Qdrant | QdrantServer, None, None]:
    """A real server, if TEST_QDRANT_URL names one; otherwise one embedded engine for all tests of this process. Every
    test has a collection of its own."""
    if url := os.environ.get("TEST_QDRANT_URL"):
        yield Qdrant(url)
        with httpx.Client(base_url=url, timeout=60) as client:
            for each in client.get("/collections").json()["result"]["collections"]:
                if each["name"].startswith((f"c{os.getpid()}-", f"g{os.getpid()}-")):
                    client.delete(f"/collections/{each['name']}")
        return
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server


@pytest.fixture
def embeddings() -> Generator[EmbeddingServer, None, None]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def closed_world(tmp_path: Path, qdrant: QdrantServer, embeddings: EmbeddingServer) -> World:
    """A world whose configuration can still be written."""
    repository = GitRepository.create(tmp_path / "project.git")
    world = World(tmp_path, repository, embeddings, qdrant.url, f"c{os.getpid()}-{next(_numbers)}")
    world.configure()
    return world


@pytest.fixture
async def world(closed_world: World) -> AsyncGenerator[World, None]:
    async with closed_world.opened():
        yield closed_world


@pytest.fixture
async def gitlab_world(
    tmp_path: Path, qdrant: QdrantServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[GitLabWorld, None]:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    repository = GitRepository.create(tmp_path / "project.git")
    with EmbeddingServer() as embeddings, GitLabServer() as server:
        project = server.add_project("platform/payments-api", repository.path)
        server.add_token(TOKEN, scopes={"read_api", "read_repository"})
        collection = f"g{os.getpid()}-{next(_numbers)}"
        world = GitLabWorld(tmp_path, repository, embeddings, qdrant.url, collection, server=server, project=project)
        world.configure()
        async with world.opened():
            yield world
