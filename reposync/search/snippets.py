"""The few lines of a chunk that answer a query best, made safe to print on a terminal."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final

from reposync.embedding.sparse import query_terms, terms_in_lines
from reposync.symbol import Symbol

_LONGEST_LINE: Final = 160
_ELLIPSIS: Final = "…"
_TAB: Final = "    "
_LOOKED_AT: Final = 4000
"""Characters of a line that are tokenized: nobody reads longer lines."""

_PIECE: Final = 24
_WORD: Final = re.compile(r"\w+")

_NOT_PRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, and those that reorder or hide text (bidirectional overrides, zero width),
which can make code look like other code (CVE-2021-42574)."""


_SHOWN_WHOLE: Final = frozenset({"class", "enum", "function", "interface", "method", "struct", "trait"})


@dataclass(frozen=True, slots=True)
class SnippetLine:
    """One line of a file: `number` counts from 1 in the file, `text` has no line break and no control character and at
    most 160 characters (`…` where it was cut), `matches`: whether it contains a term of the query."""

    number: int
    text: str
    matches: bool


@dataclass(frozen=True, slots=True)
class Snippet:
    """Consecutive lines; `best_line` is the number of the best match, or of the line of a definition that was searched
    for."""

    start_line: int
    lines: tuple[SnippetLine, ...]
    best_line: int


def best_snippet(
    text: str,
    start_line: int,
    query: str,
    max_lines: int = 8,
    symbols: Sequence[Symbol] = (),
    definitions: Sequence[Symbol] = (),
) -> Snippet:
    """See `MatchedLines`, which is for several sizes."""
    return MatchedLines(text, start_line, query).snippet(max_lines, symbols, definitions)


class MatchedLines:
    """The lines of `text`, with the terms of `query` that each has.

    `start_line` is the line of the file where the text starts. Terms are those of the index. A term weighs more the
    fewer lines have it, as in BM25: `self` says little in a class.
    """

    def __init__(self, text: str, start_line: int, query: str) -> None:
        self._start_line = start_line
        lines = self._lines = text.split("\n")
        if len(lines) > 1 and not lines[-1]:
            lines.pop()
        found = terms_in_lines([line[:_LOOKED_AT] for line in lines], query_terms(query))
        frequency = Counter(chain.from_iterable(found))
        weights = {term: math.log(1 + (len(lines) + 0.5) / (count + 0.5)) for term, count in frequency.items()}
        self._found = found
        # Many lines have the same terms.
        self._weight = cache(lambda terms: sum(map(weights.__getitem__, terms)))
        self._line_weights = list(map(self._weight, found))

    def snippet(self, max_lines: int, symbols: Sequence[Symbol] = (), definitions: Sequence[Symbol] = ()) -> Snippet:
        """The first lines of one of the `definitions`. Without them, the window of at most `max_lines` lines with the
        most weight of distinct terms; if its best line is in a definition of `symbols` that fits, the smallest one is
        the snippet. If nothing matches, the first lines that are not blank."""
        lines, found, start_line = self._lines, self._found, self._start_line
        first, last = self._window(max(1, max_lines))
        best = max(range(first, last), key=lambda at: (self._line_weights[at], bool(lines[at].strip()), -at))
        if definitions:
            first, end = self._definition(definitions, best)
            best, last = first, min(end, first + max(1, max_lines))
            symbols = ()
        around = [
            (each.start_line - start_line, each.end_line + 1 - start_line)
            for each in symbols
            if each.kind in _SHOWN_WHOLE and each.end_line - each.start_line < max_lines
        ]
        inside = [each for each in around if 0 <= each[0] <= best < each[1] <= len(lines)]
        first, last = min(inside, key=lambda each: each[1] - each[0], default=(first, last))
        shown = tuple(
            SnippetLine(start_line + at, _shown(lines[at], found[at]), bool(found[at])) for at in range(first, last)
        )
        return Snippet(start_line + first, shown, start_line + best)

    def _definition(self, definitions: Sequence[Symbol], best: int) -> tuple[int, int]:
        """The lines of the definition whose own line matches best, else of the smallest around the line `best`: its
        first line, and the one after its last."""
        places = [
            (each.start_line - self._start_line, min(each.end_line + 1 - self._start_line, len(self._lines)))
            for each in definitions
        ]
        return max(places, key=lambda each: (self._line_weights[each[0]], each[0] <= best < each[1], each[0] - each[1]))

    def _window(self, size: int) -> tuple[int, int]:
        """First line of the best window, and the one after its last."""
        lines, found = self._lines, self._found
        matching = [at for at, terms in enumerate(found) if terms]
        if not matching:
            first = next((at for at, line in enumerate(lines) if line.strip()), 0)
            return first, min(first + size, len(lines))

        def worth(inside: Sequence[int]) -> tuple[float, float, int]:
            """Ties: the window with the best single line, then the one with the most matches."""
            terms = self._weight(frozenset().union(*(found[at] for at in inside)))
            return round(terms, 9), round(max(self._line_weights[at] for at in inside), 9), len(inside)

        # It is enough to try windows that start at a match; each ends at the last match that fits.
        best = max(
            (matching[number : bisect_left(matching, start + size, number)] for number, start in enumerate(matching)),
            key=worth,
        )
        # Fill up with the lines around it, a third of them before: what a line is about follows it.
        room = size - (best[-1] + 1 - best[0])
        first = max(0, best[0] - room // 3)
        last = min(len(lines), first + size)
        first = max(0, min(first, last - size))
        while last - first > 1 and not lines[last - 1].strip():
            last -= 1
        while last - first > 1 and not lines[first].strip():
            first += 1
        return first, last


def printable_line(line: str) -> str:
    """A line as snippets have it, but complete."""
    return _printable(line.removesuffix("\r").rstrip(" \t").replace("\t", _TAB))


def shown_line(line: str) -> str:
    """A line as snippets have it: tabs as spaces, cut to 160 characters, nothing that controls a terminal."""
    return _shown(line, frozenset())


def _shown(line: str, matched: frozenset[str]) -> str:
    line = line.removesuffix("\r").rstrip(" \t").replace("\t", _TAB)
    if len(line) <= _LONGEST_LINE:
        return _printable(line)
    middle = _position(line[:_LOOKED_AT], matched) if matched else 0
    start = max(0, min(middle - _LONGEST_LINE // 3, len(line) - _LONGEST_LINE))
    piece = line[start : start + _LONGEST_LINE]
    head = _ELLIPSIS if start else ""
    tail = _ELLIPSIS if start + _LONGEST_LINE < len(line) else ""
    return head + _printable(piece[len(head) : _LONGEST_LINE - len(tail)]) + tail


def _position(line: str, matched: frozenset[str]) -> int:
    """Offset of the words in `line` that have most of the matched terms."""
    best, position = 0, 0
    for word in _WORD.finditer(line):
        # In scripts without spaces a sentence is one long word: check it in pieces.
        for at in range(word.start(), word.end(), _PIECE):
            terms = len(matched.intersection(query_terms(line[at : min(word.end(), at + 2 * _PIECE)])))
            if terms > best:
                best, position = terms, at
    return position


def _printable(text: str) -> str:
    """`text` without terminal control characters or characters that reorder it: `\x1b` becomes `␛`, U+202E `�`.
    Character by character, so that columns stay."""
    if text.isprintable():
        return text
    return "".join(
        character if unicodedata.category(character) not in _NOT_PRINTABLE else _visible(ord(character))
        for character in text
    )


def _visible(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"
