"""The page of an indexed file, as a browser receives it."""

from __future__ import annotations

import html
import json
import re

import httpx
import pytest

from reposync.api.web.file_page import PAGE_LINES
from reposync.words import file_address
from tests.fixtures.world import World

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
CODE = "def first():\n    return 1\n\n\ndef second():\n    return '<b>2</b>'\n"
LONG = "".join(f"def f{number}():\n    return {number}\n" for number in range(1_300))


ABOUT = "    Other text.\n" * 10 + "    The Story of a Story, if, or and for Story.\n" * 12
STORY = f'import os\n\n\nclass Story:\n    """A Story.\n{ABOUT}    """\n\n    size = 1\n'
CELLS = {"cells": [{"cell_type": "code", "source": ["x = 1\n", "y = 2"]}], "nbformat": 4}
FILES = {
    "src/code.py": CODE.encode(),
    "long.py": LONG.encode(),
    "story.py": STORY.encode(),
    f"a/{HOSTILE}.txt": f"{HOSTILE}\r\n</pre></span><script>alert(1)</script>\n".encode(),
    "wide.txt": b"word " * 2_000,
    "cells.ipynb": json.dumps(CELLS, indent=1).encode(),
}


@pytest.fixture(autouse=True)
def accepts_html(client: httpx.AsyncClient) -> None:
    client.headers["Accept"] = "text/html"


def lines(page: str) -> dict[str, str]:
    """Anchor -> text of the lines of the page."""
    found = re.findall(
        r'<span class="line[ a-z]*" id="(L\d+)"><a class="linenos" href="#\1"> *\d+</a>(.*)</span>', page
    )
    return {anchor: html.unescape(re.sub("<[^>]+>", "", row)) for anchor, row in found}


def marked(page: str) -> list[str]:
    return re.findall(r'<span class="line marked" id="(L\d+)">', page)


async def test_a_file_has_numbered_lines_and_links_to_its_definitions(client: httpx.AsyncClient):
    answer = await client.get("/files/project/-/src/code.py")

    assert answer.status_code == 200, answer.text
    assert list(lines(answer.text).items()) == [
        (f"L{number}", line) for number, line in enumerate(CODE.splitlines(), 1)
    ]
    assert '<span class="k">def</span>' in answer.text
    assert re.findall(r'<li><a href="#L(\d+)">(\w+)</a>', answer.text) == [("1", "first"), ("5", "second")]
    assert marked(answer.text) == []
    again = await client.get("/files/project/-/src/code.py", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


async def test_a_hit_links_to_its_lines_which_are_marked(client: httpx.AsyncClient):
    found = (await client.get("/search", params={"q": "symbol:second"})).text
    links = [html.unescape(each) for each in re.findall(r'href="(/files/[^"]+)"', found)]
    file = "/files/project/-/src/code.py"
    assert f"{file}?lines=5-6#L5" in links and f"{file}?lines=1-2#L1" in links, "its lines, and those before them"
    assert f'<a class="crumb" href="{file}?lines=5-6#L5" title="function">second</a>' in found

    assert marked((await client.get(f"{file}?lines=5-6")).text) == ["L5", "L6"]
    for unknown in ("6-5", "x", "0", "1-2-3", "99999999999", "-1"):
        page = (await client.get("/files/project/-/src/code.py", params={"lines": unknown})).text
        assert marked(page) == (["L6"] if unknown == "6-5" else [])


async def test_a_definition_that_is_searched_for_is_shown_from_its_own_line(client: httpx.AsyncClient):
    for query in ("symbol:Story", "kind:class Story"):
        page = (await client.get("/search", params={"q": query})).text
        assert "/files/project/-/story.py?lines=4-8#L4" in page
        assert '<span class="k">class</span>' in page and '<span class="k">for</span>' not in page, "it is a docstring"
        assert '<span class="codeline" data-line="4">' in page

    found = (await client.get("/api/v1/search", params={"q": "symbol:Story"})).json()["items"]
    assert [(each["name"], each["start_line"]) for each in found[0]["definitions"]] == [("Story", 4)]
    assert (await client.get("/api/v1/search", params={"q": "Story"})).json()["items"][0]["definitions"] == []


async def test_a_long_file_is_shown_in_parts(client: httpx.AsyncClient):
    first = (await client.get("/files/project/-/long.py")).text
    assert list(lines(first)) == [f"L{number}" for number in range(1, PAGE_LINES + 1)]
    assert "Lines 1 to 1,000 of 2,600" in first
    assert "and 1,000 more" in first
    assert len(first) < 500_000
    assert 'href="/files/project/-/long.py?from=1001" rel="next"' in first
    assert re.search(r'<a href="#L3">f1</a>', first)

    last = (await client.get("/files/project/-/long.py", params={"lines": "2599-2600"})).text
    assert list(lines(last)) == [f"L{number}" for number in range(2_001, 2_601)]
    assert marked(last) == ["L2599", "L2600"]
    assert [part.count('<span class="k">') for part in (first, last)] == [1_000, 600], "every line has colours"
    assert lines(last)["L2600"] == "    return 1299"
    assert re.search(r'<a href="\?lines=3#L3">f1</a>', last)
    assert 'rel="next"' not in last and 'href="/files/project/-/long.py?from=1001" rel="prev"' in last
    beyond = (await client.get("/files/project/-/long.py", params={"from": "999999"})).text
    assert list(lines(beyond)) == list(lines(last))


async def test_names_and_content_are_shown_and_never_run(client: httpx.AsyncClient):
    answer = await client.get(file_address("project", f"a/{HOSTILE}.txt"))

    assert answer.status_code == 200
    for character in ("<img src=x", "<script>alert", "\x1b", "\u202e", "</pre></span><script"):
        assert character not in answer.text
    assert lines(answer.text) == {
        "L1": r"<img src=x onerror=alert(1)>\x1b[31m\u202e",
        "L2": "</pre></span><script>alert(1)</script>",
    }
    assert "script-src 'self'" in answer.headers["content-security-policy"]


async def test_a_notebook_shows_its_cells_without_numbers_of_lines(client: httpx.AsyncClient):
    page = (await client.get("/files/project/-/cells.ipynb?lines=4-5")).text
    assert lines(page) == {}
    assert "3 lines of cells" in page
    assert re.search(r"<pre>.*x.*=.*1.*\n.*y.*=.*2.*\n</pre>", page)


async def test_what_is_not_indexed_is_a_page_with_what_may_be_meant(client: httpx.AsyncClient):
    answer = await client.get("/files/project/-/code.py")
    assert answer.status_code == 404
    assert "src/code.py" in answer.text and "<!doctype html>" in answer.text
    assert (await client.get("/files/nobody/-/code.py")).status_code == 404
    assert (await client.get("/files/project")).status_code == 404


async def test_a_page_of_anything_has_a_bounded_weight(world: World, client: httpx.AsyncClient):
    world.repository.commit({"calls.py": ("def f(): pass\n" + ("a(" * 300 + "\n") * 160).encode()})
    await world.completed()
    assert len((await client.get("/files/project/-/calls.py")).text) < 3_000_000
    page = (await client.get("/files/project/-/wide.txt")).text
    assert lines(page)["L1"].endswith("… 10,000 characters")
    assert len(page) < 20_000


async def test_what_is_found_in_a_file_is_marked_and_stepped_through(client: httpx.AsyncClient):
    file = "/files/project/-/src/code.py"
    page = (await client.get(file, params={"find": "RETURN"})).text
    assert re.findall(r'<span class="line found" id="(L\d+)">', page) == ["L2", "L6"]
    assert "<b>2 lines</b>" in page and page.count("<mark>return</mark>") == 2
    assert html.unescape(re.search(r'<a href="([^"]+)" data-next', page)[1]) == f"{file}?find=RETURN&lines=2#L2"  # type: ignore[index]
    after = (await client.get(file, params={"find": "RETURN", "lines": "2"})).text
    assert f"{file}?find=RETURN&amp;lines=6#L6" in after or f"{file}?find=RETURN&lines=6#L6" in after
    assert "Nothing found" in (await client.get(file, params={"find": "RETURN", "case": "1"})).text
    assert "is not valid" in (await client.get(file, params={"find": "f(", "mode": "regex"})).text
    deep = (await client.get("/files/project/-/long.py", params={"find": "return 1299"})).text
    assert '<span class="line found" id="L2600">' in deep, "the part with the first match is shown"


async def test_a_definition_leads_to_its_uses_and_its_outline_is_nested(world: World, client: httpx.AsyncClient):
    code = "class Story:\n    def tell(self):\n        return 1\n\n\ndef use():\n    return Story().tell()\n"
    world.repository.commit({"story.py": code.encode()})
    await world.completed()
    page = (await client.get("/files/project/-/story.py")).text
    assert re.search(r'>Story</a> <span class="dim">class 1</span>\s*<ol>\s*<li><a href="#L2">tell</a>', page)
    uses = re.search(r'<a class="uses" href="([^"]+)"[^>]*>tell</a>', page)
    assert uses is not None
    found = (await client.get(html.unescape(uses[1]))).text
    assert re.search(r"<b>2 lines</b>\s*in 1 file", found)


async def test_the_text_alone_is_no_page_and_some_lines_are_for_scripts(client: httpx.AsyncClient):
    raw = await client.get(file_address("project", f"a/{HOSTILE}.txt"), params={"raw": "1"})
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"
    assert raw.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert raw.text == FILES[f"a/{HOSTILE}.txt"].decode()

    part = (await client.get("/files/project/-/long.py", params={"part": "11-14"})).text
    assert re.findall(r'data-line="(\d+)"', part) == ["11", "12", "13", "14"]
    assert '<span class="k">def</span>' in part and "<header" not in part
    beyond = (await client.get("/files/project/-/src/code.py", params={"part": "7-9"})).text
    assert "data-line" not in beyond
    assert (await client.get("/files/project/-/long.py", params={"part": "1-2600"})).text.count("data-line") == 300


async def test_folders_and_missing_files_lead_onward(client: httpx.AsyncClient):
    folder = await client.get("/files/project/-/src/")
    assert (folder.status_code, folder.headers["location"]) == (303, "/repositories/project?folder=src#files")
    assert (await client.get("/files/nobody/-/src/")).status_code == 404
    page = (await client.get("/files/project/-/src/code.py")).text
    assert 'href="/repositories/project?folder=src#files"' in page
    missing = await client.get("/files/project/-/other/code.py")
    assert missing.status_code == 404
    assert 'href="/search?q=code.py"' in missing.text and 'href="/repositories/project#files"' in missing.text
