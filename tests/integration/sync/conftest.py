import itertools
import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import Contract, GitLabServer
from tests.fixtures.gitlab_world import TOKEN, GitLabWorld
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

_numbers = itertools.count()


@pytest.fixture(scope="session")
def qdrant() -> Generator[QdrantServer, None, None]:
    """One engine for all tests of this process; every test has a collection of its own."""
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
    with EmbeddingServer() as embeddings, GitLabServer(contract=Contract.load()) as server:
        project = server.add_project("platform/payments-api", repository.path)
        server.add_token(TOKEN, scopes={"read_api", "read_repository"})
        collection = f"g{os.getpid()}-{next(_numbers)}"
        world = GitLabWorld(tmp_path, repository, embeddings, qdrant.url, collection, server=server, project=project)
        world.configure()
        async with world.opened():
            yield world
        assert server.contract_errors == []
