from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from reposync.config.sections import EmbeddingConfig, Provider
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import Embedder
from tests.fixtures.embedding_server import EmbeddingServer

Open = Callable[..., Embedder]


@pytest.fixture(scope="session")
def running_server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def server(running_server: EmbeddingServer) -> EmbeddingServer:
    running_server.reset()
    return running_server


@pytest.fixture
async def open_client(server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Opens embedders on the server, which do not wait long between tries, and closes them."""
    monkeypatch.setattr("reposync.embedding.exchange.IN_PLACE_SECONDS", 0.05)
    async with AsyncExitStack() as stack:

        def open_(provider: Provider = "openai", **settings: object) -> Embedder:
            chosen = {"url": server.url, "model": None if provider == "tei" else server.model, **settings}
            embedder = open_embedder(EmbeddingConfig.model_validate({"provider": provider, **chosen}))
            stack.push_async_callback(embedder.close)
            return embedder

        yield open_
