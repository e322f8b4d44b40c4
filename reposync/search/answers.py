"""The hits of a search for a language model, within a budget of tokens: as a text, and as a structure. Pure functions.

Which of the two a model reads is the choice of its program: Gemini CLI 0.61 passes the text on, Claude Code 2.1 and
Codex 0.169 the structure. Both have the same excerpts, and both are within the budget.

A reader that pays for every token wants the right file named first and its code second. So many files get a few lines
each, then the best of them get more, up to the whole function or class, and what is left names further files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from reposync.finding import FILL, count_masks
from reposync.search.documents import Answer, Missing, delimited, new_boundary
from reposync.search.snippets import MatchedLines, shown_line
from reposync.symbol import Symbol
from reposync.vectors.port import SearchHit
from reposync.words import ago, escape_unprintable, phrasings_words

DEPTH: Final = 25
"""Hits that an answer is made of: those beyond `max_files` files are only named. More would change the candidates that
a search ranks."""
MIN_TOKENS = 200
_CHARS_A_TOKEN: Final = 3.5
"""The characters of a token of English, says the glossary of Anthropic's documentation. A character that is not ASCII
counts as one token: it is one to three in tokenizers over bytes."""

_LINES: Final = (3, 6, 12, 24, 48, 96)
"""Lines of an excerpt, which grows while the budget allows."""
_FURTHER_FROM: Final = 12
"""Lines that the first excerpt of each file has before files get a second one."""
_PATHS_SHARE: Final = 0.2
"""The share of the budget for naming further files."""
_ABOUT_SHARE: Final = 0.15
"""The share of the budget for links to the repositories."""
_COMMIT_CHARS: Final = 12
_A_MASK: Final = f"[a{FILL}]"
_OPENERS: Final = frozenset({"class", "enum", "function", "interface", "method", "module", "struct", "trait"})


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the index of a repository holds: its complete commit, since `synced_at` at the latest. None: not known."""

    commit: str | None = None
    synced_at: datetime | None = None


def tokens(text: str) -> int:
    """An estimate, rather too high."""
    plain = len(text) if text.isascii() else sum(map(str.isascii, text))
    return math.ceil(plain / _CHARS_A_TOKEN) + len(text) - plain


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _cost(text: str, record: object) -> int:
    """The tokens of a part of an answer, in both forms, with what is between it and the next one."""
    return max(tokens(text), tokens(_compact(record)) + 1) + 1


def answer(
    hits: Sequence[SearchHit],
    query: str,
    *,
    max_tokens: int = 2_000,
    max_files: int = 8,
    indexed: Mapping[str, Indexed] | None = None,
    missing: Missing | None = None,
    used: str | None = None,
    boundary: str | None = None,
    now: datetime | None = None,
) -> Answer:
    """`hits`: best first. `query`: the words that were searched for. `max_tokens`: of the text, and of the structure as
    compact JSON; at least 200 whatever is given. `indexed`: by name of the repository. `missing`: why there are no more
    hits. `used`: what was searched for of a pasted text."""
    page = _Page(hits, query, max_files)
    boundary = boundary or new_boundary()
    # Whatever is cut from the texts: the sentence about masks may be needed.
    frame = delimited(_A_MASK if any(hit.masked for hit in hits) else "", boundary)
    budget = max(MIN_TOKENS, max_tokens) - tokens(frame)
    absent = None if missing is None else {"reason": missing.reason, "message": escape_unprintable(missing.message)}
    budget -= _cost(absent["message"], absent) if absent else 0
    budget -= _cost(used, used) if used else 0
    about = page.about(indexed or {}, now, budget)
    budget -= _cost_of_about(about)
    page.fill(budget - min(math.floor(budget * _PATHS_SHARE), page.cost_of_names(page.files[1:])))
    further = page.further(budget)
    # What the names did not take.
    page.fill(budget - page.cost_of_names(further))
    shown = [each for each in page.files if each.cost]
    lines = [line for line, _ in about] if hits else ["Nothing found."]
    lines += [used] if used else []
    lines += [absent["message"]] if absent and absent["reason"] != "no_match" else []
    body = "\n".join(filter(None, [*lines, *map(page.rendered, shown), page.names(further)]))
    if hits and not shown and not further:
        body += "\nWhat was found does not fit: ask with a larger max_tokens."
    structure = {
        "files": [each.record() for each in shown],
        "further": _grouped(further),
        "indexed": [record for _, record in about],
        **({"missing": absent} if absent else {}),
        **({"used": used} if used else {}),
    }
    return Answer(delimited(body, boundary), structure)


class _Cut:
    """A hit, and the lines of it that are shown."""

    def __init__(self, hit: SearchHit, query: str) -> None:
        self.hit, self._query = hit, query
        self.excerpt: dict[str, Any] | None = None
        self.max_lines = 0
        self.of = cache(self._of)

    @cached_property
    def _matched(self) -> MatchedLines:
        return MatchedLines(self.hit.text, self.hit.start_line, self._query)

    def _of(self, max_lines: int) -> dict[str, Any]:
        """An excerpt of the structure."""
        hit = self.hit
        snippet = self._matched.snippet(max_lines, hit.symbols, hit.definitions)
        around = _around(hit.symbols, snippet.best_line)
        start = snippet.start_line
        found: dict[str, Any] = {"start_line": start, "end_line": start + max(0, len(snippet.lines) - 1)}
        lines = [each.text for each in snippet.lines]
        if around:
            inner = around[-1]
            name = escape_unprintable(".".join(each.name for each in around[-2:]))
            found["inside"] = f"{inner.kind} {name}, {inner.start_line}-{inner.end_line}"
            if hit.start_line <= inner.start_line < start and max_lines > _LINES[0]:
                opening = shown_line(hit.text.split("\n")[inner.start_line - hit.start_line])
                lines = [opening, *(["…"] if inner.start_line + 1 < start else []), *lines]
        margin = min((len(each) - len(each.lstrip(" ")) for each in lines if each.strip(" …")), default=0)
        return {**found, "text": "\n".join(each[margin:] if each != "…" else each for each in lines)}


def _around(symbols: Sequence[Symbol], line: int) -> list[Symbol]:
    """The definitions around a line, the outermost first."""
    found = [each for each in symbols if each.kind in _OPENERS and each.start_line <= line <= each.end_line]
    return sorted(found, key=lambda each: (each.start_line, -each.end_line))


def _indented(text: str) -> str:
    """So that no line of a file looks like a heading."""
    return "\n".join(f" {line}" if line else "" for line in text.split("\n"))


class _File:
    """The hits of a file, best first. `cost`: of what is shown of it, in tokens; 0 if nothing is."""

    def __init__(self, hits: Sequence[SearchHit], query: str) -> None:
        self.hit = hits[0]
        self.cuts = [_Cut(each, query) for each in hits]
        self.repository, self.path = map(escape_unprintable, (self.hit.repository, self.hit.path))
        self.place = f"{self.path}:{self.hit.start_line}-{self.hit.end_line}"
        self.cost = 0

    def excerpts(self) -> list[dict[str, Any]]:
        return sorted((each.excerpt for each in self.cuts if each.excerpt), key=lambda each: int(each["start_line"]))

    def record(self) -> dict[str, Any]:
        known: dict[str, Any] = {"outdated": True} if self.hit.outdated else {}
        if self.hit.phrasings:
            known["phrasings"] = self.hit.phrasings
        excerpts = self.excerpts()
        if masked := sum(count_masks(each["text"]) for each in excerpts):
            known["masked"] = masked
        return {"repository": self.repository, "path": self.path, **known, "excerpts": excerpts}

    def link(self) -> str | None:
        """Where the files of its repository are shown to a person."""
        page = (self.hit.url or "").partition("#")[0]
        path = quote(self.hit.path, safe="/")
        if not path or not page.endswith(f"/{path}"):
            return None
        return f"{escape_unprintable(page.removesuffix(path))}PATH#LFIRST-LAST"


def _grouped(files: Sequence[_File]) -> list[dict[str, Any]]:
    """Places of files, in the same order; those of one repository that follow each other name it once."""
    return [
        {"repository": repository, "places": [each.place for each in group]}
        for repository, group in groupby(files, key=lambda each: each.repository)
    ]


_About = Sequence[tuple[str, Mapping[str, str]]]
"""For each repository, a line of the text and a record of the structure."""


def _cost_of_about(about: _About) -> int:
    return _cost("\n".join(line for line, _ in about), [record for _, record in about])


class _Page:
    """The files of an answer, and what they cost."""

    def __init__(self, hits: Sequence[SearchHit], query: str, max_files: int) -> None:
        by_file: dict[tuple[str, str], list[SearchHit]] = {}
        for hit in hits:
            by_file.setdefault((hit.repository, hit.path), []).append(hit)
        self.files = [_File(each, query) for each in by_file.values()]
        self._max_files = max_files
        self._first_of: dict[str, _File] = {}
        for file in self.files:
            self._first_of.setdefault(file.hit.repository, file)

    def about(self, indexed: Mapping[str, Indexed], now: datetime | None, budget: int) -> _About:
        """The state of each repository, with a link to its files if there is room for it."""
        states = [(file, indexed.get(name, Indexed())) for name, file in self._first_of.items()]
        with_links = [_about(file, state, now, file.link()) for file, state in states]
        if _cost_of_about(with_links) <= budget * _ABOUT_SHARE:
            return with_links
        about = [_about(file, state, now, None) for file, state in states]
        while about and _cost_of_about(about) > budget / 2:
            about.pop()
        return about

    def fill(self, budget: int) -> None:
        """Give lines to files, within `budget` for all."""
        left = budget - sum(each.cost for each in self.files)
        complete: set[_Cut] = set()  # more lines of these do not fit
        for max_lines in _LINES:
            for file in self.files[: self._max_files]:
                for cut in file.cuts if max_lines >= _FURTHER_FROM else file.cuts[:1]:
                    if max_lines <= cut.max_lines or cut in complete or (not file.cost and max_lines > _LINES[0]):
                        continue
                    before, cut.excerpt = cut.excerpt, cut.of(max_lines)
                    cost = _cost(self.rendered(file), file.record())
                    if (added := cost - file.cost) <= left:
                        left, file.cost, cut.max_lines = left - added, cost, max_lines
                    else:
                        cut.excerpt = before
                        complete.add(cut)
                if not file.cost:
                    # A worse file must not be shown in place of a better one.
                    break

    def rendered(self, file: _File) -> str:
        notes = [
            "older than the commit: could not be read" if file.hit.outdated else "",
            phrasings_words(file.hit.phrasings),
        ]
        about = "; ".join(filter(None, notes))
        about = about and f" ({about})"
        shown = []
        for each in file.excerpts():
            inside = f" in {each['inside']}" if "inside" in each else ""
            place = f"{self._of(file)}{file.path}:{each['start_line']}-{each['end_line']}"
            shown.append(f"{place}{inside}{about}\n{_indented(each['text'])}")
        return "\n".join(shown)

    def _of(self, file: _File) -> str:
        return f"{file.repository} " if len(self._first_of) > 1 else ""

    # What is only named ---------------------------------------------------------------------------------------------

    def further(self, budget: int) -> list[_File]:
        """The fitting files that are not shown, best first."""
        left = budget - sum(each.cost for each in self.files)
        named: list[_File] = []
        for file in self.files:
            if not file.cost:
                if self.cost_of_names([*named, file]) > left:
                    break
                named.append(file)
        return named

    def cost_of_names(self, files: Sequence[_File]) -> int:
        return _cost(self.names(files), _grouped(files)) if files else 0

    def names(self, files: Sequence[_File]) -> str:
        return "also: " + ", ".join(f"{self._of(each)}{each.place}" for each in files) if files else ""


def _about(file: _File, state: Indexed, now: datetime | None, link: str | None) -> tuple[str, Mapping[str, str]]:
    """The state of the repository whose best file this is."""
    commit = escape_unprintable(state.commit or file.hit.commit)
    record = {"repository": file.repository, "commit": commit}
    line = f"{file.repository} at {commit[:_COMMIT_CHARS]}"
    if state.synced_at is not None:
        record["age"] = ago(state.synced_at, now)
        line += f", indexed {record['age']}"
    if file.hit.meaning_indexed is not None:
        record["note"] = f"by words, {file.hit.meaning_indexed:.0%} of meaning indexed"
        line += f", {record['note']}"
    if link:
        record["link"] = link
        line += f", {link}"
    return line, record
