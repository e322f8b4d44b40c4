"""From configuration to embedder. Imports only what the provider needs: `none` no client, a server no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from reposync.embedding.settings import EmbedderConfig

if TYPE_CHECKING:  # the port needs numpy, an import that commands without embeddings skip
    from reposync.embedding.port import Embedder


def open_embedder(config: EmbedderConfig) -> Embedder:
    """The embedder that `config` describes; the caller closes it. No file is read and no server is contacted yet.

    Raises ConfigError if something that the provider needs is missing or unusable.
    """
    match config.provider:
        case "none":
            from reposync.embedding.none import NoEmbedder

            return NoEmbedder()
        case "local":
            from reposync.embedding.local import LocalEmbedder

            return LocalEmbedder(config)
        case "openai" | "tei" | "ollama":
            from reposync.embedding.dialects import DIALECTS
            from reposync.embedding.http import HttpEmbedder

            return HttpEmbedder(DIALECTS[config.provider](config), config)
        case _:
            assert_never(config.provider)
