"""Code as HTML: every line is a row of spans, with the classes of Pygments.

A lexer reads what stands before the shown lines too: whether a line is in a string or a comment is decided there.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from html import escape
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any

from markupsafe import Markup
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import STANDARD_TYPES, Error, Name, Punctuation, Whitespace, _TokenType  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from reposync.embedding.sparse import query_terms
from reposync.search.snippets import printable_line
from reposync.words import escape_unprintable

MAX_HIGHLIGHTED_CHARS = 100_000
"""That a lexer reads. A page with that many has up to 25 times as many bytes with its tags."""
MAX_LEXER_SECONDS = 2.0
"""A lexer may take long for text that is not quite in its language."""

_PIECE = re.compile(r"(?P<word>\w+)|[&<>]")
_CUT = "…"
# Most tokens of a file.
_PLAIN = frozenset({Error, Name, Punctuation, Whitespace})

_MARK = "*"

Token = tuple[str, str]
"""Class and text. A class that begins with `*` is of marked text."""
Span = tuple[int, int]
"""The first character, and the one after the last."""
NO_SPANS: Mapping[int, Sequence[Span]] = MappingProxyType({})


def highlighted_lines(lines: Sequence[str], language: str | None, first: int = 0) -> list[Markup]:
    """Each line from the index `first` on as HTML with classes."""
    return marked_lines(lines, language, first, NO_SPANS)


def snippet_rows(
    text: str,
    first: int,
    shown: Sequence[str],
    language: str | None,
    wanted: Set[str] = frozenset(),
    spans: Mapping[int, Sequence[Span]] = NO_SPANS,
    starts: Sequence[int] = (),
) -> list[Markup]:
    """The lines of `text` from the index `first` on as `shown`, which are printable and may be cut, as HTML. The words
    are marked that have a term of `wanted`, and the characters of `spans`, by the index of a line in `shown`. `starts`:
    indices of lines at which a lexer begins anew, because they are certainly in no string."""
    lines = [printable_line(each) for each in text.split("\n")[: first + len(shown)]]
    pieces = pairwise([0, *starts, len(shown)])
    of_pieces = (
        _rows(lines[first + start if start else 0 : first + end], language, 0 if start else first)
        for start, end in pieces
    )
    rows = [_marked(tokens, spans.get(number, ())) for number, tokens in enumerate(chain.from_iterable(of_pieces))]
    cut = (_cut(tokens, line, each) for tokens, line, each in zip(rows, lines[first:], shown, strict=True))
    return [_html(tokens, wanted) for tokens in cut]


def marked_lines(
    lines: Sequence[str], language: str | None, first: int, spans: Mapping[int, Sequence[Span]]
) -> list[Markup]:
    """As `highlighted_lines`, with the characters of `spans` marked, by the index of a line from `first` on."""
    rows = enumerate(_rows([_visible(each.removesuffix("\r")) for each in lines], language, first))
    return [_html(_marked(tokens, spans.get(number, ())), frozenset()) for number, tokens in rows]


def _marked(tokens: Sequence[Token], spans: Sequence[Span]) -> Sequence[Token]:
    """The tokens, cut at the ends of the spans; those within them are marked."""
    if not spans:
        return tokens
    edges = sorted({edge for span in spans for edge in span})
    pieces, at = list[Token](), 0
    for css, text in tokens:
        end = at + len(text)
        cuts = [at, *(edge for edge in edges if at < edge < end), end]
        for start, stop in pairwise(cuts):
            is_in = any(first <= start < last for first, last in spans)
            pieces.append((f"{_MARK}{css}" if is_in else css, text[start - at : stop - at]))
        at = end
    return pieces


def _cut(tokens: Sequence[Token], line: str, shown: str) -> Sequence[Token]:
    """The tokens of `line` that are in the part of it that is `shown`, with `…` where it was cut."""
    if line == shown:
        return tokens
    part = shown.removeprefix(_CUT).removesuffix(_CUT)
    if (start := line.find(part)) < 0:
        return [("", shown)]
    end, at = start + len(part), 0
    found = [("", _CUT)] if shown.startswith(_CUT) else []
    for css, text in tokens:
        if piece := text[max(0, start - at) : max(0, end - at)]:
            found.append((css, piece))
        at += len(text)
    return [*found, ("", _CUT)] if shown.endswith(_CUT) else found


def _rows(lines: Sequence[str], language: str | None, first: int) -> list[list[Token]]:
    """The tokens of each line from the index `first` on."""
    begin, length = first, sum(len(each) + 1 for each in lines[first:])
    while begin and (length := length + len(lines[begin - 1]) + 1) <= MAX_HIGHLIGHTED_CHARS:
        begin -= 1
    if begin:  # at a line without indentation, if there is one
        begin = next((at for at in range(begin, first) if lines[at][:1].strip(" \t})]")), begin)
    rows: list[list[Token]] = [[]]
    for css, text in _tokens("\n".join(lines[begin:]) + "\n", language):
        head, *others = text.split("\n")
        rows[-1].append((css, head))
        rows += [[(css, each)] for each in others]
    rows = rows[first - begin : len(lines) - begin]
    rows += [[] for _ in range(len(lines) - first - len(rows))]
    return [
        tokens if "".join(text for _, text in tokens) == line else [("", line)]
        for tokens, line in zip(rows, lines[first:], strict=True)
    ]


def _tokens(text: str, language: str | None) -> Iterator[Token]:
    """Up to the limits of length and time."""
    lexer = _lexer(language)
    if lexer is None:
        return
    until = time.thread_time() + MAX_LEXER_SECONDS  # of this thread: a busy machine takes no colours away
    for at, kind, value in lexer.get_tokens_unprocessed(text):
        if at > MAX_HIGHLIGHTED_CHARS or time.thread_time() > until:
            return
        yield _class_of(kind), value


def _html(tokens: Sequence[Token], wanted: Set[str]) -> Markup:
    def piece(found: re.Match[str]) -> str:
        word = found["word"]
        if word is None:
            return escape(found[0], quote=False)
        return word if wanted.isdisjoint(query_terms(word)) else f"<mark>{word}</mark>"

    pieces = []
    for kind, text in tokens:
        css = kind.removeprefix(_MARK)
        html = _PIECE.sub(piece, text) if wanted else escape(text, quote=False)
        html = f"<mark>{html}</mark>" if css != kind and html else html
        pieces.append(f'<span class="{css}">{html}</span>' if css and html else html)
    return Markup("".join(pieces))  # noqa: S704 - pieces are escaped


@cache
def _class_of(kind: _TokenType) -> str:
    """Empty for what has no style. There are about 90 kinds."""
    while kind not in STANDARD_TYPES:
        kind = kind.parent
    return "" if kind in _PLAIN else str(STANDARD_TYPES[kind])


def _visible(text: str) -> str:
    """Tabs stay; characters that would move the cursor or change the writing direction are made visible."""
    return re.sub(r"[^\t\n]+", lambda found: escape_unprintable(found[0]), text)


@lru_cache(maxsize=64)
def _lexer(language: str | None) -> Any:
    """None: its text is plain."""
    if language is not None:
        with contextlib.suppress(ClassNotFound):
            return get_lexer_by_name(language.lower().replace(" ", ""))
    return None
