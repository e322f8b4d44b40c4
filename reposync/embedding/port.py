"""The port of embedders, and the shapes of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # short commands import this module and compute no vectors
    import numpy as np
    from numpy.typing import NDArray

Matrix: TypeAlias = "NDArray[np.float32]"
"""float32, shape (windows, dimension), rows of unit length. One row if the model reads a chunk whole."""


OnWait = Callable[[str | None], None]
"""Called on the event loop with what is waited for, `the embedding server at HOST: attempt 2 of 3`, and with None when
the wait is over. Must return at once."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """The embedding that a collection is made for.

    `dimension` is 0 for sparse search alone (provider `none`). `window_chars` is the most characters that the
    model reads at once: a longer chunk is split into windows and stored as one multivector; None: every chunk is one
    vector. `document_prefix` stands before each text that is embedded, but not before queries; `document_options` are
    fields of the requests for documents: `input_type=document`.
    """

    provider: str
    model: str
    dimension: int
    window_chars: int | None
    document_prefix: str = ""
    document_options: str = ""

    def as_json(self) -> dict[str, Any]:
        """Without an empty prefix and options, which earlier programs do not record: digests stay the same."""
        return {key: value for key, value in asdict(self).items() if value or not key.startswith("document_")}

    @property
    def multivector(self) -> bool:
        return self.window_chars is not None


@dataclass(frozen=True, slots=True)
class SparseVector:
    """BM25 term weights of a document, or 1 for each term of a query. Parallel arrays; indices are distinct."""

    indices: NDArray[np.uint32]
    values: NDArray[np.float32]


class Embedder(Protocol):
    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        """Model and shape. Requests the dimension from a server, once, if neither the configuration nor `recorded` (the
        collection's spec) contains it; a `recorded` spec of a different model or window is ignored."""

    async def embed(self, texts: Sequence[str]) -> list[Matrix]:
        """A matrix for each text, in order. Raises EmbeddingUnavailable or EmbeddingError; never truncates silently."""

    async def embed_query(self, text: str) -> Matrix:
        """The query's matrix, one row."""

    def watched(self, on_wait: OnWait) -> Embedder:
        """The same embedder, whose `embed` reports waits that take more than a moment."""

    async def ping(self) -> None:
        """Check that it could embed now, without embedding anything: servers charge for that. Never repeated. Raises
        EmbeddingUnavailable or EmbeddingError."""

    async def close(self) -> None: ...
