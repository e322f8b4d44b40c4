"""Hits of one file that share lines, as neighbouring chunks do. A hit is what a person reads: a chunk is joined with
the best of its neighbours that was found too, and what is found beside them shows only lines of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reposync.symbol import merged
from reposync.vectors.port import Candidate, PointId, SearchHit
from reposync.words import url_of_lines

# Chunks in one hit: what a cut went through is whole again. More would answer with files.
_MOST_JOINED = 2
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(slots=True)
class Passage:
    """Consecutive lines of a file. `best`: the best chunk; `chunks`: all that it is made of."""

    best: Candidate
    chunks: list[Candidate]
    start_line: int
    end_line: int

    def overlaps(self, chunk: Candidate) -> bool:
        return chunk.start_line <= self.end_line and self.start_line <= chunk.end_line

    def shown(self, completed: Mapping[PointId, SearchHit]) -> SearchHit:
        """The hit of these lines. `completed`: the best chunk with its text, and the others unless they were deleted:
        then it has only the best chunk's lines."""
        hit = completed[self.best.id]
        chunks = [completed[each.id] for each in self.chunks if each.id in completed]
        is_whole_chunk = (self.start_line, self.end_line) == (hit.start_line, hit.end_line)
        if is_whole_chunk or len(chunks) < len(self.chunks):
            return hit
        first, last = min(chunks, key=_start), max(chunks, key=_start)
        text = first.text
        if first is not last:
            text = joined(text, last.text, first.end_line - last.start_line + 1)
        start, end = first.start_line, last.end_line
        if (lines := _cut(text, start, end, self.start_line, self.end_line)) is not None:
            text, start, end = lines, self.start_line, self.end_line
        url = hit.url and url_of_lines(hit.url, start, end)
        symbols = [each for each in merged([*first.symbols, *last.symbols]) if start <= each.start_line <= end]
        return replace(hit, text=text, start_line=start, end_line=end, url=url, symbols=symbols)


def passages(found: Sequence[Candidate]) -> list[Passage]:
    """In the order of `found`. No two of one file share a line, and every chunk's lines are in one."""
    cut: list[Passage] = []
    of_file: dict[tuple[str, str], list[Passage]] = {}
    for chunk in found:
        mine = of_file.setdefault((chunk.version, chunk.path), [])
        near = [each for each in mine if each.overlaps(chunk)]
        start, end = chunk.start_line, chunk.end_line
        if len(near) == 1 and len(near[0].chunks) < _MOST_JOINED:
            near[0].chunks.append(chunk)
            near[0].start_line, near[0].end_line = min(start, near[0].start_line), max(end, near[0].end_line)
            continue
        for each in near:
            if each.start_line <= start:
                start = each.end_line + 1
            else:
                end = min(end, each.start_line - 1)
        if start <= end:
            passage = Passage(chunk, [chunk], start, end)
            mine.append(passage)
            cut.append(passage)
    return cut


def joined(first: str, second: str, shared_lines: int) -> str:
    """Two neighbouring chunks of one text, whose overlap has so many lines, without it."""
    at = 0
    for _ in range(shared_lines - 1):
        at = second.find("\n", at) + 1
        if not at:
            return first + second
    # The last shared line may be cut at any character of a long line.
    line_end = second.find("\n", at)
    for end in range(len(second) if line_end < 0 else line_end + 1, at - 1, -1):
        if first.endswith(second[:end]):
            return first + second[end:]
    return first + second


def _start(hit: SearchHit) -> int:
    return hit.start_line


def _cut(text: str, first: int, last: int, start: int, end: int) -> str | None:
    """Lines `start` to `end` of a text of the lines `first` to `last`. None if its lines are not those of the file: a
    notebook's, and of a file that is one line."""
    if (first, last) == (start, end):
        return text
    lines = _LINE.findall(text)
    if len(lines) != last - first + 1:
        return None
    return "".join(lines[start - first : end - first + 1])
