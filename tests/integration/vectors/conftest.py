import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from pathlib import Path
from typing import Protocol

import httpx
import pytest
from qdrant_client import AsyncQdrantClient

from reposync.vectors.connection import EmbeddedTransport
from reposync.vectors.embedded import EmbeddedEngine
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.contract import ContractTransport
from tests.fixtures.engine import Engine
from tests.fixtures.folders import quick_folder
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_targets import ENGINE, Target, collections, parametrize, real_target


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, "target")


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """Where the index is, each place in its turn."""
    return Target(ENGINE, ()) if request.param == ENGINE else real_target(request.param, request.config)


@pytest.fixture(scope="session")
def engine() -> Generator[Engine, None, None]:
    """One embedded engine for all tests of this process; every test has a collection of its own."""
    with quick_folder() as folder:
        engine = Engine(folder, idle_seconds=0)
        engine.ensure_started()
        yield engine
        engine.stop()


@pytest.fixture
def settings(target: Target, request: pytest.FixtureRequest, tmp_path: Path) -> Generator[IndexSettings, None, None]:
    with collections(target) as collection:
        if target.is_real:
            yield target.settings(collection, tmp_path)
        else:
            yield IndexSettings(collection, request.getfixturevalue("engine").folder.parent)


class OpenIndex(Protocol):
    """Opens the index of the test's collection, or of a different one."""

    def __call__(self, *, collection: str | None = None) -> QdrantIndex: ...


@pytest.fixture
async def opened(
    target: Target, settings: IndexSettings, request: pytest.FixtureRequest
) -> AsyncGenerator[OpenIndex, None]:
    """Opens the index as often as a test wants; every exchange has to keep Qdrant's contract."""
    engine = None if target.is_real else request.getfixturevalue("engine")
    async with contextlib.AsyncExitStack() as resources:
        transports = []

        def open_one(*, collection: str | None = None) -> QdrantIndex:
            way = EmbeddedTransport(engine) if engine else httpx.AsyncHTTPTransport()
            transports.append(ContractTransport(way, newer=target.is_real))
            mine = dataclasses.replace(settings, collection=collection or settings.collection)
            index = QdrantIndex(mine, transport=transports[-1])
            resources.push_async_callback(index.close)
            return index

        yield open_one
        assert [violation for each in transports for violation in each.violations] == []


@pytest.fixture
def index(opened: OpenIndex) -> QdrantIndex:
    return opened()


@pytest.fixture
async def client(settings: IndexSettings) -> AsyncGenerator[AsyncQdrantClient, None]:
    """A different program on the same Qdrant."""
    way = EmbeddedTransport(EmbeddedEngine(settings.state_dir)) if settings.is_embedded else None
    url = settings.qdrant.url or "http://engine"
    client = AsyncQdrantClient(url=url, port=None, check_compatibility=False, transport=way, timeout=PATIENCE_SECONDS)
    yield client
    await client.close()


@contextlib.asynccontextmanager
async def index_in(state_dir: Path, collection: str = "code") -> AsyncIterator[QdrantIndex]:
    """As a command opens it: nothing but settings."""
    index = QdrantIndex(IndexSettings(collection=collection, state_dir=state_dir))
    try:
        yield index
    finally:
        await index.close()
