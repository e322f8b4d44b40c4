"""From configuration to embedder. Imports only what the provider needs: `none` no client, a server no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reposync.config.sections import EmbeddingConfig
from reposync.embedding.port import Embedder, EmbeddingSpec, OnUse, no_share, no_use

if TYPE_CHECKING:
    from reposync.embedding.port import Matrix, OnShare, WindowRows


def open_embedder(config: EmbeddingConfig, on_use: OnUse = no_use) -> Embedder:
    """The embedder that `config` describes; the caller closes it. `on_use`: called with what each use takes. No server
    is contacted yet. Raises ConfigError if the CA file or the proxy for a server cannot be used."""
    if config.provider == "none":
        return NoEmbedder()
    if config.provider == "static":
        from reposync.embedding.static import StaticEmbedder

        return StaticEmbedder(config, on_use)
    if config.provider == "local":
        from reposync.embedding.local import LocalEmbedder

        return LocalEmbedder(config, on_use)
    if config.provider == "onnx":
        from reposync.embedding.local import OnnxEmbedder

        return OnnxEmbedder(config, on_use)
    from reposync.embedding.http import HttpEmbedder

    return HttpEmbedder(config, on_use)


class NoEmbedder(Embedder):
    """Provider `none`: sparse search alone. Its matrices have no rows; the index is used without `dense`."""

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return EmbeddingSpec(provider="none", model="none", dimension=0, window_chars=None)

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        return await self.embed_queries(texts)

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        return [[text] for text in texts]

    async def embed_queries(self, texts: Sequence[str]) -> list[Matrix]:
        import numpy as np

        return [np.empty((0, 0), np.float32) for _ in texts]
