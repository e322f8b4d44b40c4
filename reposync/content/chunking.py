"""Cuts a text into overlapping chunks along the language's separators, with exact lines.

langchain-text-splitters finds where to cut; the offsets are kept here, since it loses them: its `add_start_index`
searches for each chunk and takes the wrong one where a text repeats itself. What is promised for any text:

- every chunk is a slice of the text, none is longer than `size`, and they start and end in ascending order;
- the first starts at 0, the last ends at the end, none starts after the end of the one before: the chunks without their
  overlaps, joined, are the text;
- two neighbours share at most `overlap` characters;
- a line ends with `\\n` (so `\\r\\n` counts once, a lone `\\r` or form feed does not), as editors and GitLab's `#L10`
  count;
- a chunk of white space alone is made only where white space runs on for longer than its neighbours can take.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Final

from langchain_text_splitters import Language, RecursiveCharacterTextSplitter
from typing_extensions import override

from reposync.content.languages import separators_name
from reposync.content.model import Chunk

Span = tuple[int, int]
"""Start and end offset of a chunk in its text."""

_LINES: Final = ["\n\r?\n", "\n", " "]
_LONGEST_SHIFT: Final = 3
_SMALLEST_SIZE: Final = 16
_LONGEST_FRAGMENT: Final = 64

_RST: Final = [r"\n(?=[^\n]+\n(?:={3,}|-{3,}|~{3,}|\^{3,}|\*{3,})\r?\n)", r"\n(?=\.\. [a-z])"]
"""langchain cuts below a title, at its underline: that leaves the title in the wrong chunk."""


def chunk_text(text: str, language: str | None = None, size: int = 7000, overlap: int = 1500) -> tuple[Chunk, ...]:
    """`text` as chunks of at most `size` characters, neighbours sharing at most `overlap`; () for an empty text.

    Raises ValueError where not 0 <= overlap < size.
    """
    chunks: list[Chunk] = []
    line, counted = 1, 0
    for start, end in chunk_spans(text, language, size, overlap):
        line += text.count("\n", counted, start)
        counted = start
        chunks.append(Chunk(text[start:end], line, line + text.count("\n", start, end - 1)))
    return tuple(chunks)


def chunk_spans(text: str, language: str | None, size: int, overlap: int) -> list[Span]:
    """Offsets of the chunks of `text`, in order. Raises ValueError where not 0 <= overlap < size."""
    if not 0 <= overlap < size:
        raise ValueError(f"the overlap ({overlap}) must be at least 0 and less than the chunk size ({size})")
    if len(text) <= size:
        return [(0, len(text))] if text else []
    if size < _SMALLEST_SIZE:
        return [(start, min(start + size, len(text))) for start in range(0, len(text) - overlap, size - overlap)]
    splitter = _OffsetSplitter(text, _separators(separators_name(language)), size, overlap)
    return _without_blank(text, _joined(splitter.spans(), size), size)


class _OffsetSplitter(RecursiveCharacterTextSplitter):
    """langchain's recursion over separators, with its merging replaced by one that keeps offsets.

    The recursion hands every piece of the text to `_merge_splits`, in the order of the text: the last separator cuts
    anything, so that no piece is left over. langchain's own merging is quadratic in the pieces of a chunk: 60,000 keys
    on one line take it 10 s.
    """

    def __init__(self, text: str, separators: tuple[str, ...], size: int, overlap: int) -> None:
        fragment = min(_LONGEST_FRAGMENT, size // _SMALLEST_SIZE)
        # A chunk may grow by the line break that stands before its end (see `_cut`), and so may what it shares.
        self._limit = size - _LONGEST_SHIFT
        self._shared = max(0, overlap - _LONGEST_SHIFT)
        super().__init__(
            separators=[*separators, f"[\\s\\S]{{{fragment}}}"],
            is_separator_regex=True,
            keep_separator="start",
            strip_whitespace=False,
            chunk_size=self._limit,
            chunk_overlap=0,
        )
        self._text = text
        self._at = 0
        self._covered = 0
        self._spans: list[Span] = []

    def spans(self) -> list[Span]:
        rest = self._split_text(self._text, self._separators)
        if rest or self._at != len(self._text):
            raise RuntimeError("langchain-text-splitters no longer hands every piece to _merge_splits")
        return self._spans

    @override
    def _merge_splits(self, splits: Iterable[str], separator: str) -> list[str]:
        """Record the spans of a run of consecutive pieces, each shorter than the limit. `separator` is "": pieces keep
        theirs."""
        bounds = list(accumulate(map(len, splits), initial=self._at))
        self._at = bounds[-1]
        first, last = 0, len(bounds) - 1
        while True:
            end = bisect_right(bounds, bounds[first] + self._limit) - 1
            self._record(bounds[first], bounds[end])
            if end == last:
                return []
            # The next chunk takes the next piece, and before it as many whole pieces as may be shared and have room.
            earliest = max(bounds[end] - self._shared, bounds[end + 1] - self._limit)
            first = bisect_left(bounds, earliest, first + 1, end)

    def _record(self, start: int, end: int) -> None:
        start, end = min(self._cut(start), self._covered), self._cut(end)
        if end > self._covered:
            self._spans.append((start, end))
            self._covered = end

    def _cut(self, at: int) -> int:
        """Where to cut for a piece that starts at `at` with its separator: after the separator's line breaks, so that
        a chunk starts at the beginning of a line and `\r\n` stays whole; after the space, for a word."""
        text = self._text
        if at == 0 or at == len(text):
            return at
        if text[at] == "\n":
            if text.startswith("\n", at + 1):
                return at + 2
            return at + 3 if text.startswith("\r\n", at + 1) else at + 1
        return at + 1 if text[at] == " " else at


def _joined(spans: list[Span], size: int) -> list[Span]:
    """Neighbours that fit into one chunk as one: the recursion leaves a short head before each long piece."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and end - joined[-1][0] <= size:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _without_blank(text: str, spans: list[Span], size: int) -> list[Span]:
    """Chunks of white space alone given to the chunks before and after them as far as these have room."""
    kept: list[Span] = []
    pending: Span | None = None
    for start, end in spans:
        if pending is not None:
            # `pending` is blank and did not fit into the chunk before it: this chunk takes what it can from its end.
            reach = max(pending[0], end - size)
            if reach > pending[0]:
                kept.append((pending[0], min(pending[1], reach)))
            start, pending = min(start, reach), None
        if text[start:end].isspace():
            if kept and end - kept[-1][0] > size:
                room = kept[-1][0] + size
                kept[-1], start = (kept[-1][0], max(kept[-1][1], room)), max(start, room)
            pending = (start, end)
        else:
            kept.append((start, end))
    return [*kept, pending] if pending is not None else kept


@cache
def _separators(name: str | None) -> tuple[str, ...]:
    """Regular expressions, from the coarsest cut to the finest, for langchain's `Language` of that name."""
    if name is None:
        return tuple(_LINES)
    if name == "rst":
        return (*_RST, *_LINES)
    given = RecursiveCharacterTextSplitter.get_separators_for_language(Language(name))
    # Blank lines may be \r\n; HTML and LaTeX have no lines among their separators.
    special = [separator for separator in given if separator not in {"\n\n", "\n", r"\n\n", r"\n", " ", ""}]
    return (*special, *_LINES)
