"""The inverse of `chunking`: the text that chunks were cut from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reposync.content.model import Chunk


@dataclass(frozen=True, slots=True)
class JoinedText:
    """`starts`: where each chunk starts in `text`. `is_certain`: false if a chunk does not know it, as those that
    programs before 0.2 stored; a text that repeats itself within a line may then be a different one."""

    text: str
    starts: list[int]
    is_certain: bool


def has_lines_of_file(chunks: Sequence[Chunk]) -> bool:
    """Whether line n of the text is line n of the file, as in all files but notebooks."""
    return chunks[0].start_line == 1 and all(
        each.end_line - each.start_line == each.text.count("\n", 0, len(each.text) - 1) for each in chunks
    )


def joined(chunks: Sequence[Chunk]) -> JoinedText | None:
    """The text of all chunks of a file but, possibly, its last ones, which do not say that they are missing. None if
    one is missing between them, or they are not of one text."""
    has_lines = has_lines_of_file(chunks)
    starts, parts, length, line = [0], [chunks[0].text], len(chunks[0].text), 1
    if chunks[0].start_index not in (0, None):
        return None
    for before, chunk in pairwise(chunks):
        if chunk.start_index is None:
            at = _first_place(before.text, chunk.text, chunk.start_line - before.start_line if has_lines else 0)
        else:
            at = chunk.start_index - starts[-1]
        if at is None or not _fits(before.text, at, chunk.text):
            return None
        line += before.text.count("\n", 0, at)
        if has_lines and line != chunk.start_line:
            return None
        starts.append(starts[-1] + at)
        parts.append(chunk.text[length - starts[-1] :])
        length += len(parts[-1])
    return JoinedText("".join(parts), starts, all(each.start_index is not None for each in chunks[1:]))


def _fits(before: str, at: int, text: str) -> bool:
    """Whether `text` may start at this offset of `before`, and end after it."""
    shared = len(before) - at
    return at > 0 and 0 <= shared < len(text) and before.endswith(text[:shared])


def _first_place(before: str, text: str, lines: int) -> int | None:
    """The first offset in `before`, behind so many lines, at which `text` may start."""
    first = 0
    for _ in range(lines):
        first = before.find("\n", first) + 1 or len(before)
    return next((at for at in range(first, len(before) + 1) if _fits(before, at, text)), None)
