"""What is sent to a model that needs a prefix, in each dialect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reposync.config.sections import EmbeddingConfig, Provider
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import former_config, prompt_of
from tests.fixtures.embedding_server import EmbeddingServer
from tests.integration.embedding.conftest import Open
from tests.integration.embedding.test_servers import LINES, every_provider, unit

PASSAGES = "Represent this sentence for searching relevant passages: "
CODE = "Represent this query for searching relevant code: "
INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
JINA = "Find the most relevant code snippet given the following query:\n"
OPTIONS: dict[Provider, dict[str, Any]] = {
    "openai": {"encoding_format": "base64"},
    "tei": {"truncate": False},
    "ollama": {"truncate": False},
}

MODELS = [
    ("nomic-embed-text", "search_query: ", "search_document: "),
    ("nomic-embed-text:v1.5", "search_query: ", "search_document: "),
    ("hf.co/nomic-ai/nomic-embed-text-v2-moe-GGUF:Q8_0", "search_query: ", "search_document: "),
    ("nomic-ai/CodeRankEmbed", CODE, ""),
    ("nomic-ai/nomic-embed-code", CODE, ""),
    ("jinaai/jina-code-embeddings-1.5b", JINA, "Candidate code snippet:\n"),
    ("jinaai/jina-embeddings-v2-base-code", "", ""),
    ("Qwen/Qwen3-Embedding-0.6B", INSTRUCTION, ""),
    ("qwen3-embedding:8b-q8_0", INSTRUCTION, ""),
    ("intfloat/e5-base-v2", "query: ", "passage: "),
    ("/data/multilingual-e5-large/", "query: ", "passage: "),
    ("intfloat/multilingual-e5-large-instruct", INSTRUCTION + " ", ""),
    ("intfloat/e5-mistral-7b-instruct", INSTRUCTION + " ", ""),
    ("BAAI/bge-small-en-v1.5", PASSAGES, ""),
    ("bge-large:335m-en-v1.5-fp16", PASSAGES, ""),
    ("BAAI/bge-large-zh-v1.5", "", ""),
    ("BAAI/bge-m3", "", ""),
    ("snowflake-arctic-embed:335m", PASSAGES, ""),
    ("Snowflake/snowflake-arctic-embed-m-v1.5", PASSAGES, ""),
    ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
    ("snowflake-arctic-embed2:568m", "query: ", ""),
    ("text-embedding-3-small", "", ""),
]


@pytest.mark.parametrize(("model", "query", "document"), MODELS)
def test_each_model_gets_the_prefixes_that_its_card_requires(model: str, query: str, document: str) -> None:
    config = EmbeddingConfig(provider="ollama", url="http://h", model=model)
    assert [prompt_of(config, kind, model).prefix for kind in ("query", "document")] == [query, document]


@every_provider
async def test_prefixes_are_sent_before_each_text(
    server: EmbeddingServer, open_client: Open, provider: Provider
) -> None:
    server.model = "intfloat/e5-base-v2"
    embedder = open_client(provider, dimensions=64) if provider != "openai" else open_client()
    spec = await embedder.spec()
    server.forget()
    (matrix,) = await embedder.embed(["def f(): ..."])
    await embedder.embed_query("how is f defined?")

    key = "inputs" if provider == "tei" else "input"
    common = OPTIONS[provider] | ({} if provider == "tei" else {"model": server.model})
    assert [exchange.body for exchange in server.log] == [
        common | {key: ["passage: def f(): ..."]},
        common | {key: ["query: how is f defined?"]},
    ]
    assert np.allclose(matrix[0], unit("passage: def f(): ..."), atol=1e-6)
    assert (spec.document_prefix, spec.document_options) == ("passage: ", "")


async def test_configured_prefixes_replace_those_of_the_model(server: EmbeddingServer, open_client: Open) -> None:
    server.model = "nomic-embed-text"
    mine = open_client("ollama", dimensions=64, query_prefix="find: ")
    await mine.embed(["code"])
    await mine.embed_query("text")
    off = open_client("ollama", dimensions=64, query_prefix="", document_prefix="")
    await off.embed(["code"])
    await off.embed_query("text")
    assert server.inputs == ["search_document: code", "find: text", "code", "text"]
    assert (await mine.spec() == await off.spec(), (await off.spec()).document_prefix) == (False, "")


@pytest.mark.parametrize(
    ("provider", "option", "query", "document"),
    [
        ("tei", "prompt_name", "query", "document"),
        ("openai", "input_type", "query", "document"),
        ("openai", "task", "nl2code.query", "nl2code.passage"),
    ],
)
async def test_a_server_that_adds_the_prefix_gets_its_option_instead(
    server: EmbeddingServer, open_client: Open, provider: Provider, option: str, query: str, document: str
) -> None:
    server.model = "nomic-embed-text"
    embedder = open_client(provider, **{f"query_{option}": query, f"document_{option}": document})
    spec = await embedder.spec()
    server.forget()
    await embedder.embed(["code"])
    await embedder.embed_query("text")
    assert server.inputs == ["code", "text"]
    assert [exchange.body[option] for exchange in server.log] == [document, query]
    assert (spec.document_prefix, spec.document_options) == ("", f"{option}={document}")


@pytest.mark.parametrize("reads_chars", [None, 150])
async def test_windows_their_halves_and_batches_have_room_for_the_prefix(
    server: EmbeddingServer, open_client: Open, monkeypatch: pytest.MonkeyPatch, reads_chars: int | None
) -> None:
    monkeypatch.setattr("reposync.embedding.http.BATCH_CHARS", 1_000)
    server.model, server.reads_chars, prefix = "nomic-embed-text", reads_chars, "search_document: "
    await open_client("ollama", dimensions=64, window=200).embed([LINES])
    assert "".join(text.removeprefix(prefix) for text in sorted(server.inputs, key=_position)) == LINES
    assert all(text.startswith(prefix) and len(text) <= (reads_chars or 200) for text in server.inputs)
    assert max(exchange.chars for exchange in server.log) <= 1_000


def _position(sent: str) -> int:
    return LINES.index(sent.removeprefix("search_document: "))


NOMIC = EmbeddingSpec("ollama", "nomic-embed-text", 64, None, "search_document: ")
BEFORE_PREFIXES = replace(NOMIC, document_prefix="")


@pytest.mark.parametrize(
    ("configured", "made", "query", "document"),
    [
        ({}, NOMIC, "search_query: ", "search_document: "),
        ({}, BEFORE_PREFIXES, "", ""),
        ({"model": "other", "query_prefix": "q: ", "document_prefix": "d: "}, BEFORE_PREFIXES, "", ""),
        (
            {"model": "other", "query_prefix": "q: ", "document_prefix": "d: "},
            NOMIC,
            "search_query: ",
            "search_document: ",
        ),
        ({"model": "other"}, replace(BEFORE_PREFIXES, model="CodeRankEmbed"), CODE, ""),
        ({"query_prefix": "q: ", "document_prefix": "d: "}, replace(NOMIC, document_prefix="e: "), "q: ", "e: "),
    ],
)
async def test_an_index_is_searched_as_its_documents_were_embedded(
    server: EmbeddingServer,
    open_client: Open,
    configured: dict[str, str],
    made: EmbeddingSpec,
    query: str,
    document: str,
) -> None:
    server.model = made.model
    settings = {"model": "nomic-embed-text", "url": server.url, **configured}
    former = former_config(EmbeddingConfig.model_validate({"provider": "ollama", **settings}), made)
    assert former is not None
    values = {name: getattr(former, name) for name in ("model", "query_prefix", "document_prefix")}
    embedder = open_client("ollama", **values)
    assert await embedder.spec(made) == made
    await embedder.embed(["code"])
    await embedder.embed_query("text")
    assert server.inputs == [document + "code", query + "text"]
