"""More like this: a search for code like that at a place in an indexed file, `src/session.py:42`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reposync.errors import FileNotIndexed, UsageError
from reposync.search.reading import newest_first
from reposync.symbol import read_symbols
from reposync.vectors.port import Candidate, StoredPoint

_PLACE: Final = re.compile(r"(?:(?P<repository>[^:]+):)?(?P<path>[^:].*?):(?P<line>[1-9][0-9]{0,8})", re.DOTALL)

# Of an excerpt: a longer definition is searched by the lines around the one that was named.
_MOST_LINES: Final = 60
_LINES_AROUND: Final = 10
_MOST_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file. `repository`: None if the path alone names the file."""

    repository: str | None
    path: str
    line: int

    def __str__(self) -> str:
        return ":".join(filter(None, (self.repository, self.path, str(self.line))))


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a file of an index version: the definition around a line, or its neighbours."""

    version: str
    path: str
    start_line: int
    end_line: int
    text: str

    async def others(self, found: Sequence[Candidate]) -> Sequence[Candidate]:
        """All but the chunks that hold a part of the excerpt."""
        return [each for each in found if not self._is_in(each)]

    def _is_in(self, chunk: Candidate) -> bool:
        is_of_file = (chunk.version, chunk.path) == (self.version, self.path)
        return is_of_file and chunk.start_line <= self.end_line and self.start_line <= chunk.end_line


def read_place(text: str) -> Place:
    """`PATH:LINE` or `REPOSITORY:PATH:LINE`; a path with a colon needs the repository. Raises UsageError."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text[:200]!r} is not a line of a file.",
            remedy="Give PATH:LINE or REPOSITORY:PATH:LINE: `src/session.py:42`.",
        )
    return Place(match["repository"], match["path"], int(match["line"]))


def excerpt_of(points: Sequence[StoredPoint], version: str, place: Place) -> Excerpt:
    """From the points of the file. Raises FileNotIndexed, and UsageError if the file has no such line."""
    last = 0
    for point in newest_first(points):
        metadata, text = point.payload["metadata"], point.payload["page_content"]
        start, end = metadata["start_line"], metadata["end_line"]
        last = max(last, end)
        if not start <= place.line <= end:
            continue
        around = [
            each
            for each in read_symbols(metadata.get("symbols"))
            if each.start_line <= place.line <= each.end_line and each.end_line - each.start_line < _MOST_LINES
        ]
        first, final = place.line - _LINES_AROUND, place.line + _LINES_AROUND
        if around:
            smallest = min(around, key=lambda each: each.end_line - each.start_line)
            first, final = smallest.start_line, smallest.end_line
        first, final = max(first, start), min(final, end)
        lines = text.split("\n")[first - start : final - start + 1]
        # A notebook's chunk has other lines than its file.
        chosen = "\n".join(lines) if lines else text
        return Excerpt(version, place.path, first, final, chosen[:_MOST_CHARS])
    if not last:
        remedy = "Give the path from the root of the repository."
        raise FileNotIndexed(f"The index has no file {place.path!r}.", remedy=remedy)
    raise UsageError(f"{place.path} has no line {place.line:,}; its last one is {last:,}.")
