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

INDEX = "README"
_ANCHOR = re.compile(r'<a id="[a-z0-9-]+">|</a>|<br>')
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
        return page.show("help.html", page=await asyncio.to_thread(_rendered, name, page.root))

    return routes


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
