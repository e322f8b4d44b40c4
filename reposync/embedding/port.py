"""The port that every embedder fills, and the shapes that it hands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reposync.embedding.patience import Tell

Matrix = NDArray[np.float32]
"""float32, shape (windows, dimension), rows of unit length. One row where the model reads a chunk whole."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """What a collection has to fit.

    `dimension` is 0 for sparse search alone (provider `none`). `window_chars` is the most characters that the
    model reads at once: a longer chunk is split into windows and stored as one multivector; None: every chunk is one
    vector.
    """

    provider: str
    model: str
    dimension: int
    window_chars: int | None

    @property
    def multivector(self) -> bool:
        return self.window_chars is not None


@dataclass(frozen=True, slots=True)
class SparseVector:
    """BM25 term weights of a document, or 1 a term of a query. Parallel arrays; indices are distinct."""

    indices: NDArray[np.uint32]
    values: NDArray[np.float32]


class Embedder(Protocol):
    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        """Model and shape. Asks a server for its dimension, once, where neither the configuration nor `recorded` (what
        a collection was made for) tells it; a `recorded` spec of another model or window is ignored."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Matrix]:
        """One matrix a text, in order. Raises EmbeddingUnavailable or EmbeddingError; never truncates silently."""
        ...

    async def embed_query(self, text: str) -> Matrix:
        """The query's matrix, one row."""
        ...

    def watched(self, tell: Tell) -> Embedder:
        """The same embedder, whose calls for documents tell what they wait for when that takes more than a moment."""
        ...

    async def ping(self) -> None:
        """Whether it could embed now, as far as that can be told without embedding anything: servers take money for
        that. Never repeated. Raises EmbeddingUnavailable or EmbeddingError."""
        ...

    async def close(self) -> None: ...
