from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
from pydantic import SecretStr

from reposync.config.sections import EmbeddingConfig
from reposync.embedding.factory import open_embedder
from reposync.embedding.http import HttpEmbedder
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import (
    FORMER_LOCAL_MODEL,
    LOCAL_MODEL,
    LOCAL_WINDOW,
    STATIC_DIMENSION,
    STATIC_MODEL,
    STATIC_WINDOW,
    is_configured,
)


async def test_sparse_search_alone_has_no_dense_vectors() -> None:
    embedder = open_embedder(EmbeddingConfig(provider="none"))
    spec = await embedder.spec()
    assert (spec.dimension, spec.multivector) == (0, False)
    assert [matrix.shape for matrix in await embedder.embed(["a", "b"])] == [(0, 0), (0, 0)]
    assert (await embedder.embed_query("a")).shape == (0, 0)
    await embedder.close()


def test_only_the_local_provider_loads_a_model_runtime() -> None:
    program = (
        "import sys\n"
        "from reposync.embedding.factory import open_embedder\n"
        "from reposync.config.sections import EmbeddingConfig\n"
        "for provider in ('none', 'static', 'openai', 'tei', 'ollama'):\n"
        "    open_embedder(EmbeddingConfig().model_copy(update=dict(provider=provider, url='http://h', model='m')))\n"
        "print(sorted({'onnxruntime', 'tokenizers', 'huggingface_hub'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_openai_itself_needs_no_address() -> None:
    config = EmbeddingConfig(provider="openai", model="m", api_key=SecretStr("sk-x"))
    assert cast("HttpEmbedder", open_embedder(config)).url == "https://api.openai.com/v1/embeddings"


@pytest.mark.parametrize(
    ("config", "spec", "fits"),
    [
        ({"provider": "openai", "model": "small"}, ("openai", "small", 64, None), True),
        ({"provider": "openai", "model": "large"}, ("openai", "small", 64, None), False),
        ({"provider": "openai", "model": "small", "dimensions": 32}, ("openai", "small", 64, None), False),
        ({"provider": "openai", "model": "small", "window": 900}, ("openai", "small", 64, None), False),
        ({"provider": "ollama", "model": "small"}, ("openai", "small", 64, None), False),
        ({"provider": "tei"}, ("tei", "whatever it serves", 64, None), True),
        ({}, ("static", STATIC_MODEL, STATIC_DIMENSION, STATIC_WINDOW), True),
        ({}, ("static", "code-words-of-a-different-table", STATIC_DIMENSION, STATIC_WINDOW), False),
        ({"window": 900}, ("static", STATIC_MODEL, STATIC_DIMENSION, STATIC_WINDOW), False),
        ({}, ("local", LOCAL_MODEL, 384, LOCAL_WINDOW), False),
        ({"provider": "local"}, ("local", LOCAL_MODEL, 384, LOCAL_WINDOW), True),
        ({"provider": "local", "window": 900}, ("local", LOCAL_MODEL, 384, LOCAL_WINDOW), False),
        ({"provider": "local"}, ("local", FORMER_LOCAL_MODEL, 384, LOCAL_WINDOW), False),
        ({"provider": "none"}, ("none", "none", 0, None), True),
        ({"provider": "tei"}, ("tei", "intfloat/e5-base-v2", 64, None), False),
        ({"provider": "tei"}, ("tei", "intfloat/e5-base-v2", 64, None, "passage: "), True),
        ({"provider": "tei", "document_prefix": ""}, ("tei", "intfloat/e5-base-v2", 64, None), True),
        ({"provider": "tei", "document_prompt_name": "d"}, ("tei", "m", 64, None, "", "prompt_name=d"), True),
    ],
)
def test_a_model_is_the_configured_one_if_each_configured_value_fits(
    config: dict[str, Any], spec: tuple[Any, ...], fits: bool
) -> None:
    assert is_configured(EmbeddingConfig().model_copy(update=config), EmbeddingSpec(*spec)) is fits


def test_a_spec_without_prefix_is_recorded_as_earlier_programs_recorded_it() -> None:
    earlier = {"provider": "tei", "model": "m", "dimension": 64, "window_chars": None}
    assert EmbeddingSpec(**earlier).as_json() == earlier  # type: ignore[arg-type]
    assert EmbeddingSpec(**earlier, document_prefix="d: ").as_json() == earlier | {"document_prefix": "d: "}  # type: ignore[arg-type]
