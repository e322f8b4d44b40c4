"""The documentation that a daemon serves of its own version, to which its errors lead."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import httpx

from benchmarks.reference import errors
from reposync.api.auth import Access
from reposync.config.sections import HttpConfig
from tests.integration.api.conftest import Daemon
from tests.integration.api.serving import client_of

OF_RUNS = ("FILES_FAILED", "INDEX_REBUILT", "RUN_ABANDONED", "REPOSITORY_PAUSED", "REPOSITORY_REMOVED")
OF_GROUPS = ("GROUP_SHRANK", "GROUP_LISTING_FAULTY")


class Seen(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        assert page.status_code == 200, page.text
        self.links: set[str] = set()
        self.anchors: list[str] = []
        self.feed(page.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.add(given["href"] or "")
        if given.get("id"):
            self.anchors.append(given["id"] or "")


async def test_the_help_is_searched_and_each_result_leads_to_its_paragraph(daemon: Daemon) -> None:
    async with daemon.client() as client:
        for path, q, address in (
            ("/help", "stale LOCK_HELD", "/help/errors#lock_held"),
            ("/help/errors", "lock_held", "/help/errors#lock_held"),
            ("/help", "keys search code", "/help/pages#keys"),
            ("/help", "heartbeat lease expires", "/help/glossary#lease"),
        ):
            seen = Seen(await client.get(path, params={"q": q}))
            assert address in seen.links
            for link in (each for each in seen.links if each.startswith("/help") and "#" in each):
                page, _, anchor = link.partition("#")
                if page == address.partition("#")[0]:
                    assert anchor in Seen(await client.get(page)).anchors, link
        none = await client.get("/help", params={"q": "<b>zzz</b>"})
        assert "No section has all of these words" in none.text and "<b>zzz" not in none.text


async def test_every_error_code_has_its_paragraph(daemon: Daemon) -> None:
    async with daemon.client() as client:
        anchors = Seen(await client.get("/help/errors")).anchors

    codes = {*errors(), *OF_RUNS, *OF_GROUPS, "NOT_FOUND", "METHOD_NOT_ALLOWED"}
    assert {code.lower() for code in codes} - set(anchors) == set()


async def test_every_page_is_reached_and_every_link_between_them_leads_somewhere(daemon: Daemon) -> None:
    pages: dict[str, Seen] = {}
    waiting = {"/help"}
    async with daemon.client() as client:
        while waiting:
            path = waiting.pop()
            pages[path] = Seen(await client.get(path))
            waiting |= {each for each in map(without_anchor, pages[path].links) if each.startswith("/help")} - set(
                pages
            )

    assert {"/help/a-run-is-stuck", "/help/reference", "/help/glossary", "/help/decisions/0017-grep"} <= set(pages)
    for path, page in pages.items():
        assert len(set(page.anchors)) == len(page.anchors), path
        for link in page.links:
            to, _, anchor = link.partition("#")
            seen = pages.get(to or path)
            assert not anchor or link.startswith("http") or (seen and anchor in seen.anchors), f"{path}: {link}"
            assert link.startswith(("#", "/", "https://", "http://")), f"{path}: {link}"


def without_anchor(link: str) -> str:
    return link.partition("#")[0]


async def test_what_is_html_in_the_files_is_not_shown_and_code_is_highlighted(daemon: Daemon) -> None:
    async with daemon.client() as client:
        glossary, reference = (await client.get("/help/glossary")).text, (await client.get("/help/reference")).text
        how_to = (await client.get("/help/register-repositories")).text

    assert '<a id="lease"></a>lease' in glossary
    assert "begin routes" not in reference and "&lt;br&gt;" not in reference
    assert re.search(r'<pre class="code" tabindex="0"><code><span class="nt">', how_to)


async def test_below_a_path_links_and_errors_have_it(daemon: Daemon) -> None:
    parts = replace(daemon.parts, access=Access((), HttpConfig(root_path="/tools/reposync")))
    async with client_of(parts) as client:
        page = await client.get("/tools/reposync/help/a-run-is-stuck")
        missing = await client.get("/tools/reposync/api/v1/nothing")

    links = Seen(page).links
    assert "/tools/reposync/help/errors" in links
    assert not {each for each in links if each.startswith("/") and not each.startswith("/tools/reposync/")}
    assert missing.json()["error"]["help"] == "/tools/reposync/help/errors#not_found"
    assert missing.headers["content-length"] == str(len(missing.content))


async def test_a_page_that_is_not_in_the_documentation_is_not_found(daemon: Daemon) -> None:
    async with daemon.client() as client:
        for path in (
            "/help/nothing",
            "/help/../errors",
            "/help/%2e%2e/pyproject",
            "/help//etc/passwd",
            "/help/errors.md",
        ):
            assert (await client.get(path)).status_code == 404, path
