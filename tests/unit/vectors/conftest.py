"""The engine's application in the test's own process: no socket, the real engine beneath."""

from collections.abc import AsyncGenerator, Generator

import httpx
import pytest

from reposync.vectors.engine.asgi import EngineApp
from reposync.vectors.engine.collections import Collections
from tests.fixtures.folders import quick_folder


@pytest.fixture
def collections() -> Generator[Collections, None, None]:
    with quick_folder() as folder:
        opened = Collections(folder)
        yield opened
        opened.close()


@pytest.fixture
async def http(collections: Collections) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Plain HTTP to the engine."""
    transport = httpx.ASGITransport(EngineApp(collections))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client
