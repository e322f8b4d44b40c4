"""Code as HTML: every line is a row of spans, with the classes of Pygments."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache
from html import escape
from typing import Any

from markupsafe import Markup
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import TextLexer, get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import STANDARD_TYPES, Comment, Keyword, Name, Number, Operator, String, Text, _TokenType  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from reposync.embedding.sparse import query_terms
from reposync.words import escape_unprintable

MAX_HIGHLIGHTED_CHARS = 12_000
"""A lexer may take long for text that is not quite in its language."""
MAX_HIGHLIGHTED_OF_FILE = 100_000
"""Of the part of a file on a page, which has up to 25 times as many bytes with its tags."""

_FORMATTER = HtmlFormatter(nowrap=True)
# Begin and end of what may be a comment or a string, and what comes after the begin: if its end is not among the shown
# lines, all of them. Quotes end on their line, or they are apostrophes.
_CONSTRUCTS = (
    *((each, each, r".*?(?:{}|\Z)") for each in ('"""', "'''")),
    *((*each, r".*?(?:{}|\Z)") for each in (("/*", "*/"), ("<!--", "-->"), ("(*", "*)"), ("{-", "-}"))),
    *((each, "", r"[^\n]*") for each in ("#", "//", "--", ";", "%")),
    *((each, each, rf"(?:\\.|[^{each}\\\n])*{{}}") for each in ('"', "'", "`")),
)
_PIECE = re.compile(r"(?P<word>\w+)|[&<>]")


def code_block(rows: Sequence[Markup], first_line: int) -> Markup:
    """Highlighted lines with their numbers in the file."""
    width = len(str(first_line + len(rows) - 1))
    numbered = (f'<span class="linenos">{at:>{width}}</span>{row}\n' for at, row in enumerate(rows, first_line))
    html = f'<div class="highlight"><pre><code>{"".join(numbered)}</code></pre></div>'
    return Markup(html)  # noqa: S704 - rows are HTML


def highlighted_lines(lines: Sequence[str], language: str | None) -> list[Markup]:
    """Each line as HTML with classes, the first `MAX_HIGHLIGHTED_OF_FILE` characters of them. Highlighted in pieces,
    which begin at a line without indentation if possible."""
    shown = [_visible(each.removesuffix("\r")) for each in lines]
    rows: list[Markup] = []
    start = done = 0
    while start < len(shown):
        end, length = start, 0
        while end < len(shown) and (end == start or length + len(shown[end]) < MAX_HIGHLIGHTED_CHARS):
            length += len(shown[end]) + 1
            end += 1
        if end < len(shown):
            tops = (at for at in range(end, start + (end - start) // 2, -1) if shown[at][:1].strip(" \t})]"))
            end = next(tops, end)
        text = "\n".join(shown[start:end])
        done += len(text)
        lexer = _lexer(language if done <= MAX_HIGHLIGHTED_OF_FILE else None)
        piece = highlight(text, lexer, _FORMATTER)
        found = [Markup(each) for each in piece.removesuffix("\n").split("\n")]  # noqa: S704 - Pygments escapes
        rows += found if len(found) == end - start else map(Markup.escape, shown[start:end])
        start = end
    return rows


def snippet_rows(lines: Sequence[str], language: str | None, wanted: Set[str]) -> list[Markup]:
    """Printable lines as HTML, with the words marked that have a term of `wanted`.

    Only comments, strings, and words that are keywords, builtins or numbers wherever they stand have a class. That
    takes a sixth of the time of a lexer, which is most of the time of a page of results.
    """
    pattern, classes = _constructs(language)

    def plain(found: re.Match[str]) -> str:
        word = found["word"]
        if word is None:
            return escape(found[0], quote=False)
        return word if wanted.isdisjoint(query_terms(word)) else f"<mark>{word}</mark>"

    def piece(found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind in classes:
            return "\n".join(_span(classes[kind], line) for line in _PIECE.sub(plain, found[0]).split("\n"))
        return _span(_class_of_word(language, found[0]), plain(found)) if kind else plain(found)

    rows = pattern.sub(piece, "\n".join(lines)).split("\n")
    return [Markup(each) for each in rows]  # noqa: S704 - pieces are escaped


def _span(css: str, html: str) -> str:
    return f'<span class="{css}">{html}</span>' if css else html


@lru_cache(maxsize=64)
def _constructs(language: str | None) -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern of the comments and strings of a language, its words and what HTML escapes; and the class of each kind
    of comment and string, by its group."""
    classes, patterns = {}, []
    for number, (begin, end, rest) in enumerate(_CONSTRUCTS):
        kind, _ = _first_token(language, f"{begin} a b {end}\n")
        if (kind in Comment or kind in String) and kind not in String.Regex:
            classes[f"of{number}"] = STANDARD_TYPES[kind]
            patterns.append(f"(?P<of{number}>{re.escape(begin)}{rest.format(re.escape(end))})")
    return re.compile("|".join([*patterns, _PIECE.pattern]), re.DOTALL), classes


@lru_cache(maxsize=1 << 14)
def _class_of_word(language: str | None, word: str) -> str:
    kind, text = _first_token(language, f"{word} a")
    is_same = text == word and any(kind in each for each in (Keyword, Name.Builtin, Number, Operator.Word))
    return STANDARD_TYPES[kind] if is_same else ""


def _first_token(language: str | None, text: str) -> tuple[_TokenType, str]:
    tokens = _lexer(language).get_tokens_unprocessed(text)
    return next(((kind, value) for _, kind, value in tokens if value.strip()), (Text, ""))


def _visible(text: str) -> str:
    """Tabs stay; characters that would move the cursor or change the writing direction are made visible."""
    return re.sub(r"[^\t\n]+", lambda found: escape_unprintable(found[0]), text)


@lru_cache(maxsize=64)
def _lexer(language: str | None) -> Any:
    if language is not None:
        try:
            return get_lexer_by_name(language.lower().replace(" ", ""), stripnl=False)
        except ClassNotFound:
            pass
    return TextLexer(stripnl=False)
