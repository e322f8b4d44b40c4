"""The provider `none`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reposync.embedding.port import EmbeddingSpec, Matrix, OnWait


class NoEmbedder:
    """Provider `none`: sparse search alone. Its matrices have no rows; the index is used without `dense`."""

    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        return EmbeddingSpec(provider="none", model="none", dimension=0, window_chars=None)

    async def embed(self, texts: Sequence[str]) -> list[Matrix]:
        return [np.empty((0, 0), np.float32) for _ in texts]

    async def embed_query(self, text: str) -> Matrix:
        return np.empty((0, 0), np.float32)

    def watched(self, on_wait: OnWait) -> NoEmbedder:
        return self

    async def ping(self) -> None:
        return None

    async def close(self) -> None:
        return None
