"""Windows: a chunk split for a model with a short context; and the detection of servers that truncate silently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import numpy as np

from reposync.embedding.port import Matrix, OnShare, WindowRows, no_share


def windows(text: str, window_chars: int) -> list[str]:
    """Consecutive pieces of `text`, each of 1 to `window_chars` characters; joined they are `text` again.

    A window ends where something ends: of the lines that end in its second half, after the one whose successor is
    indented least (MRR@10 of the local model 0.546 instead of 0.520 for the most lines that fit). A longer line is cut
    at its last blank in the second half of the window, else at the limit.
    """
    pieces: list[str] = []
    start, end = 0, len(text)
    while end - start > window_chars:
        cut = _last_break(text, start, start + window_chars)
        pieces.append(text[start:cut])
        start = cut
    if start < end:
        pieces.append(text[start:])
    return pieces


def readable_windows(text: str, window_chars: int) -> list[str]:
    """The windows to embed, not the blank ones, whose vectors would be near to anything. At least one: of a blank text
    the first, of an empty text a single blank, since servers refuse empty inputs."""
    if len(text) <= window_chars:
        return [text or " "]
    pieces = windows(text, window_chars)
    return [piece for piece in pieces if not piece.isspace()] or pieces[:1]


async def embed_windows(
    texts: Sequence[Sequence[str]],
    rows: WindowRows | None,
    embed: Callable[[Sequence[str], Callable[[int], None]], Awaitable[Sequence[Matrix]]],
    on_share: OnShare = no_share,
) -> list[Matrix]:
    """A matrix for each text, which is given as its windows. Of equal windows one is embedded, and none that is in
    `rows`; all are in it afterwards. `embed` calls its second argument with the number of windows that it finished."""
    found = rows.known(window for parts in texts for window in parts) if rows is not None else {}
    new = list(dict.fromkeys(window for parts in texts for window in parts if window not in found))
    total = len(found) + len(new)
    if found:
        on_share(len(found) / total)
    embedded = await embed(new, lambda count: on_share(count / total)) if new else []
    for window, matrix in zip(new, embedded, strict=True):
        found[window] = matrix
        if rows is not None:
            rows.add(window, matrix)
    if rows is not None:
        rows.embedded += len(new)
        rows.reused += sum(map(len, texts)) - len(new)
    return [np.concatenate([found[window] for window in parts]) for parts in texts]


def _last_break(text: str, start: int, limit: int) -> int:
    """Where the window that starts at `start` ends: after a line, else after a blank, else at `limit`."""
    middle = (start + limit) // 2
    best, least = 0, len(text) + 1
    line_end = text.rfind("\n", start, limit)
    while line_end >= middle:
        indent = _indent(text, line_end + 1)
        if indent < least:
            best, least = line_end + 1, indent
        line_end = text.rfind("\n", start, line_end)
    if best:
        return best
    if line_end >= 0:
        return line_end + 1
    blank = text.rfind(" ", middle, limit)
    return blank + 1 if blank >= 0 else limit


def _indent(text: str, line_start: int) -> int:
    """How far the line is indented. A blank line belongs to what is above it: no window starts with one by choice."""
    end = line_start
    while end < len(text) and text[end] in " \t":
        end += 1
    return len(text) if end < len(text) and text[end] in "\r\n" else end - line_start


# Silent truncation ----------------------------------------------------------------------------------------------------
# OpenAI's own API refuses a text that is too long; several servers that speak its dialect embed its beginning instead.
# The vectors then look right and find nothing of the rest.

SHORT_BYTES: Final = 400
"""Every embedding model reads so much."""

_OTHER_WORDS: Final = "walrus orchard ninety glacier velvet trumpet saffron harbor "
_SYMBOLS: Final = "!#$%&*+,-./:;<=>?@^_|~"


def with_different_ending(text: str) -> str:
    """`text` with other words in its last fortieth: a model that reads it all returns a different vector."""
    size = min(len(text), max(len(text) // 40, len(_OTHER_WORDS)))
    ending = _OTHER_WORDS * (size // len(_OTHER_WORDS) + 1)
    return text[:-size] + ending[:size]


def dense_text(size: int) -> str:
    """A text of `size` characters with a token for each one or two, or for each word: ` ?7 &3 !0 ...`."""
    pairs = (f" {_SYMBOLS[number % len(_SYMBOLS)]}{number * number % 10}" for number in range(size // 3 + 1))
    return "".join(pairs)[:size]
