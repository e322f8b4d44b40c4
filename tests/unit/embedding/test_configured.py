"""Whether a version of an index is of the configured model, without asking anybody."""

from __future__ import annotations

from typing import Any

import pytest

from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import LOCAL_WINDOW, EmbedderConfig, is_configured


@pytest.mark.parametrize(
    ("config", "spec", "fits"),
    [
        ({"provider": "openai", "model": "small"}, ("openai", "small", 64, None), True),
        ({"provider": "openai", "model": "large"}, ("openai", "small", 64, None), False),
        ({"provider": "openai", "model": "small", "dimensions": 32}, ("openai", "small", 64, None), False),
        ({"provider": "openai", "model": "small", "window": 900}, ("openai", "small", 64, None), False),
        ({"provider": "ollama", "model": "small"}, ("openai", "small", 64, None), False),
        ({"provider": "tei"}, ("tei", "whatever it serves", 64, None), True),
        ({"provider": "local"}, ("local", "minilm", 384, LOCAL_WINDOW), True),
        ({"provider": "local", "window": 900}, ("local", "minilm", 384, LOCAL_WINDOW), False),
        ({"provider": "none"}, ("none", "none", 0, None), True),
    ],
)
def test_a_model_is_the_configured_one_if_whatever_is_configured_fits(
    config: dict[str, Any], spec: tuple[str, str, int, int | None], fits: bool
) -> None:
    assert is_configured(EmbedderConfig(**config), EmbeddingSpec(*spec)) is fits
