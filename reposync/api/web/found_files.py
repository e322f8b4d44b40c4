"""What a search found, as its page shows it: a card for each file, with the lines of each hit, those around them, and
the definition that they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup

from reposync.api.web.highlighting import Span, snippet_rows
from reposync.content.grammars import GRAMMAR_LANGUAGES
from reposync.embedding.sparse import query_terms
from reposync.operations.search import Hit, MatchingFile
from reposync.search.passages import CONTEXT_LINES, Passage
from reposync.search.snippets import SnippetLine, best_snippet, printable_line, shown_line
from reposync.symbol import Symbol
from reposync.words import url_of_lines

SHOWN_LINES = 5
MORE_LINES = 10
MOST_CRUMBS = 4
_LONGEST_LINE = 400
_BEFORE_MATCH = 60
_TAB = 4
_KEPT = 400
_LEXED_FROM_DEFINITIONS = GRAMMAR_LANGUAGES - {"php"}  # whose lexer waits for `<?php`


class Row(NamedTuple):
    """A line. `is_match`: it is one of the lines that were searched for, and not one of those around them."""

    number: int
    html: Markup
    is_match: bool


@dataclass(frozen=True, slots=True)
class ShownHit:
    """`start` to `end`: the lines that answer, of which `best` is the best one; `rows` has those around them, too.
    `crumbs`: the definitions around the best line, the outermost first. `url`: of these lines at the source. `hit`:
    None for a line that matches a pattern. `marks`: of the calls in them. `number`: from 1, in order of the page."""

    number: int
    start: int
    end: int
    best: int
    rows: Sequence[Row]
    crumbs: Sequence[Symbol]
    url: str | None
    hit: Hit | None = None
    marks: Sequence[str] = ()

    @property
    def first(self) -> int:
        return self.rows[0].number if self.rows else self.start

    @property
    def last(self) -> int:
        return self.rows[-1].number if self.rows else self.end


@dataclass(slots=True)
class FoundFile:
    """`more`: how many lines match that are not shown."""

    repository: str
    path: str
    language: str | None
    outdated: bool
    masked: int
    hits: list[ShownHit] = field(default_factory=list)
    more: int = 0

    @property
    def folders(self) -> list[tuple[str, str]]:
        return folders_of(self.path)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def folders_of(path: str) -> list[tuple[str, str]]:
    """Name and path of each folder that a file is in."""
    parts = path.split("/")[:-1]
    return [(name, "/".join(parts[: number + 1])) for number, name in enumerate(parts)]


def files_of_hits(found: Sequence[Hit], words: str) -> list[FoundFile]:
    """The files of the best hits first; in each the hits by line, without a line twice."""
    files: dict[tuple[str, str], FoundFile] = {}
    of_file: dict[tuple[str, str], list[Hit]] = {}
    for hit in found:
        of_file.setdefault((hit.repository, hit.path), []).append(hit)
    number = 0
    for key, hits in of_file.items():
        first = hits[0]
        masked = sum(each.masked for each in hits)
        file = files[key] = FoundFile(*key, first.language, first.outdated, masked)
        shown_up_to = 0
        for hit in sorted(hits, key=lambda each: each.start_line):
            number += 1
            lines = _Lines.of(hit, words)
            rows = [row for row in lines.rows if row.number > shown_up_to]
            shown_up_to = max([shown_up_to, *(row.number for row in rows)])
            if rows:
                url = hit.url and url_of_lines(hit.url, lines.start, lines.end)
                crumbs = _crumbs(hit.symbols, lines.best)
                file.hits.append(ShownHit(number, lines.start, lines.end, lines.best, rows, crumbs, url, hit))
    return list(files.values())


def files_of_matches(
    found: Sequence[MatchingFile], passages: Mapping[tuple[str, str], Sequence[Passage]]
) -> list[FoundFile]:
    """By repository and path, with the first matches of each."""
    files, number = list[FoundFile](), 0
    for match in found:
        file = FoundFile(match.repository, match.path, match.language, match.outdated, match.masked)
        url, shown = match.matches[0].url, 0
        marks = {each.line: each.mark for each in match.matches if each.mark is not None}
        for passage in passages.get((match.repository, match.path), ()):
            number += 1
            matching = sorted(passage.spans)
            shown += len(matching)
            rows = _rows_of(passage, match.language)
            link = url and url_of_lines(url, matching[0], matching[-1])
            crumbs = _crumbs(passage.symbols, matching[0])
            marked = list(dict.fromkeys(marks[each] for each in matching if each in marks))
            hit = ShownHit(number, matching[0], matching[-1], matching[0], rows, crumbs, link, marks=marked)
            file.hits.append(hit)
        if not file.hits:  # of a notebook, or of a file that is being replaced
            for line in match.matches:
                number += 1
                html = snippet_rows(line.text, 0, [shown_line(line.text.split("\n")[0])], match.language)[0]
                rows = [Row(line.line, html, True)]
                file.hits.append(ShownHit(number, line.line, line.end_line, line.line, rows, (), line.url))
            shown = len(match.matches)
        file.more = max(0, len(match.matches) - shown)
        files.append(file)
    return files


class _Lines(NamedTuple):
    """The lines that answer, the best of them, and rows with those around them."""

    start: int
    end: int
    best: int
    rows: Sequence[Row]

    @classmethod
    def of(cls, hit: Hit, words: str) -> _Lines:
        return _lines_of(hit.text, hit.start_line, words, hit.language, tuple(hit.symbols), tuple(hit.definitions))


# People go back to a search, and narrow it: its hits stay the same then.
@lru_cache(_KEPT)
def _lines_of(
    text: str,
    start_line: int,
    words: str,
    language: str | None,
    symbols: tuple[Symbol, ...],
    definitions: tuple[Symbol, ...],
) -> _Lines:
    snippet = best_snippet(text, start_line, words, SHOWN_LINES, symbols, definitions)
    lines = text.removesuffix("\n").split("\n")
    start, end = snippet.start_line, snippet.start_line + len(snippet.lines) - 1
    first = max(start_line, start - CONTEXT_LINES)
    last = min(start_line + len(lines) - 1, end + CONTEXT_LINES)

    def around(begin: int, stop: int) -> list[SnippetLine]:
        return [SnippetLine(each, shown_line(lines[each - start_line]), False) for each in range(begin, stop)]

    shown = [*around(first, start), *snippet.lines, *around(end + 1, last + 1)]
    texts, terms = [each.text for each in shown], query_terms(words)
    lexed, starts = _lexed(first, last, start_line, symbols, language)
    code = "\n".join(lines[lexed - start_line :])
    html = snippet_rows(code, first - lexed, texts, language, terms, starts=starts)
    rows = [Row(line.number, row, start <= line.number <= end) for line, row in zip(shown, html, strict=True)]
    return _Lines(start, end, snippet.best_line, rows)


def _lexed(
    first: int, last: int, text_start: int, symbols: Sequence[Symbol], language: str | None
) -> tuple[int, Sequence[int]]:
    """The line where a lexer begins for the lines `first` to `last`, and which of these it begins anew at, from 0. A
    chunk may begin within a string; a definition that a parser found does not."""
    if language not in _LEXED_FROM_DEFINITIONS:
        return text_start, ()
    lines = {each.start_line for each in symbols}
    before = max((line for line in lines if text_start <= line <= first), default=text_start)
    return before, sorted(line - first for line in lines if first < line <= last)


def _rows_of(passage: Passage, language: str | None) -> list[Row]:
    lines = passage.text.split("\n")[passage.start_line - passage.text_start :]
    spans: dict[int, Sequence[Span]] = {}
    shown = list[str]()
    for at, line in enumerate(lines):
        of_line = [_printed(line, each) for each in passage.spans.get(passage.start_line + at, ())]
        spans[at] = of_line
        shown.append(_cut(printable_line(line), of_line[0][0] if of_line else 0))
    lexed, starts = _lexed(passage.start_line, passage.end_line, passage.text_start, passage.symbols, language)
    code = "\n".join(passage.text.split("\n")[lexed - passage.text_start :])
    html = snippet_rows(code, passage.start_line - lexed, shown, language, spans=spans, starts=starts)
    numbers = range(passage.start_line, passage.start_line + len(lines))
    return [Row(number, row, number in passage.spans) for number, row in zip(numbers, html, strict=True)]


def _printed(line: str, span: Span) -> Span:
    """The span in the line as it is shown, in which a tab is four spaces."""
    start, stop = (each + (_TAB - 1) * line.count("\t", 0, each) for each in span)
    return start, stop


def _cut(line: str, at: int) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    start = max(0, at - _BEFORE_MATCH)
    part = line[start : start + _LONGEST_LINE]
    return f"{'…' if start else ''}{part}{'…' if start + _LONGEST_LINE < len(line) else ''}"


def _crumbs(symbols: Sequence[Symbol], line: int) -> list[Symbol]:
    around = [each for each in symbols if each.start_line <= line <= each.end_line]
    return sorted(around, key=lambda each: (each.start_line, -each.end_line))[-MOST_CRUMBS:]
