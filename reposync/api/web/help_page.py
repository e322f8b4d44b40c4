"""The documentation of this version at `/help`: the Markdown files of docs/, which the package contains. Public, as
`/docs` is. Each page is rendered once in a process."""

from __future__ import annotations

import asyncio
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fastapi import APIRouter, HTTPException, Request, Response
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

import reposync
from reposync.api.routing import ApiParts, Router
from reposync.api.web.highlighting import highlighted_lines
from reposync.api.web.rendering import Page

INDEX, ERRORS = "README", "errors"
_MAX_QUERY_CHARS, _MOST_FOUND = 200, 40
_ANCHOR = re.compile(r'<a id="[a-z0-9_-]+">|</a>|<br>')
"""The HTML that is kept; comments are dropped, everything else is shown as text."""


@dataclass(frozen=True, slots=True)
class HelpPage:
    """`contents`: anchors and titles of its sections."""

    title: str
    contents: Sequence[tuple[str, str]]
    body: Markup


def help_page(parts: ApiParts) -> APIRouter:
    routes = Router(include_in_schema=False)

    @routes.get("/help")
    @routes.get("/help/{name:path}")
    async def show_help(request: Request, name: str = INDEX) -> Response:
        if name not in _sources():
            raise HTTPException(404)
        page = Page(parts, request, await parts.access.principal_or_none(request))
        q = page.query.get("q", "").strip()[:_MAX_QUERY_CHARS]
        rendered = await asyncio.to_thread(_rendered, name, page.root)
        found = await asyncio.to_thread(_search, q, name, page.root) if q else None
        return page.show("help.html", page=rendered, q=q, found=found, is_errors=name == ERRORS)

    return routes


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page below one heading, or a row of a table that has an anchor. `folded`: its words for a search."""

    page: str
    title: str
    anchor: str
    text: str
    folded: str


def _search(q: str, name: str, root: str) -> list[tuple[str, Section, str]]:
    """Address, section, and a line with a word of `q`: sections with all words of it, in all pages, or in those of the
    errors if `name` is that page. Those whose title has the words come first."""
    words = q.casefold().split()
    matching = [
        each for each in _sections() if name in (INDEX, each.page) and all(word in each.folded for word in words)
    ]
    matching.sort(key=lambda each: not all(word in each.title.casefold() for word in words))
    found = []
    for each in matching[:_MOST_FOUND]:
        page = f"{root}/help" if each.page == INDEX else f"{root}/help/{each.page}"
        best = max(each.text.splitlines(), key=lambda line: sum(word in line.casefold() for word in words), default="")
        found.append((f"{page}#{each.anchor}", each, best[:200]))
    return found


_ROW = re.compile(r'\| <a id="(?P<anchor>[a-z0-9_-]+)"></a>(?P<title>.*?)(?:<br>.*?)? \| (?P<rest>.*) \|')


@cache
def _sections() -> Sequence[Section]:
    sections = []
    for name, path in _sources().items():
        text = re.sub(r"<picture>.*?</picture>|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        slugs: dict[str, int] = {}
        # A line that begins with # in a block of code is no heading.
        shown = re.sub(
            r"^```.*?^```", lambda block: block[0].replace("\n#", "\n #"), text, flags=re.DOTALL | re.MULTILINE
        )
        for part in re.split(r"^(?=#{1,4} |\| <a id=)", shown, flags=re.MULTILINE):
            heading, _, body = part.partition("\n")
            if row := _ROW.match(heading):
                title = _plain(row["title"])
                sections.append(Section(name, title, row["anchor"], _plain(row["rest"]), part.casefold()))
            if not heading.startswith("#"):
                continue
            title = _plain(heading.lstrip("# "))
            slug = slug_of(title)
            count = slugs[slug] = slugs.get(slug, -1) + 1
            sections.append(Section(name, title, f"{slug}-{count}" if count else slug, body.strip(), part.casefold()))
    return sections


def _plain(text: str) -> str:
    """Without links and marks of code; cells of a row are lines."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", text.replace(" | ", "\n")).strip()


@cache
def _sources() -> Mapping[str, Path]:
    """Name -> file of each page."""
    package = Path(reposync.__file__).parent
    # Of a checkout, docs/ is beside the package.
    folder = next((each for each in (package / "docs", package.parent / "docs") if each.is_dir()), package)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}


@cache
def _rendered(name: str, root: str) -> HelpPage:
    source = _sources()[name].read_text(encoding="utf-8")
    tokens = [each for each in _MARKDOWN.parse(source) if each.type != "html_block"]
    contents: list[tuple[str, str]] = []
    slugs: dict[str, int] = {}
    title = name
    for before, token in pairwise(tokens):
        if token.children:
            token.children = list(_inline(token.children, name, root))
        if before.type == "heading_open":
            slug = slug_of(_text(token))
            count = slugs[slug] = slugs.get(slug, -1) + 1
            anchor = f"{slug}-{count}" if count else slug
            before.attrs["id"] = anchor
            if before.tag == "h1":
                title = _text(token)
            elif before.tag == "h2":
                contents.append((anchor, _text(token)))
        elif token.type == "fence":
            token.type, token.content = "html_block", _block(token)
    _describe_tables(tokens)
    # A column without a title has no header cell.
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}).replace("<th></th>", "<td></td>")
    return HelpPage(title, contents, Markup(html))  # noqa: S704 - rendered from our own files


# Between a number and its unit, which stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|B|kB|MB|GB)\b)")

_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def slug_of(title: str) -> str:
    """The anchor that GitHub and GitLab give a heading."""
    kept = [each for each in title.strip().lower() if each in " -_" or unicodedata.category(each)[0] in "LN"]
    return "".join(kept).replace(" ", "-")


def _text(token: Token) -> str:
    return "".join(" " if each.type == "softbreak" else each.content for each in token.children or ())


def _inline(children: Sequence[Token], name: str, root: str) -> Iterator[Token]:
    """Without pictures, and without links to what is not shipped, whose text stays."""
    is_link = True
    for each in children:
        if each.type == "link_open":
            address = _address(name, str(each.attrs["href"]), root)
            is_link = address is not None
            each.attrs["href"] = address or ""
        if each.type == "text":
            each.content = _UNIT.sub("\N{NO-BREAK SPACE}", each.content)
        if each.type == "html_inline" and not _ANCHOR.fullmatch(each.content):
            each.type = "text"
        if each.type != "image" and (is_link or each.type not in ("link_open", "link_close")):
            yield each


def _address(name: str, href: str, root: str) -> str | None:
    """Where a link on the page `name` leads; None if that is not shipped."""
    if href.startswith(("https://", "http://", "#")):
        return href
    link = urlsplit(href)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(link.path))).removesuffix(".md")
    if target not in _sources():
        return None
    page = f"{root}/help" if target == INDEX else f"{root}/help/{target}"
    return f"{page}#{link.fragment}" if link.fragment else page


def _block(fence: Token) -> str:
    lines = fence.content.removesuffix("\n").split("\n")
    rows = Markup("\n").join(highlighted_lines(lines, (fence.info.split() or ["text"])[0]))
    return Markup('<pre class="code" tabindex="0"><code>{}</code></pre>\n').format(rows)


def _describe_tables(tokens: Sequence[Token]) -> None:
    """Titles of the columns beside the cells, for a narrow window."""
    titles: list[str] = []
    column = 0
    for token, content in pairwise(tokens):
        if token.type == "table_open":
            titles = []
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            titles.append(_text(content))
        elif token.type == "td_open":
            token.attrs = {"data-label": titles[column]} if titles[column] else {}
            column += 1
