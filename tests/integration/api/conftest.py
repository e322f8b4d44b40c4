from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import httpx
import pytest

from reposync.api.app import ApiParts
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from tests.fixtures.databases import database_url, postgresql, upgraded_sqlite_file  # noqa: F401
from tests.fixtures.redis_server import redis_server  # noqa: F401
from tests.fixtures.showcase import Showcase
from tests.fixtures.world import World
from tests.integration.api.rest import rest  # noqa: F401
from tests.integration.api.serving import client_of, parts_of, serving
from tests.integration.sync.conftest import closed_world, content, embeddings, qdrant, world  # noqa: F401


@dataclass
class Daemon:
    """What a daemon hands to its HTTP side, and a client of it."""

    health: Health = field(default_factory=Health)
    metrics: Metrics = field(default_factory=lambda: Metrics(version="1.2.3"))
    refreshes: int = 0
    refresh: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)

    @property
    def parts(self) -> ApiParts:
        async def refresh() -> None:
            self.refreshes += 1
            await self.refresh()

        return replace(parts_of(), health=self.health, metrics=self.metrics, refresh=refresh)

    def client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        return client_of(self.parts)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def client(world: World, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:  # noqa: F811
    """Of the HTTP side of `world`, whose repository has the FILES of the test's module."""
    if files := getattr(request.module, "FILES", None):
        world.repository.commit(files)
        await world.completed()
    async with serving(world.app) as client:
        yield client


@pytest.fixture(scope="module")
def showcase(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Showcase]:
    """As the module's SHOWCASE says; by default with few runs, and nothing to search."""
    options = getattr(request.module, "SHOWCASE", {"runs": 12, "is_searchable": False})
    with Showcase(tmp_path_factory.mktemp("showcase"), **options) as showcase:
        yield showcase


@pytest.fixture(scope="module")
def url(showcase: Showcase) -> Iterator[str]:
    """Of a server over it, without tokens: whoever is on this machine may do everything."""
    with showcase.served() as url:
        yield url


@pytest.fixture
def database_kind() -> str:
    """The store's own tests run on both databases. Files of this folder that do as well import that fixture."""
    return "sqlite"
