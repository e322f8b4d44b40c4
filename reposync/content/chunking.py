"""Cuts a text into overlapping chunks along the language's separators, with exact line numbers.

langchain-text-splitters finds where to cut, but loses the offsets: its `add_start_index` searches for each chunk and
finds the wrong one if a text repeats itself. So they are kept here. For any text:

- every chunk is a slice of the text, none is longer than `size`, and they start and end in ascending order;
- the chunks joined without their overlaps are the text;
- two neighbours share at most `overlap` characters;
- a line ends with `\\n` (so `\\r\\n` counts once, a lone `\\r` or form feed does not), as editors and GitLab's `#L10`
  count;
- a chunk of only white space exists only if its neighbours have no room for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from typing import Final

from langchain_text_splitters import Language, RecursiveCharacterTextSplitter
from typing_extensions import override

from reposync.content.model import Chunk

Span = tuple[int, int]
"""Start and end offset of a chunk in its text."""

_LINES: Final = ["\n\r?\n", "\n", " "]
_LONGEST_SHIFT: Final = 3
_SMALLEST_SIZE: Final = 16
_LONGEST_FRAGMENT: Final = 64

_LANGCHAIN: Final = {each: each for each in (
    "c", "cobol", "cpp", "csharp", "elixir", "go", "haskell", "html", "java", "kotlin", "latex", "lua", "markdown",
    "php", "powershell", "python", "r", "rst", "ruby", "rust", "scala", "swift",
)} | {
    "apex": "java", "cuda": "cpp", "cython": "python", "groovy": "java", "javascript": "js", "luau": "lua",
    "objective-c": "c", "protobuf": "proto", "solidity": "sol", "svelte": "html", "typescript": "ts",
    "visualbasic": "visualbasic6", "vue": "html",
}  # fmt: skip
"""Language -> langchain's name of a language with fitting separators; the first have the same name there."""

_RST: Final = [r"\n(?=[^\n]+\n(?:={3,}|-{3,}|~{3,}|\^{3,}|\*{3,})\r?\n)", r"\n(?=\.\. [a-z])"]
"""langchain cuts at the underline of a title, which leaves the title in the chunk before."""


def chunk_text(text: str, language: str | None = None, size: int = 7000, overlap: int = 1500) -> tuple[Chunk, ...]:
    """`text` as chunks of at most `size` characters, neighbours sharing at most `overlap`; () for an empty text.

    Raises ValueError unless 0 <= overlap < size.
    """
    chunks: list[Chunk] = []
    line, counted = 1, 0
    for start, end in chunk_spans(text, language, size, overlap):
        line += text.count("\n", counted, start)
        counted = start
        chunks.append(Chunk(text[start:end], line, line + text.count("\n", start, end - 1), start))
    return tuple(chunks)


def chunk_spans(text: str, language: str | None, size: int, overlap: int) -> list[Span]:
    """Offsets of the chunks of `text`, in order. Raises ValueError unless 0 <= overlap < size."""
    if not 0 <= overlap < size:
        raise ValueError(f"the overlap ({overlap}) must be at least 0 and less than the chunk size ({size})")
    if len(text) <= size:
        return [(0, len(text))] if text else []
    if size < _SMALLEST_SIZE:
        return [(start, min(start + size, len(text))) for start in range(0, len(text) - overlap, size - overlap)]
    splitter = _OffsetSplitter(text, _separators(language), size, overlap)
    return _without_blank(text, _joined(splitter.spans(), size), size)


class _OffsetSplitter(RecursiveCharacterTextSplitter):
    """langchain's recursion over separators, with merging that keeps offsets.

    The recursion passes every piece of the text to `_merge_splits` in order; the last separator matches anything, so no
    piece is left over. langchain's merging is quadratic in the pieces of a chunk: 10 s for 60,000 keys on one line."""

    def __init__(self, text: str, separators: tuple[str, ...], size: int, overlap: int) -> None:
        fragment = min(_LONGEST_FRAGMENT, size // _SMALLEST_SIZE)
        # `_cut` may move the end of a chunk past a line break, which also lengthens the overlap.
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
            raise RuntimeError("langchain-text-splitters no longer passes every piece to _merge_splits")
        return self._spans

    @override
    def _merge_splits(self, splits: Iterable[str], separator: str) -> list[str]:
        """Record the spans of consecutive pieces, each shorter than the limit and with its separator."""
        bounds = list(accumulate(map(len, splits), initial=self._at))
        self._at = bounds[-1]
        first, last = 0, len(bounds) - 1
        while True:
            end = bisect_right(bounds, bounds[first] + self._limit) - 1
            self._record(bounds[first], bounds[end])
            if end == last:
                return []
            # The next chunk starts with as many whole pieces as it may share and has room for.
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
    """Join neighbours that fit into one chunk: the recursion leaves a short head before each long piece."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and end - joined[-1][0] <= size:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _without_blank(text: str, spans: list[Span], size: int) -> list[Span]:
    """Merge chunks of only white space into their neighbours as far as these have room."""
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
def _separators(language: str | None) -> tuple[str, ...]:
    """Regular expressions, from the coarsest cut to the finest."""
    name = _LANGCHAIN.get(language or "")
    if name is None:
        return tuple(_LINES)
    if name == "rst":
        return (*_RST, *_LINES)
    given = RecursiveCharacterTextSplitter.get_separators_for_language(Language(name))
    # Blank lines may be \r\n; HTML and LaTeX have no lines among their separators.
    special = [separator for separator in given if separator not in {"\n\n", "\n", r"\n\n", r"\n", " ", ""}]
    return (*special, *_LINES)
