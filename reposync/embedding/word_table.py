"""The table of word vectors behind the provider `static`: a text's vector is the sum of its words' vectors, so that it
takes half a millisecond and no library but numpy. `python -m benchmarks.static_table` makes the table.

A word is a part of an identifier as sparse vectors cut it, stemmed. The vector of a window sums log(1 + count) times
the row of each distinct word; the one of a question, the rows of its words. Rows have learned lengths: a rare word
counts more than a common one.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reposync.embedding.port import Matrix
from reposync.embedding.settings import STATIC_DIMENSION, STATIC_SHA256
from reposync.embedding.sparse import Remembered, table_words, words
from reposync.embedding.windows import readable_windows
from reposync.errors import EmbeddingError

FILES: Final = ("vectors.npy", "scales.npy", "words.txt")
"""In the order of the digest: int8 (words, dimension), float32 (words,), and a word a line."""
_FOLDER: Final = Path(__file__).parent / "static"
_REINSTALL: Final = "Install reposync again."


class WordTable:
    def __init__(self, vectors: NDArray[np.int8], scales: NDArray[np.float32], vocabulary: list[str]) -> None:
        """`vectors`: (words, dimension); row i times `scales[i]` is the vector of `vocabulary[i]`."""
        self._vectors, self._scales = vectors, scales
        rows = {word: row for row, word in enumerate(vocabulary)}
        self._rows_of = Remembered(lambda word: tuple(rows[each] for each in table_words(word) if each in rows))

    def matrix(self, text: str, window_chars: int) -> Matrix:
        """A row of unit length for each window of `text` that has a known word. At least one row."""
        counted = [self._counts(window) for window in readable_windows(text, window_chars)]
        return self._sums([each for each in counted if each])

    def question(self, text: str) -> Matrix | None:
        """One row of unit length; None if no word of `text` is known."""
        rows = np.fromiter(chain.from_iterable(map(self._rows_of.__getitem__, words(text))), np.intp)
        if not len(rows):
            return None
        return _unit((self._vectors[rows] * self._scales[rows, None]).sum(axis=0, keepdims=True))

    @cached_property
    def _unknown(self) -> Matrix:
        """Far from what most words say: for a text of which none is known. Takes a third of the time of loading."""
        return _unit(-(self._vectors * self._scales[:, None]).sum(axis=0, keepdims=True))

    def _counts(self, window: str) -> Counter[int]:
        return Counter(chain.from_iterable(map(self._rows_of.__getitem__, words(window))))

    def _sums(self, counted: list[Counter[int]]) -> Matrix:
        """Sums in the order of the words: the same on every machine, whatever else is computed with it."""
        if not counted:
            return self._unknown
        total = sum(map(len, counted))
        rows = np.fromiter(chain.from_iterable(counted), np.intp, total)
        counts = np.fromiter(chain.from_iterable(map(Counter.values, counted)), np.float32, total)
        starts = np.cumsum([0, *map(len, counted[:-1])])
        weights = np.log1p(counts) * self._scales[rows]
        # In two steps: a product of two types takes twice as long.
        weighted = self._vectors[rows].astype(np.float32)
        weighted *= weights[:, None]
        return _unit(np.add.reduceat(weighted, starts, axis=0))


def _unit(rows: NDArray[np.float32]) -> Matrix:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # Words that cancel each other exactly: any direction says as little.
    return np.asarray(np.where(norms > 0, rows / np.where(norms > 0, norms, 1), 1 / np.sqrt(rows.shape[1])), np.float32)


@cache
def load_table() -> WordTable:
    """The table of this program; once a process. Raises EmbeddingError if it is not the one that it was released
    with."""
    return read_table(_FOLDER)


def read_table(folder: Path) -> WordTable:
    """Raises EmbeddingError."""
    try:
        contents = [(folder / name).read_bytes() for name in FILES]
    except OSError as error:
        problem = f"The table of the static model cannot be read: {error.strerror}."
        raise EmbeddingError(problem, remedy=_REINSTALL) from error
    if digest(contents) != STATIC_SHA256:
        raise EmbeddingError("The table of the static model has the wrong checksum.", remedy=_REINSTALL)
    vectors, scales = (np.load(io.BytesIO(content), allow_pickle=False) for content in contents[:2])
    assert vectors.shape[1] == STATIC_DIMENSION  # noqa: S101 - the checksum was right
    return WordTable(vectors, scales, contents[2].decode().splitlines())


def digest(contents: list[bytes]) -> str:
    """The hex SHA-256 of the FILES, in this order."""
    total = hashlib.sha256()
    for content in contents:
        total.update(content)
    return total.hexdigest()
