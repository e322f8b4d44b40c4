from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from reposync.sync.content_pool import ContentPool
from tests.fixtures.databases import copy_upgraded_sqlite
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_world import TOKEN, GitLabWorld
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import ENGINE, Target, collections, parametrize, real_target
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, "qdrant")


@pytest.fixture(scope="session")
def qdrant(request: pytest.FixtureRequest) -> Generator[Target, None, None]:
    """For the tests of this folder each target in its turn, for those that import it the embedded engine: one for all
    tests of this process."""
    name = getattr(request, "param", ENGINE)
    if name != ENGINE:
        yield real_target(name, request.config)
        return
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield Target(ENGINE, (server.url,))


@pytest.fixture
def embeddings() -> Generator[EmbeddingServer, None, None]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture(scope="session")
def content() -> Generator[ContentPool, None, None]:
    pool = ContentPool()
    yield pool
    pool.close()


@pytest.fixture
def closed_world(
    request: pytest.FixtureRequest, tmp_path: Path, qdrant: Target, embeddings: EmbeddingServer, content: ContentPool
) -> Generator[World, None, None]:
    """A world whose configuration can still be written."""
    copy_upgraded_sqlite(request.config, tmp_path / "state" / "reposync.db")
    repository = GitRepository.create(tmp_path / "project.git")
    with collections(qdrant) as collection:
        world = World(tmp_path, repository, embeddings, qdrant.url, collection, target=qdrant, content=content)
        world.configure()
        yield world


@pytest.fixture
async def world(closed_world: World) -> AsyncGenerator[World, None]:
    async with closed_world.opened():
        yield closed_world


@pytest.fixture
def database_of_state(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Not in an asynchronous fixture: without workers, the first one makes the database in this process."""
    copy_upgraded_sqlite(request.config, tmp_path / "state" / "reposync.db")


@pytest.fixture
async def gitlab_world(
    database_of_state: None, tmp_path: Path, qdrant: Target, content: ContentPool, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[GitLabWorld, None]:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    repository = GitRepository.create(tmp_path / "project.git")
    with EmbeddingServer() as embeddings, GitLabServer() as server, collections(qdrant) as collection:
        project = server.add_project("platform/payments-api", repository.path)
        server.add_token(TOKEN, scopes={"read_api", "read_repository"})
        world = GitLabWorld(
            tmp_path, repository, embeddings, qdrant.url, collection, target=qdrant, server=server, project=project
        )
        world.content = content
        world.configure()
        async with world.opened():
            yield world
