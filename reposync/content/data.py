"""Texts that are data and neither code nor prose: tables of numbers, coordinates, base64, recordings on one line.

The limits were measured over the files of real repositories: `python -m benchmarks.left_out`, decision 0005.
"""

from __future__ import annotations

import re
from typing import Final

from reposync.content.model import Skip, Skipped

SMALLEST_DATA_CHARS: Final = 10_000
"""Shorter texts are never data: they make two chunks at most, and of all chunks of data under 1 % are theirs."""

DATA_FORMATS: Final = frozenset({None, "csv", "json", "json5", "pem", "text", "tsv", "wkt", "xml", "yaml"})
"""Languages (None: unknown) that hold data as often as text. A table in the source of a program is source."""

_FEWEST_WORDS: Final = 0.3
"""Below stand numbers, drawings and base64 alone; recorded answers of servers start at 0.3, configuration at 0.4."""

_LONG_LINE: Final = 0.75
"""Share of the text. A component with its logo in one line has 0.6."""
_WORDS_OF_PROSE: Final = 0.6
"""Translations in one line of JSON have 0.65 to 0.8, prose 0.9; recordings, diagrams and tables mostly under 0.6."""

_PROSE: Final = frozenset({"asciidoc", "latex", "markdown", "rst"})
"""A page that a person wrote is worth more than the picture costs that stands in it as base64."""

_WINDOW_CHARS: Final = 2_000
_WINDOWS: Final = 32

_BLOB_OR_WORD: Final = re.compile(
    r"[A-Za-z0-9+/=]{60,}+"  # base64, hexadecimal
    r"|([A-Z]?[a-z]{2,24}(?![a-z])|[A-Z]{4,24}(?![A-Z])"
    r"|\\u[0-9A-Fa-f]{4}|&\#x?[0-9A-Fa-f]{2,6};)"  # letters of translations that are kept in ASCII
)
_LETTER_BEYOND_ASCII: Final = re.compile(r"[^\W\d_\x00-\x7f]")
_SOLID: Final = re.compile(r"[!-~]")


def data_reason(text: str, language: str | None) -> Skipped | None:
    """Skipped (DATA) for a text of at least SMALLEST_DATA_CHARS in which hardly any words stand, or most of which is
    one line. Linear, and the words are looked for in a bounded sample."""
    if len(text) < SMALLEST_DATA_CHARS or language in _PROSE:
        return None
    # Also at \r and form feeds: an old text with one of these at each line's end is no single line.
    longest = max(map(len, text.splitlines()))
    one_line = longest >= SMALLEST_DATA_CHARS and longest > _LONG_LINE * len(text)
    if not one_line and language not in DATA_FORMATS:
        return None
    words = share_of_words(text)
    if language in DATA_FORMATS and words < _FEWEST_WORDS:
        return Skipped(Skip.DATA, f"data: words are {words:.0%} of it")
    if one_line and words < _WORDS_OF_PROSE:
        return Skipped(Skip.DATA, f"data: one line is {longest / len(text):.0%} of it")
    return None


def share_of_words(text: str) -> float:
    """Characters in words against characters that are not white space, 0 to 1, in windows spread evenly over the text.

    A word is a run of 2 to 24 letters, in one case but for its first. Beyond ASCII each letter is one, since many
    scripts have no spaces, and counts as its bytes in UTF-8: an ideograph says as much as three letters. Symbols beyond
    ASCII (box drawings, emoji) count neither way.
    """
    sample = _sample(text)
    words = sum(map(len, _BLOB_OR_WORD.findall(sample)))
    letters = 0 if sample.isascii() else len("".join(_LETTER_BEYOND_ASCII.findall(sample)).encode())
    solid = len(_SOLID.findall(sample)) + letters
    return (words + letters) / solid if solid else 1.0


def _sample(text: str) -> str:
    if len(text) <= _WINDOW_CHARS * _WINDOWS:
        return text
    step = len(text) // _WINDOWS
    return "\n".join(text[at : at + _WINDOW_CHARS] for at in range(0, step * _WINDOWS, step))
