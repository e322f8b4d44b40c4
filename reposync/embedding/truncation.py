"""Servers that cut a long text and say nothing. What the answers give away, and how to be sure.

OpenAI's own API refuses a text that is too long; several servers that speak its dialect embed its beginning instead.
The vectors then look right and find nothing of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from reposync.embedding.port import Matrix

_SHORT: Final = 400
"""Characters that every embedding model reads whole."""

_MOST_CHARS_A_TOKEN: Final = 7.0
"""Visible characters. Tokenizers need a token for each 2.5 to 4 of source code or prose."""

_USUAL_LIMITS: Final = frozenset({128, 256, 384, 512, 514, 1024, 2048, 4096, 8192, 8194, 32768})
_OTHER_WORDS: Final = "walrus orchard ninety glacier velvet trumpet saffron harbor "


def looks_cut(inputs: Sequence[str], tokens: int) -> bool:
    """Whether `tokens`, all that the server says it read of `inputs`, are suspiciously few or exactly a usual limit."""
    if max(map(len, inputs)) <= _SHORT:
        return False
    if tokens % len(inputs) == 0 and tokens // len(inputs) in _USUAL_LIMITS:
        return True
    if sum(map(len, inputs)) <= _MOST_CHARS_A_TOKEN * tokens:
        return False
    return sum(len(word) for text in inputs for word in text.split()) > _MOST_CHARS_A_TOKEN * tokens


def with_another_ending(text: str) -> str:
    """`text` with other words in its last tenth: a model that reads it all makes another vector of it."""
    tenth = max(1, len(text) // 10)
    ending = _OTHER_WORDS * (tenth // len(_OTHER_WORDS) + 1)
    return text[:-tenth] + ending[:tenth]


def same_vector(one: Matrix, other: Matrix) -> bool:
    """Up to rounding: servers that compute in 16 bits differ by about 1e-6 between two batches."""
    return bool(1 - float(np.vdot(one, other)) < 1e-5)
