"""How results of `search` and `grep` look: matches in color, places that editors open, lines cut at the terminal."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from reposync import operations
from reposync.cli.output import Code, Line, is_json
from reposync.cli.terminal import ELLIPSIS, cells, has_color, link, width_of
from reposync.errors import RepoSyncError
from reposync.finding import masks_words
from reposync.words import escape_unprintable, phrasings_words

if TYPE_CHECKING:
    from reposync.cli.performing import Performer
    from reposync.operations.search import Hit, Hits, MatchingFile
    from reposync.search.pattern import Pattern

Span: TypeAlias = tuple[int, int]
OUTDATED = "older than the commit: could not be read"
_WORD = re.compile(r"\w+")
_TAB = "    "
_LEAST_TEXT = 20
"""Characters of a line of code that are shown beside a path that leaves less room."""


class Places:
    """Where files are for the person: paths from the current folder if the repository is around it, and links. Folders
    of repositories are asked for on a terminal only, and not of a daemon elsewhere."""

    def __init__(self, perform: Performer, repositories: Iterable[str]) -> None:
        self._roots: dict[str, Path] = {}
        if not sys.stdout.isatty() or is_json() or perform.is_remote:
            return
        for name in dict.fromkeys(repositories):
            with contextlib.suppress(RepoSyncError):
                row = perform(operations.repositories.get_repository, name=name)
                if row.source == "path":
                    self._roots[name] = Path(row.location)

    def path(self, repository: str, path: str) -> str:
        root = self._roots.get(repository)
        return path if root is None or not Path.cwd().is_relative_to(root) else relpath(root / path)

    def link(self, text: str, repository: str, path: str, url: str | None) -> str:
        root = self._roots.get(repository) if url is None and has_color() else None
        if root is not None and (root / path).is_file():
            url = (root / path).as_uri()
        return link(text, url)


def _marked(text: str, spans: Iterable[Span], room: int | None) -> str:
    """A line of code with its matches in color. If it has to be cut, the first match stays."""
    marks = [False] * len(text)
    for start, end in spans:
        marks[start:end] = [True] * (end - start)
    shown = [(piece, is_match) for char, is_match in zip(text, marks, strict=True) for piece in _visible(char, room)]
    if room is not None:
        shown = _fitting(shown, max(room, _LEAST_TEXT))
    runs = groupby(shown, key=lambda each: each[1])
    pieces = [("".join(char for char, _ in run), is_match) for is_match, run in runs]
    return "".join(click.style(piece, fg="red", bold=True) if is_match else piece for piece, is_match in pieces)


def _visible(char: str, room: int | None) -> str:
    if char == "\t":
        return char if room is None else _TAB
    return escape_unprintable(char)


def _fitting(shown: list[tuple[str, bool]], room: int) -> list[tuple[str, bool]]:
    if cells("".join(char for char, _ in shown)) <= room:
        return shown
    first = next((at for at, (_, is_match) in enumerate(shown) if is_match), 0)
    start = max(0, first - room // 3) if first > room * 9 // 10 else 0
    kept = [(ELLIPSIS, False)] if start else []
    used = len(kept)
    for char, is_match in shown[start + len(kept) :]:
        if used + cells(char) >= room:
            return [*kept, (ELLIPSIS, False)]
        used += cells(char)
        kept.append((char, is_match))
    return kept


# search --------------------------------------------------------------------------------------------------------------


def hit_lines(found: Hits, places: Places, *, explain: bool, context: int) -> Iterator[Line]:
    """Each hit with the lines that match best, and `context` more of its chunk on both sides."""
    from reposync.embedding.sparse import query_terms

    if not found.items:
        yield "Nothing found."
    wanted = frozenset(query_terms(found.words))

    def spans(text: str) -> list[Span]:
        return [word.span() for word in _WORD.finditer(text) if not wanted.isdisjoint(query_terms(word[0]))]

    for number, hit in enumerate(found.items):
        if number:
            yield ""
        yield from _hit(hit, found.words, places, spans, explain=explain, context=context)


def _hit(
    hit: Hit, words: str, places: Places, spans: Callable[[str], list[Span]], *, explain: bool, context: int
) -> Iterator[Line]:
    from reposync.search.snippets import best_snippet, shown_line

    snippet = best_snippet(hit.text, hit.start_line, words, symbols=hit.symbols, definitions=hit.definitions)
    place = f"{escape_unprintable(places.path(hit.repository, hit.path))}:{snippet.best_line}"
    place = places.link(click.style(place, fg="cyan", bold=True), hit.repository, hit.path, hit.url)
    about = click.style(f"  {escape_unprintable(hit.repository)}  {hit.score:.3f}", dim=True)
    notes = f"  {OUTDATED}" if hit.outdated else ""
    notes += f"  masked: {masks_words(hit.masked)}" if hit.masked else ""
    if hit.meaning_indexed is not None:
        notes += f"  by words, {hit.meaning_indexed:.0%} of meaning indexed"
    if hit.phrasings:
        about += click.style(f"  {phrasings_words(hit.phrasings)}", dim=True)
    yield Code(f"{place}{about}{click.style(notes, fg='yellow') if notes else ''}")
    if explain:
        yield Code(click.style(f"  {_explained(hit)}", dim=True))
    lines = [(line.number, line.text, line.matches) for line in snippet.lines]
    chunk = hit.text.removesuffix("\n").split("\n")
    first, last = (lines[0][0], lines[-1][0]) if lines else (1, 0)
    before = range(max(hit.start_line, first - context), first)
    after = range(last + 1, min(hit.start_line + len(chunk), last + 1 + context))
    around = {at: (at, shown_line(chunk[at - hit.start_line]), False) for at in (*before, *after)}
    lines = [*(around[at] for at in before), *lines, *(around[at] for at in after)]
    width, terminal = len(str(lines[-1][0])) if lines else 1, width_of(sys.stdout)
    for at, text, matches in lines:
        margin = f"  {at:>{width}} {'>' if matches else ' '} "
        shown = _marked(text, spans(text) if matches else (), terminal and terminal - len(margin))
        yield Code(f"{margin}{shown}" if matches else click.style(f"{margin}{shown}", dim=True))


def _explained(hit: Hit) -> str:
    """`0.91 = words 0.58 + meaning 0.21 + definition 0.28 + path 0.23, times prior 0.70`."""
    parts = dict(hit.parts)
    prior = parts.pop("prior", 1.0)
    total = " + ".join(f"{name} {value:.2f}" for name, value in parts.items())
    return f"{hit.score:.2f} = {total}" + (f", times prior {prior:.2f}" if prior != 1.0 else "")


# grep ----------------------------------------------------------------------------------------------------------------


def matching_lines(
    files: Sequence[MatchingFile], pattern: Pattern, places: Places, around: Sequence[dict[int, str]]
) -> Iterator[Line]:
    """As ripgrep prints them: on a terminal below the name of their repository, else each with it. `around`: the
    lines around the matches of each file, by number; empty without any."""
    terminal, repository, is_later = width_of(sys.stdout), None, False
    for file, others in zip(files, around, strict=True):
        name = escape_unprintable(file.repository)
        if terminal is not None and file.repository != repository:
            if repository is not None:
                yield ""
            yield click.style(name, bold=True)
        repository = file.repository
        path = escape_unprintable(places.path(repository, file.path))
        place = path if terminal is not None else f"{name}:{path}"
        urls = {match.line: match.url for match in file.matches}
        marks = {match.line: f"{match.mark:<9}" for match in file.matches if match.mark is not None}
        texts = {at: text for match in file.matches for at, text in enumerate(match.text.split("\n"), match.line)}
        previous = None
        if others and is_later:
            yield "--"
        is_later = True
        for at in sorted({*texts, *others}):
            if others and previous is not None and at > previous + 1:
                yield "--"
            previous, is_match = at, at in texts
            text = texts[at] if is_match else others[at]
            head = click.style(
                f"{place}:{at}:" if is_match else f"{place}-{at}-", fg="cyan", dim=None if is_match else True
            )
            mark = f" {click.style(marks[at], dim=True)}" if at in marks else ""
            head_cells = cells(head) + cells(mark)
            shown = _marked(text, pattern.spans(text) if is_match else (), terminal and terminal - head_cells - 1)
            yield Code(f"{places.link(head, repository, file.path, urls.get(at))}{mark} {shown}")
