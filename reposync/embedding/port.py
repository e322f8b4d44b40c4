"""The port of embedders, and the shapes of its values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:  # short commands import this module and compute no vectors
    import numpy as np
    from numpy.typing import NDArray

Matrix: TypeAlias = "NDArray[np.float32]"
"""float32, shape (windows, dimension), rows of unit length. One row if the model reads a chunk whole."""

OnWait = Callable[[str | None], None]
"""Called with what is waited for, `the embedding server at HOST: attempt 2 of 3`; with None when the wait is over."""

OnShare = Callable[[float], None]
"""Called with the share of a call's work that was done since it was called before; together 1."""


@dataclass(frozen=True, slots=True)
class EmbeddingUse:
    """What one request to a server, or one step of the local model, took. `kind`: document or query. `tokens`: None if
    the server does not say how many it read. `is_ok`: it was answered."""

    provider: str
    kind: str
    seconds: float
    chars: int
    tokens: int | None = None
    is_ok: bool = True


OnUse = Callable[[EmbeddingUse], None]
"""Called after each use, in any thread. Must return at once and raise nothing."""


def no_use(use: EmbeddingUse) -> None:
    """For callers that do not report it."""


def no_share(share: float) -> None:
    """For callers that do not report it."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """The embedding that a collection is made for. `dimension`: 0 for sparse search alone. `window_chars`: a longer
    chunk is split into windows and stored as one multivector; None: every chunk is one vector. `document_prefix` stands
    before each text, but not before queries; `document_options`: fields of the requests for documents."""

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


MAX_ROWS_BYTES: Final = 24 << 20
"""The size limit of `WindowRows`: 10,000 windows of the local model. With 6 MB instead, a first sync of qdrant/qdrant
embeds 2 % more windows, with 96 MB as many."""
_ENTRY_BYTES: Final = 300
"""The size of a window in `WindowRows`, beside its characters and its vector."""


class WindowRows:
    """Vectors of windows by their text, the least recently used dropped first: those of the chunks that a run replaces,
    and those that it has embedded. For one model and one run. `embedded` and `reused` count windows."""

    def __init__(self, max_bytes: int = MAX_ROWS_BYTES) -> None:
        self.embedded = self.reused = 0
        self._rows: OrderedDict[str, Matrix] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def add(self, window: str, matrix: Matrix) -> None:
        """`matrix`: one row, or several if the model reads only parts of the window."""
        if window not in self._rows:
            self._bytes += _row_bytes(window, matrix)
            self._rows[window] = matrix.copy()  # not a view, which would keep the whole batch
        while self._bytes > self._max_bytes:
            self._bytes -= _row_bytes(*self._rows.popitem(last=False))

    def known(self, windows: Iterable[str]) -> dict[str, Matrix]:
        found = {each: self._rows[each] for each in windows if each in self._rows}
        for each in found:
            self._rows.move_to_end(each)
        return found


def _row_bytes(window: str, matrix: Matrix) -> int:
    return int(matrix.nbytes) + len(window) + _ENTRY_BYTES


class Embedder(Protocol):
    async def spec(self, recorded: EmbeddingSpec | None = None) -> EmbeddingSpec:
        """Model and shape. Requests the dimension from a server, once, if neither the configuration nor `recorded` (the
        collection's spec) contains it; a `recorded` spec of a different model or window is ignored."""

    async def embed(
        self, texts: Sequence[str], rows: WindowRows | None = None, on_share: OnShare = no_share
    ) -> list[Matrix]:
        """A matrix for each text, in order. Windows whose vectors are in `rows` are not embedded; the others are added.

        Raises EmbeddingUnavailable or EmbeddingError; never truncates silently."""

    async def window_of_workers(self) -> int | None:
        """If content workers compute the vectors of files, as `word_table` does, with the text that they read: the
        characters of a window. None: `embed` does. Raises EmbeddingError if it cannot."""
        return None

    async def split(self, texts: Sequence[str]) -> list[list[str]]:
        """The windows of each text, as `embed` splits it: a function of the text alone. A server may split further."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Matrix]:
        """A matrix for each query, in order: one row, or none if the model knows nothing of it. One call of a server,
        unless they are more than it takes at a time."""

    async def embed_query(self, text: str) -> Matrix:
        """As `embed_queries`, of one."""
        return (await self.embed_queries([text]))[0]

    def watched(self, on_wait: OnWait) -> Embedder:
        """The same embedder, whose `embed` reports waits that take more than a moment."""
        return self

    async def ping(self) -> None:
        """Check that it could embed now, without embedding anything: servers charge for that. Never repeated. Raises
        EmbeddingUnavailable or EmbeddingError."""
        return

    async def close(self) -> None:
        """Wait for what is being embedded, and end threads and connections."""
        return
