"""The documentation as its readers see it: fences, words in code, links and headings, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from reposync.api.web.help_page import slug_of

ROOT = Path(__file__).resolve().parents[2]
WHERE = ("*.md", "docs/**/*.md", "helm/**/*.md", "benchmarks/**/*.md", "config/**/*.md", "deploy/**/*.md")


@dataclass(frozen=True)
class Place:
    """Says where in the documentation something stands, as editors understand it."""

    page: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Fence:
    """`words`: what follows the three backticks. `at` is the line of its first line of text."""

    at: Place
    words: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Span:
    """Something within one line: code in a sentence, or the target of a link."""

    at: Place
    text: str


@dataclass
class Page:
    name: str
    fences: list[Fence] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    links: list[Span] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return (ROOT / self.name).parent

    @property
    def console(self) -> list[Fence]:
        return [fence for fence in self.fences if fence.words[:1] == ("console",)]

    def words_in_code(self) -> Iterator[Span]:
        """Everything that is set in code, a line each."""
        yield from self.spans
        for fence in self.fences:
            for number, line in enumerate(fence.text.splitlines()):
                yield Span(Place(self.name, fence.at.line + number), line)


@cache
def pages() -> tuple[Page, ...]:
    found = {path for pattern in WHERE for path in ROOT.glob(pattern)}
    return tuple(read_page(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(found))


def read_page(name: str, text: str) -> Page:
    found = Page(name)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    taken: dict[str, int] = {}
    begins = 1
    for before, token in zip([None, *tokens], tokens, strict=False):
        # A cell of a table has no line of its own, its row has.
        begins = token.map[0] + 1 if token.map else begins
        if token.type == "fence":
            found.fences.append(Fence(Place(found.name, begins + 1), tuple(token.info.split()), token.content))
        elif token.type == "inline":
            _read_inline(found, token, begins)
            if before is not None and before.type == "heading_open":
                slug = slug_of("".join(each.content for each in token.children or ()))
                count = taken[slug] = taken.get(slug, -1) + 1
                found.anchors.add(f"{slug}-{count}" if count else slug)
        elif token.type == "html_block":
            _read_html(found, token.content, begins)
    return found


def _read_inline(found: Page, token: Token, line: int) -> None:
    for child in token.children or ():
        at = Place(found.name, line)
        if child.type in ("softbreak", "hardbreak"):
            line += 1
        elif child.type == "code_inline":
            found.spans.append(Span(at, child.content))
        elif child.type in ("link_open", "image"):
            found.links.append(Span(at, str(child.attrs.get("href") or child.attrs.get("src"))))
        elif child.type == "html_inline":
            _read_html(found, child.content, line)


def _read_html(found: Page, html: str, line: int) -> None:
    """A picture that differs by the reader's colours can be written in HTML alone."""
    for number, text in enumerate(html.splitlines()):
        for target in re.findall(r'(?:src|srcset|href)="([^"]+)"', text):
            found.links.append(Span(Place(found.name, line + number), target))
        for name in re.findall(r'<a (?:id|name)="([^"]+)"', text):
            found.anchors.add(name)
