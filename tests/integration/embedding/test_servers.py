"""Embedding by a server: what a sync gets from each dialect."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from reposync.config.sections import EmbeddingConfig, Provider
from reposync.embedding.factory import open_embedder
from reposync.embedding.http import PROBE
from reposync.embedding.port import Matrix
from reposync.errors import ConfigError, EmbeddingError
from reposync.runs.reporting import Observer
from reposync.telemetry.metrics import Metrics
from tests.fixtures.embedding_server import MODEL, EmbeddingServer, text_vector
from tests.integration.embedding.conftest import Open

PROVIDERS: list[Provider] = ["openai", "tei", "ollama"]
LINES = "".join(f"def function_{number}(): return {number}\n" for number in range(100))
every_provider = pytest.mark.parametrize("provider", PROVIDERS)


def unit(text: str, dimension: int = 64) -> Matrix:
    vector = text_vector(text, dimension)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


@every_provider
async def test_each_text_gets_its_own_unit_vector(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    texts = [f"text number {number}" for number in range(70)]
    matrices = await open_client(provider).embed(texts)
    assert [matrix.shape for matrix in matrices] == [(1, 64)] * 70
    for text, matrix in zip(texts, matrices, strict=True):
        assert matrix.dtype == np.float32
        assert np.allclose(matrix[0], unit(text), atol=1e-6)


@every_provider
async def test_the_dimension_is_requested_once_and_not_at_all_if_it_is_configured(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    embedder = open_client(provider)
    specs = await asyncio.gather(embedder.spec(), embedder.spec())
    await embedder.embed(["x"])
    assert {(spec.provider, spec.model, spec.dimension, spec.window_chars) for spec in specs} == {
        (provider, MODEL, 64, None)
    }
    configured = open_client(provider, dimensions=64)
    assert (await configured.spec()).dimension == 64
    await configured.embed(["y"])
    assert server.inputs == [PROBE, "x", "y"]


@pytest.mark.parametrize(("provider", "reports_tokens"), [("openai", True), ("ollama", True), ("tei", False)])
async def test_what_documents_and_queries_cost_is_counted(
    server: EmbeddingServer, provider: Provider, reports_tokens: bool
) -> None:
    metrics = Metrics(version="1")
    settings = {"provider": provider, "url": server.url, "model": MODEL, "dimensions": 64, "attempts": 1}
    embedder = open_embedder(EmbeddingConfig.model_validate(settings), Observer(metrics).embedded)
    await embedder.embed(["two words", "three more words"])
    await embedder.embed_query("one")
    server.answer_next(500)
    with pytest.raises(EmbeddingError):
        await embedder.embed(["refused"])
    await embedder.close()

    page = metrics.render()[0].decode()
    named = f'provider="{provider}"'
    assert f'reposync_embedding_characters_total{{kind="document",{named}}} 25.0' in page
    assert f'reposync_embedding_characters_total{{kind="query",{named}}} 3.0' in page
    assert (f'reposync_embedding_tokens_total{{kind="document",{named}}}' in page) == reports_tokens
    counted = "reposync_embedding_duration_seconds_count"
    for kind, outcome in (("document", "ok"), ("query", "ok"), ("document", "failed")):
        assert f'{counted}{{kind="{kind}",outcome="{outcome}",{named}}} 1.0' in page


async def test_openai_is_asked_for_the_configured_dimension(server: EmbeddingServer, open_client: Open) -> None:
    (matrix,) = await open_client(dimensions=32).embed(["x"])
    assert matrix.shape == (1, 32)
    await open_client().embed(["x"])
    assert [exchange.body.get("dimensions") for exchange in server.log] == [32, None, None]


@every_provider
async def test_the_spec_of_a_collection_saves_the_request(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    recorded = await open_client(provider).spec()
    server.forget()
    assert await open_client(provider).spec(recorded) == recorded
    assert server.inputs == []
    for other in (replace(recorded, model="another", dimension=9), replace(recorded, window_chars=500, dimension=9)):
        assert await open_client(provider).spec(other) == recorded
    assert server.inputs == [PROBE, PROBE]


@pytest.mark.parametrize("quirk", ["knows_base64", "refuses_base64"])
async def test_a_server_without_base64_is_understood(server: EmbeddingServer, open_client: Open, quirk: str) -> None:
    setattr(server, quirk, quirk == "refuses_base64")
    matrices = await open_client(batch=1, dimensions=64).embed(["one", "two", "three"])
    assert [np.allclose(m[0], unit(t), atol=1e-6) for m, t in zip(matrices, ["one", "two", "three"], strict=True)]
    assert server.inputs.count("three") == 1


async def test_requests_stay_under_the_limits_of_count_and_characters(
    server: EmbeddingServer, open_client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reposync.embedding.http.BATCH_CHARS", 100)
    texts = [str(number) * 10 for number in range(10)] + ["long " * 30]
    await open_client(batch=4, dimensions=64).embed(texts)
    assert sorted(server.inputs) == sorted(texts)
    for exchange in server.log:
        assert exchange.inputs <= 4
        assert exchange.inputs == 1 or exchange.chars <= 100


async def test_tei_gets_no_more_inputs_than_it_accepts(server: EmbeddingServer, open_client: Open) -> None:
    server.most_inputs = 3
    await open_client("tei", batch=50, dimensions=64).embed([str(number) for number in range(10)])
    assert [exchange.status for exchange in server.log] == [200] * 5
    assert max(exchange.inputs for exchange in server.log) == 3


async def test_a_batch_that_is_too_large_is_halved(server: EmbeddingServer, open_client: Open) -> None:
    server.most_inputs = 3
    texts = [f"text {number}" for number in range(10)]
    matrices = await open_client(batch=10, dimensions=64).embed(texts)
    assert all(np.allclose(m[0], unit(t), atol=1e-6) for m, t in zip(matrices, texts, strict=True))
    assert sorted(server.inputs) == sorted(texts)


async def test_no_more_requests_run_at_once_than_configured(server: EmbeddingServer, open_client: Open) -> None:
    embedder = open_client(batch=1, concurrency=3, dimensions=64)
    with server.holding():
        tasks = [asyncio.create_task(embedder.embed([f"{call} {n}" for n in range(5)])) for call in range(4)]
        await asyncio.to_thread(server.wait_for_waiting, 3)
    await asyncio.gather(*tasks)
    assert server.most_at_once == 3
    assert len(server.inputs) == 20


async def test_a_query_does_not_queue_behind_a_sync(server: EmbeddingServer, open_client: Open) -> None:
    embedder = open_client(batch=1, concurrency=1, dimensions=64)
    with server.holding():
        sync = asyncio.create_task(embedder.embed(["a", "b", "c"]))
        await asyncio.to_thread(server.wait_for_waiting, 1)
        query = asyncio.create_task(embedder.embed_query("question"))
        await asyncio.to_thread(server.wait_for_waiting, 2)
    await asyncio.gather(sync, query)


@every_provider
async def test_with_a_window_a_chunk_is_embedded_in_windows(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    embedder = open_client(provider, window=500, dimensions=64)
    short, long = await embedder.embed(["short", LINES])
    assert (await embedder.spec()).window_chars == 500
    assert short.shape == (1, 64)
    assert "".join(server.inputs) == "short" + LINES
    assert all(len(text) <= 500 for text in server.inputs)
    assert np.allclose(long, np.stack([unit(text) for text in server.inputs[1:]]), atol=1e-6)
    assert (await embedder.embed_query(LINES)).shape == (1, 64)


@every_provider
async def test_a_text_that_is_too_long_is_an_error_that_names_the_setting(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    server.reads_chars = 2000
    with pytest.raises(EmbeddingError, match=r"3080 characters is too long.*embedding\.window") as raised:
        await open_client(provider, dimensions=64).embed(["short", (LINES * 2)[:3080]])
    assert "function_" not in str(raised.value)


@every_provider
async def test_a_window_that_is_still_too_long_is_halved_and_nothing_is_lost(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    server.reads_chars = 300
    matrices = await open_client(provider, window=1000, dimensions=64).embed(["first", LINES, "last"])
    assert [len(matrix) for matrix in matrices[::2]] == [1, 1]
    embedded = [text for text in server.inputs if text not in ("first", "last")]
    assert max(map(len, embedded)) <= 300
    assert sorted("".join(embedded)) == sorted(LINES)
    assert len(matrices[1]) == len(embedded)


@pytest.mark.parametrize(("provider", "model"), [("openai", MODEL), ("ollama", MODEL), ("ollama", "nomic-embed-text")])
async def test_a_server_that_truncates_silently_is_noticed(
    server: EmbeddingServer, open_client: Open, provider: Provider, model: str
) -> None:
    server.model, server.reads_chars, server.cuts_silently = model, 512 * 4, True
    with pytest.raises(EmbeddingError, match=r"silently cuts.*embedding\.window"):
        await open_client(provider, dimensions=64).embed([LINES, LINES])
    windowed = await open_client(provider, dimensions=64, window=1500).embed([LINES, LINES])
    assert [len(matrix) for matrix in windowed] == [2, 2]


@pytest.mark.parametrize("provider", ["openai", "ollama"])
@pytest.mark.parametrize("beside", [0, 31])
async def test_a_cut_text_is_noticed_whatever_was_read_whole_before(
    server: EmbeddingServer, open_client: Open, provider: Provider, beside: int
) -> None:
    """A long text of few tokens was read whole. A shorter one of more tokens is cut, alone or in a batch in which the
    count of tokens does not show it."""
    server.reads_words, server.cuts_silently = 512, True
    embedder = open_client(provider, dimensions=64)
    await embedder.embed([" ".join(f"word{number}_{'x' * 30}" for number in range(150))])
    short = [f"text {number} of the batch" for number in range(beside)]

    with pytest.raises(EmbeddingError, match=r"silently cuts long texts.*of 2219 characters"):
        await embedder.embed([*short, " ".join(f"a{number % 100}" for number in range(570))])


async def test_that_a_server_reads_all_is_proven_by_a_few_inputs(server: EmbeddingServer, open_client: Open) -> None:
    embedder = open_client(dimensions=64, batch=4)
    texts = [f"{number:04} " * 400 for number in range(60)]  # of 500 tokens of the server's
    await embedder.embed(texts)
    assert 0 < len(server.proofs) <= 8

    server.forget()
    await embedder.embed([f"{number:04} " * 400 for number in range(60, 120)])
    assert (len(server.inputs), server.proofs) == (60, [])


async def test_a_server_that_refuses_long_texts_is_asked_once(server: EmbeddingServer, open_client: Open) -> None:
    server.reads_chars = 2400
    texts = [f"{number:04} " * 400 for number in range(60)]
    await open_client(dimensions=64).embed(texts)
    assert len(server.inputs) == len(texts)


async def test_a_text_that_is_not_unicode_is_sent_with_replacements(server: EmbeddingServer, open_client: Open) -> None:
    await open_client(dimensions=64).embed(["caf\udce9 menu"])
    assert server.inputs == ["caf? menu"]


async def test_a_model_that_the_server_does_not_serve_is_named(server: EmbeddingServer, open_client: Open) -> None:
    with pytest.raises(ConfigError, match=r"other/model.*test/words"):
        await open_client("tei", model="other/model").spec()
    for provider in ("openai", "ollama"):
        with pytest.raises(EmbeddingError, match=r"404.*other/model"):
            await open_client(provider, model="other/model").spec()
