"""The lines of a file around those that match a pattern, as a page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reposync.content.joining import has_lines_of_file, joined
from reposync.content.model import Chunk
from reposync.search.pattern import Pattern
from reposync.symbol import Symbol, merged

CONTEXT_LINES: Final = 2
_MOST_PASSAGES: Final = 5
"""The number of passages of a file; its first lines show what it is about."""
_LONGEST_PASSAGE: Final = 30


@dataclass(frozen=True, slots=True)
class Passage:
    """Lines `start_line` to `end_line` of a file. `text`: of the lines from `text_start` to the last one; a lexer that
    begins there knows what the shown lines are in. `spans`: by line, the characters that match. `symbols`: all
    definitions of the file."""

    start_line: int
    end_line: int
    text: str
    text_start: int
    spans: Mapping[int, Sequence[tuple[int, int]]]
    symbols: Sequence[Symbol]


def passages_of(
    pattern: Pattern, chunks: Sequence[Chunk], symbols: Sequence[Symbol], matching: Sequence[int]
) -> Sequence[Passage]:
    """The passages around the first of the `matching` lines. Empty if the lines of the text are not those of the
    file."""
    whole = joined(chunks)
    if whole is None or not has_lines_of_file(chunks):
        return ()
    lines = whole.text.removesuffix("\n").split("\n")
    groups: list[list[int]] = []
    for line in sorted(set(matching)):
        is_near = bool(groups) and line - groups[-1][-1] <= 2 * CONTEXT_LINES + 1
        if is_near and line - groups[-1][0] < _LONGEST_PASSAGE:
            groups[-1].append(line)
        elif len(groups) < _MOST_PASSAGES:
            groups.append([line])
        else:
            break
    definitions, found, last = merged(symbols), list[Passage](), 0
    for group in groups:
        start = max(last + 1, group[0] - CONTEXT_LINES)
        last = end = min(len(lines), group[-1] + CONTEXT_LINES)
        begin = max((each.start_line for each in chunks if each.start_line <= start), default=1)
        spans = {line: pattern.spans(lines[line - 1].removesuffix("\r")) for line in group if line <= len(lines)}
        found.append(Passage(start, end, "\n".join(lines[begin - 1 : end]), begin, spans, definitions))
    return found
