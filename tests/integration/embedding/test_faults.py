"""Embedding by a server that is overloaded, gone, wrong or hostile."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from reposync.embedding.exchange import MAX_ANSWER_BYTES
from reposync.errors import EmbeddingAnswerUnreadable, EmbeddingError, EmbeddingUnavailable
from tests.fixtures.embedding_server import EmbeddingServer, Garbling
from tests.integration.embedding.conftest import Open
from tests.integration.embedding.test_servers import every_provider, unit

SECRET = "sk-hunter2-hunter2"


async def test_attempts_end_and_a_query_has_fewer(server: EmbeddingServer, open_client: Open) -> None:
    server.answer_next(503, body={"error": {"message": "model is loading"}}, times=5)
    with pytest.raises(EmbeddingUnavailable, match=r"503: model is loading.*Check embedding\.url") as raised:
        await open_client(dimensions=64, attempts=3).embed(["x"])
    assert raised.value.retryable
    assert len(server.log) == 3
    with pytest.raises(EmbeddingUnavailable):
        await open_client(dimensions=64, attempts=6).embed_query("x")
    assert len(server.log) == 5


async def test_one_failing_request_ends_the_others(server: EmbeddingServer, open_client: Open) -> None:
    server.answer_next(400, body={"error": {"message": "no"}})
    with pytest.raises(EmbeddingError, match="400: no"):
        await open_client(dimensions=64, batch=1).embed(["a", "b", "c", "d"])
    assert len(asyncio.all_tasks()) == 1


@every_provider
@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("count", "answered 2 vectors to 3 texts"),
        ("dimension", "63 dimensions instead of 64"),
        ("nan", "JSON|finite"),
        ("zeros", "zero"),
        ("ragged", "different lengths"),
        ("not_json", "not JSON"),  # EmbeddingAnswerUnreadable: the next attempt of the run may succeed
    ],
)
async def test_a_wrong_answer_is_an_error_and_no_vector(
    server: EmbeddingServer, open_client: Open, provider: str, how: Garbling, complaint: str
) -> None:
    embedder = open_client(provider, dimensions=64)
    server.garble_next(how)
    with pytest.raises(EmbeddingError, match=complaint) as raised:
        await embedder.embed(["a", "b", "c"])
    assert isinstance(raised.value, EmbeddingAnswerUnreadable) == (how == "not_json" or "JSON" in str(raised.value))


async def test_vectors_are_put_in_order_by_their_index(server: EmbeddingServer, open_client: Open) -> None:
    texts = ["one", "two", "three"]
    server.garble_next("shuffled")
    matrices = await open_client(dimensions=64).embed(texts)
    assert all(np.allclose(m[0], unit(t), atol=1e-6) for m, t in zip(matrices, texts, strict=True))
    server.garble_next("index_twice")
    with pytest.raises(EmbeddingError, match="twice"):
        await open_client(dimensions=64).embed(texts)


async def test_an_endless_answer_is_not_read_to_its_end(server: EmbeddingServer, open_client: Open) -> None:
    server.answer_next(200, body=b" " * (MAX_ANSWER_BYTES + 1))
    with pytest.raises(EmbeddingError, match="more than 67,108,864 bytes"):
        await open_client(dimensions=64).embed(["x"])


async def test_the_key_is_sent_and_no_error_shows_it(server: EmbeddingServer, open_client: Open) -> None:
    server.api_key = SECRET
    await open_client(api_key=SECRET, dimensions=64).embed(["x"])
    assert server.log[0].authorization == f"Bearer {SECRET}"
    server.api_key = "different"
    with pytest.raises(EmbeddingError, match=r"401.*embedding\.api_key") as refused:
        await open_client(api_key=SECRET, dimensions=64).embed(["x"])
    server.api_key = None
    server.answer_next(400, body={"error": {"message": f"bad header 'Bearer {SECRET}'"}})
    with pytest.raises(EmbeddingError, match=r"Bearer \*\*\*") as echoed:
        await open_client(api_key=SECRET, dimensions=64).embed(["x"])
    for raised in (refused, echoed):
        assert "hunter2" not in str(raised.value)


async def test_a_redirect_is_not_followed(server: EmbeddingServer, open_client: Open) -> None:
    with EmbeddingServer() as target:
        server.answer_next(307, headers={"Location": f"{target.url}/v1/embeddings"})
        with pytest.raises(EmbeddingError, match="redirect"):
            await open_client(api_key=SECRET, dimensions=64).embed(["x"])
        assert target.log == []


async def test_cancelled_it_ends_at_once_and_can_be_used_again(server: EmbeddingServer, open_client: Open) -> None:
    embedder = open_client(dimensions=64, batch=1, concurrency=2)
    with server.holding():
        task = asyncio.create_task(embedder.embed(["a", "b", "c"]))
        await asyncio.to_thread(server.wait_for_waiting, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(await embedder.embed(["d"])) == 1
