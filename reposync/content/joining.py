"""The inverse of `chunking`: the text that chunks were cut from.

Chunks know where they start in it. Those that programs before 0.2 stored do not: their lines and texts say it, unless a
text repeats itself within a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reposync.content.model import Chunk


@dataclass(frozen=True, slots=True)
class JoinedText:
    """`starts`: where each chunk starts in `text`. `is_certain`: no chunk would also fit elsewhere."""

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
    starts, parts, length, is_certain = [0], [chunks[0].text], len(chunks[0].text), True
    if chunks[0].start_index not in (0, None):
        return None
    line = 1
    for before, chunk in pairwise(chunks):
        start = starts[-1]
        if chunk.start_index is None:
            places = _places(before, chunk, has_lines=has_lines)
        else:
            places = [chunk.start_index - start]
        if not places or not _fits(before.text, places[0], chunk.text):
            return None
        line += before.text.count("\n", 0, places[0])
        if has_lines and line != chunk.start_line:
            return None
        is_certain &= len(places) == 1
        starts.append(start + places[0])
        parts.append(chunk.text[length - starts[-1] :])
        length += len(parts[-1])
    return JoinedText("".join(parts), starts, is_certain)


def _fits(before: str, at: int, text: str) -> bool:
    """Whether `text` may start at this offset of `before`, and end after it."""
    shared = len(before) - at
    return at > 0 and 0 <= shared < len(text) and before.endswith(text[:shared])


def _places(before: Chunk, chunk: Chunk, *, has_lines: bool) -> list[int]:
    """The offsets in `before` at which `chunk` may start, given that its lines are those of the file."""
    text = before.text
    first, end = 0, len(text)
    if has_lines:
        for _ in range(chunk.start_line - before.start_line):
            first = text.find("\n", first) + 1
            if not first:
                return []
        end = text.find("\n", first)
        end = len(text) if end < 0 else end
    return [at for at in range(first, end + 1) if _fits(text, at, chunk.text)]
