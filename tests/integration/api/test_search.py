"""Searching over HTTP."""

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest

from reposync.api.web.found_files import SHOWN_LINES
from reposync.app import limits
from reposync.search.passages import CONTEXT_LINES
from tests.fixtures.applied import apply_again
from tests.fixtures.world import World
from tests.integration.api.serving import code, eventually, serving

SESSIONS = b"def remove_expired_sessions(sessions, now):\n    return [s for s in sessions if s.expires > now]\n"

FILES = {"src/sessions.py": SESSIONS, "docs/notes.md": b"# Notes\n\nSessions expire.\n"}


async def asks(client: httpx.AsyncClient, **query: object) -> httpx.Response:
    return await client.get("/api/v1/search", params={key: str(value) for key, value in query.items()})


async def test_a_question_finds_lines_of_code(client: httpx.AsyncClient):
    answer = await asks(client, q="where are expired sessions removed")

    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert set(document) == {"items", "words", "facets", "missing", "used", "usages"}
    assert document["facets"] is None and document["missing"] is None and document["used"] is None
    assert document["words"] == "expired sessions removed"
    first = document["items"][0]
    assert {**first, "score": None, "parts": None} == {
        "repository": "project",
        "path": "src/sessions.py",
        "start_line": 1,
        "end_line": 2,
        "language": "python",
        "score": None,
        "text": SESSIONS.decode(),
        "url": None,
        "outdated": False,
        "masked": 0,
        "parts": None,
        "meaning_indexed": None,
        "phrasings": [],
        "definitions": [],
        "symbols": [{"name": "remove_expired_sessions", "kind": "function", "start_line": 1, "end_line": 2}],
    }
    parts = first["parts"]
    assert first["score"] == pytest.approx(sum(parts[each] for each in parts.keys() - {"prior"}) * parts["prior"])


async def test_filters_are_typed_in_the_query_and_facets_count_the_whole_result(client: httpx.AsyncClient):
    answer = (await asks(client, q="expired repo:project path:src/ lang:py kind:function", facets=True)).json()
    assert [each["path"] for each in answer["items"]] == ["src/sessions.py"]
    facets = answer["facets"]
    assert (facets["counted"], facets["is_complete"]) == (1, True)
    assert facets["repository"] == [{"value": "project", "count": 1}]
    assert facets["language"] == [{"value": "python", "count": 1}]
    assert facets["kind"] == [{"value": "function", "count": 1}]
    assert (await asks(client, q="expired path:nope/")).json()["items"] == []
    assert (await asks(client, q="expired repo:projet")).status_code == 404
    assert (await asks(client, q="expired lang:pyhton")).status_code == 422


async def test_the_code_of_a_repository_that_left_the_registry_is_no_longer_shown(
    world: World, client: httpx.AsyncClient
):
    like = {"q": "", "like": "src/sessions.py:1"}
    named = [f"/api/v1/{each}" for each in ("search?q=sessions&repository=project", "files/project/-/src/sessions.py")]
    named += ["/api/v1/grep?q=expire&repository=project", "/search?q=sessions&repository=project"]
    registry = world.folder / "repositories.yaml"
    before = registry.read_text()

    async def found() -> list[int]:
        answers = [await asks(client, q="sessions"), await client.get("/api/v1/grep", params={"q": "expire"})]
        return [len(each.json().get("items", [])) for each in answers]

    assert all(await found())
    registry.write_text(before.partition("repositories:")[0])
    await apply_again(world.app)
    assert await found() == [0, 0]
    for path in named[:3]:
        assert code(await client.get(path)) == (409, "REPOSITORY_INACTIVE"), path
    assert "remove_expired" not in (await client.get(named[3])).text
    assert (await asks(client, **like)).status_code == 404

    registry.write_text(f"{before.partition('repositories:')[0]}search: {{include_inactive: true}}\n")
    await apply_again(world.app)
    assert all(await found())
    assert [(await client.get(path)).status_code for path in named] == [200] * 4
    registry.write_text(before)
    await apply_again(world.app)
    assert all(await found())


async def test_a_search_is_narrowed_by_repository_path_language_definition_and_limit(client: httpx.AsyncClient):
    async def paths(**query: object) -> list[str]:
        return [each["path"] for each in (await asks(client, q="sessions expired", **query)).json()["items"]]

    assert set(await paths()) == {"src/sessions.py", "docs/notes.md"}
    assert await paths(path="src/**/*.py") == ["src/sessions.py"]
    assert await paths(language="markdown") == ["docs/notes.md"]
    assert len(await paths(limit=1)) == 1
    assert set(await paths(repository="project")) == {"src/sessions.py", "docs/notes.md"}
    assert await paths(path="nowhere/*") == []
    assert await paths(symbol="remove_expired_sessions", kind="function") == ["src/sessions.py"]
    assert await paths(symbol="remove_expired_sessions", kind="class") == []


async def test_what_does_not_fit_is_refused_with_a_reason(client: httpx.AsyncClient):
    assert code(await asks(client)) == (422, "USAGE")
    assert code(await asks(client, q="")) == (422, "USAGE")
    assert code(await asks(client, q="x" * 2_001)) == (422, "USAGE")
    assert code(await asks(client, q="x", limit=0)) == (422, "REQUEST_INVALID")
    assert code(await asks(client, q="x", limit=101)) == (422, "REQUEST_INVALID")
    assert code(await asks(client, q="x", langauge="python")) == (422, "REQUEST_INVALID")
    assert code(await asks(client, q="   ")) == (422, "USAGE")
    assert code(await asks(client, q="x", repository="nobody")) == (404, "REPOSITORY_NOT_FOUND")
    unknown = await asks(client, q="x", language="pythn")
    assert code(unknown) == (422, "USAGE")
    assert "Did you mean 'python'?" in unknown.text
    beyond = await asks(client, like="src/sessions.py:99")
    assert (code(beyond), "its last one is 2" in beyond.text) == ((422, "USAGE"), True)
    assert code(await asks(client, like="src/nothing.py:1")) == (404, "FILE_NOT_INDEXED")
    assert code(await asks(client, like="nobody:src/sessions.py:1")) == (404, "REPOSITORY_NOT_FOUND")
    assert code(await asks(client, q="sessions", like="src/sessions.py:1")) == (422, "USAGE")


TRACEBACK = """\
Traceback (most recent call last):
  File "/usr/src/app/src/billing/cards.py", line 6, in charge
    raise CardRefused(card)
  File "/usr/lib/python3.11/site-packages/other/sessions.py", line 1, in f
billing.CardRefusedError: Sessions expire.
"""
CARDS = b"def refund(card):\n    pass\n\n\ndef charge(card):\n    raise CardRefused(card)\n"


async def test_a_pasted_traceback_finds_its_frames_first_and_says_what_it_used(world: World, client: httpx.AsyncClient):
    world.repository.commit({**FILES, "src/billing/cards.py": CARDS})
    await world.completed()
    used = "Used 1 of 2 frames, 3 names and the sentence \u201cbilling.CardRefusedError: Sessions expire.\u201d."

    short = await asks(client, q=TRACEBACK)
    long = await client.post("/api/v1/search", json={"q": TRACEBACK + "# filler\n" * 1_000, "facets": True})

    for answer in (short, long):
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["items"][0]["path"] == "src/billing/cards.py"
        assert [each["name"] for each in document["items"][0]["definitions"]] == ["charge"], "the line is in it"
        assert document["used"] == used
        assert len({each["path"] for each in document["items"]}) > 1, "names and sentence find more"
    page = await client.post("/search", data={"q": TRACEBACK})
    assert page.status_code == 200 and html.escape(used) in page.text
    assert page.text.index("src/billing/") < page.text.index("docs/notes.md")
    assert "CardRefused(card)" in re.findall(r"<textarea[^>]*>(.*?)</textarea>", page.text, re.DOTALL)[0]
    elsewhere = (await client.post("/api/v1/search", json={"q": TRACEBACK, "path": "docs/"})).json()
    assert {each["path"] for each in elsewhere["items"]} == {"docs/notes.md"}
    assert elsewhere["used"].startswith("Used 0 of 2 frames")


async def test_a_text_that_is_too_long_or_no_paste_is_refused(client: httpx.AsyncClient):
    words = await client.post("/api/v1/search", json={"q": "x" * 2_001})
    assert code(words) == (422, "USAGE") and "of several lines may have 20,000" in words.text
    assert code(await client.post("/api/v1/search", json={"q": "a.py:1\n" * 3_000})) == (422, "REQUEST_INVALID")
    assert code(await client.post("/api/v1/search", json={})) == (422, "USAGE")


async def test_every_front_end_says_that_a_rule_excludes_what_is_looked_for(world: World, client: httpx.AsyncClient):
    world.repository.commit({**FILES, "src/app.min.js": b"var sessions=1;\n"})
    await world.completed()
    message = "'src/app.min.js' of project is excluded by the rule minified: it is minified."

    excluded = {"reason": "excluded", "message": message, "rule": "minified", "repositories": []}
    for route in ("search", "grep"):
        document = (await client.get(f"/api/v1/{route}", params={"q": "sessions", "path": "src/app.min.js"})).json()
        assert (document["items"], document["missing"]) == ([], excluded)
    file = await client.get("/api/v1/files/project/-/src/app.min.js")
    outline = await client.get("/api/v1/repositories/project/outline", params={"path": "src/app.min.js"})
    for answer in (file, outline):
        assert code(answer) == (404, "FILE_NOT_INDEXED")
        assert answer.json()["error"]["details"] == {"reason": "excluded", "rule": "minified"}
    shown = "is excluded by the rule minified"
    accept = {"Accept": "text/html"}
    for page in ("/search?q=sessions+path:src/app.min.js", "/search?q=sessions+path:src/app.min.js&mode=exact"):
        assert shown in (await client.get(page, headers=accept)).text, page
    assert shown in (await client.get("/files/project/-/src/app.min.js", headers=accept)).text
    nothing = (await client.get("/api/v1/search", params={"q": "sessions", "path": "nowhere/*"})).json()
    assert nothing["missing"]["reason"] == "no_match"


async def test_phrasings_of_one_question_are_answered_together(world: World, client: httpx.AsyncClient):
    async def found(*phrasings: str) -> list[tuple[str, list[int]]]:
        answer = await client.get("/api/v1/search", params={"q": phrasings})
        assert answer.status_code == 200, answer.text
        return [(each["path"], each["phrasings"]) for each in answer.json()["items"]]

    both = await found("remove_expired_sessions", "notes")
    assert dict(both) == {"src/sessions.py": [1], "docs/notes.md": [2]}
    assert await found("notes", "remove_expired_sessions lang:python") == [("src/sessions.py", [2, 1])]
    assert await found("expired", "expired") == await found("expired")
    (first, *_) = (await client.get("/api/v1/search", params={"q": ["sessions", "expired"]})).json()["items"]
    parts = first["parts"]
    assert first["score"] == pytest.approx(sum(parts[each] for each in parts.keys() - {"prior"}) * parts["prior"])


async def test_phrasings_that_do_not_go_together_are_refused_with_a_reason(client: httpx.AsyncClient):
    async def refused(*phrasings: str) -> tuple[tuple[int, str], str]:
        answer = await client.get("/api/v1/search", params={"q": phrasings})
        return code(answer), answer.text

    assert (await refused(*map(str, range(9))))[0] == (422, "REQUEST_INVALID")
    problem, text = await refused("sessions", "")
    assert problem == (422, "USAGE") and "Phrasing 2 of 2 has no words" in text
    problem, text = await refused("sessions lang:go", "expired lang:python")
    assert problem == (422, "USAGE") and "give it once" in text


async def test_the_page_shows_each_phrasing_and_what_it_found(client: httpx.AsyncClient):
    page = (await client.get("/search", params={"q": ["remove_expired_sessions", "<notes>"]})).text
    assert "or: &lt;notes&gt;" in page and "<notes>" not in page
    assert 'name="q" value="&lt;notes&gt;"' in page
    assert 'href="/search?q=remove_expired_sessions" aria-label="Remove the phrasing' in page
    assert "phrasing 1</span>" in page and "phrasing 2</span>" in page


async def test_the_outline_of_a_file_has_each_definition_once(world: World, client: httpx.AsyncClient):
    body = "    x = 1\n" * 1_000
    head = world.repository.commit(
        {"a.py": f"class Session:\n  def close(self):\n{body}\ndef last():\n    pass\n".encode()}
    )
    await world.completed()

    answer = await client.get("/api/v1/repositories/project/outline", params={"path": "a.py"})

    assert answer.status_code == 200, answer.text
    outline = answer.json()
    assert (outline["repository"], outline["path"], outline["commit"]) == ("project", "a.py", head)
    assert [(each["kind"], each["name"], each["start_line"]) for each in outline["symbols"]] == [
        ("class", "Session", 1),
        ("method", "close", 2),
        ("function", "last", 1_004),
    ]
    missing = await client.get("/api/v1/repositories/project/outline", params={"path": "no.py"})
    assert code(missing) == (404, "FILE_NOT_INDEXED")


CLOSE = b"def close_idle_connections(pool, now):\n    return [c for c in pool if c.idle_until > now]\n"


async def test_code_like_that_at_a_line_is_found_and_not_that_line_itself(world: World, client: httpx.AsyncClient):
    world.repository.commit({"a b/pool.py": CLOSE, "docs/other.md": b"# Weather\nIt rains.\n"})
    await world.completed()

    async def paths(**query: object) -> list[str]:
        return [each["path"] for each in (await asks(client, **query)).json()["items"]]

    found = await paths(like="src/sessions.py:2")
    assert found[0] == "a b/pool.py"
    assert "src/sessions.py" not in found
    assert await paths(q="like:project:src/sessions.py:1") == found
    assert (await paths(q='like:"a b/pool.py:1"'))[0] == "src/sessions.py"
    assert await paths(like="src/sessions.py:2", language="markdown", path="docs/o*") == ["docs/other.md"]
    page = (await client.get("/search", params={"q": "idle connections"})).text
    link = html.unescape(re.search(r'href="(/search\?[^"]+)"[^>]*>Similar code', page)[1])  # type: ignore[index]
    assert "src/sessions.py" in (await client.get(link)).text


async def test_an_embedding_server_that_is_away_is_503(world: World, client: httpx.AsyncClient):
    world.embeddings.answer_next(401, times=20)
    answer = await asks(client, q="expired sessions")
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "EMBEDDING_ERROR"


async def test_a_burst_is_taken_a_few_at_a_time_and_the_rest_refused_at_once(world: World, client: httpx.AsyncClient):
    world.app.searches = limits.ConcurrencyLimit(3)
    world.embeddings.forget()
    async with serving(world.app) as bounded:
        with world.embeddings.holding():
            asking = [asyncio.create_task(asks(bounded, q=f"sessions {number}")) for number in range(12)]
            await eventually(lambda: sum(each.done() for each in asking) == 12 - limits.MAX_CONCURRENT - 3)
            refused = [each.result() for each in asking if each.done()]
        answers = await asyncio.gather(*asking)

    assert {code(each) for each in refused} == {(503, "SEARCH_BUSY")}
    assert sum(each.status_code == 200 for each in answers) == limits.MAX_CONCURRENT + 3
    assert world.embeddings.most_at_once <= limits.MAX_CONCURRENT


LONG = "".join(f"def unrelated_{number}():\n    return {number}\n\n\n" for number in range(40))


def rows(page: str) -> list[tuple[int, str]]:
    """Numbers and texts of the lines of hits."""
    found = re.findall(
        r'<span class="codeline[ a-z]*" data-line="(\d+)"><span class="linenos"> *\d+</span>(.*)</span>', page
    )
    return [(int(number), html.unescape(re.sub("<[^>]+>", "", text))) for number, text in found]


async def test_the_page_shows_the_lines_that_match_and_marks_their_words(world: World, client: httpx.AsyncClient):
    found = f"{LONG}def drop_stale(leases, kept='<i>'):\n    return [each for each in leases if each.stale]\n\n\n{LONG}"
    world.repository.commit({"long.py": found.encode(), "docs/leases.md": b"# Leases\nA stale lease is dropped.\n"})
    await world.completed()
    page = (await client.get("/search", params={"q": "where does it drop stale leases"})).text
    shown = page.partition("long.py</b>")[2].partition("</article>")[0]
    assert "<mark>drop_stale</mark>" in shown and "<mark>stale</mark>" in shown
    assert not re.findall("<mark>(where|does|it)</mark>", page), "they say nothing"
    assert "&lt;i&gt;" in shown and "<i>" not in shown
    assert '<a class="crumb"' in shown and ">drop_stale</a>" in shown
    for hit in shown.split('<section class="hit"')[1:]:
        lines = rows(hit)
        assert len(lines) <= SHOWN_LINES + 2 * CONTEXT_LINES
        for number, text in lines:
            assert text == found.split("\n")[number - 1], "each line is there once, under its number"
    assert page.count("\n\n") < 60, "no empty line between the lines"
    assert "chunk" not in page and "score" not in page
    assert "score" in (await client.get("/search", params={"q": "drop stale", "explain": "1"})).text
    assert len(page) < 40_000


async def test_filters_are_chips_and_facets_count_more_than_the_hits(world: World, client: httpx.AsyncClient):
    body = "".join(f"def sessions_{number}(expired):\n    '''{'x' * 60}'''\n\n\n" for number in range(200))
    files = {f"src/part{number}.py": f"def expired_{number}():\n    pass\n".encode() for number in range(15)}
    files |= {"big.py": body.encode(), "docs/sessions.md": b"# Expired sessions\nThey are removed.\n"}
    world.repository.commit(files)
    await world.completed()
    page = (await client.get("/search", params={"q": "expired"})).text
    titles = re.findall(r'<h2 id="file-\d+" class="place">(.*?)</h2>', page, re.DOTALL)
    assert len(titles) == len(set(titles))
    assert re.search(r"<b>10 best results</b>\s*in \d+ files of 1 repository", page)
    number = re.search(r'data-value="python"><span>python</span>\s*<i>(\d+)</i>', page)
    assert number is not None and int(number[1]) > 10
    narrowed = (await client.get(link_of(page, 'data-value="markdown"'))).text
    assert "sessions.md</b>" in narrowed and "big.py" not in narrowed
    assert "<span>lang: markdown</span>" in narrowed and 'value="expired lang:markdown"' in narrowed
    assert link_of(narrowed, 'aria-label="Remove the filter') == "/search?q=expired"
    assert link_of(narrowed, 'aria-current="true"') == "/search?q=expired", "a chosen one is removed by the same click"
    beside = (await client.get("/search", params={"q": "expired", "language": "markdown"})).text
    assert rows(beside) == rows(narrowed) != [], "links of before"
    more = (await client.get(link_of(page, 'rel="next"').partition("#")[0])).text
    assert len(re.findall('<section class="hit"', more)) > len(re.findall('<section class="hit"', page))


def link_of(page: str, attribute: str) -> str:
    """The address of the first link that has the attribute."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*{re.escape(attribute)}', page)
    assert found is not None, attribute
    return html.unescape(found[1])


async def test_without_results_the_page_says_which_filter_fits_nothing(client: httpx.AsyncClient):
    page = (await client.get("/search", params={"q": "expired path:nope/** lang:python"})).text
    assert "<code>path:nope/**</code>" in page and "fits nothing in the index" in page
    assert re.findall(r'<a href="([^"]+)">Search without <code>(.*?)</code>', page) == [
        ("/search?q=expired+lang%3Apython", "path:nope/**"),
        ("/search?q=expired+path%3Anope%2F%2A%2A", "lang:python"),
    ]
    together = (await client.get("/search", params={"q": "expired path:src/** lang:markdown"})).text
    assert "Nothing fits all of these filters together" in together


async def test_exact_text_and_patterns_are_found_on_the_page(world: World, client: httpx.AsyncClient):
    text = f"{LONG}class Lease:\n    def drop(self, now):\n\t# a <b> (x)\n        return self.drop(now) or Drop\n"
    world.repository.commit({"a/lease.py": text.encode()})
    await world.completed()

    async def shown(q: str, **options: str) -> str:
        answer = await client.get("/search", params={"q": q, **options})
        assert answer.status_code == 200
        return answer.text

    page = await shown("drop(", mode="exact")
    assert re.search(r"<b>2 lines</b>\s*in 1 file of 1 repository", page)
    assert [number for number, _ in rows(page)] == list(range(160, 165)), "both, with what is around them, once"
    assert re.search(r">Lease</a>.*>drop</a>", page, re.DOTALL), "the definitions that they are in"
    assert "<mark>drop</mark>" in page and page.count("<mark>") >= 2
    assert "<mark>&lt;b&gt; (x)</mark>" in re.sub("</?span[^>]*>", "", await shown("<b> (x)", mode="exact"))
    assert len(rows(await shown(r"\bdrop\b", mode="regex", case="1"))) == 5
    assert "Drop</mark>" in await shown("drop", mode="exact") and "Drop</mark>" not in await shown(
        "drop", mode="exact", case="1"
    )
    assert "lease.py</b>" not in await shown("drop( path:src/", mode="exact")
    assert "lease.py</b>" in await shown("drop( repo:project lang:python", mode="exact")
    # The text is cut within a string, and the definitions after it have their colours nevertheless.
    about = "    More about it.\n" * 700
    story = f'class Story:\n    """About.\n{about}    """\n\n    def told(self):\n        return self\n'
    world.repository.commit({"a/story.py": story.encode()})
    await world.completed()
    for told in (await shown("def told", mode="exact"), await shown("symbol:told")):
        assert '<span class="k">def</span> ' in re.sub("</?mark>", "", told.partition("story.py</b>")[2])
    assert 'value="symbol:Lease' in await shown("Lease", definition="1")
    assert "The pattern is not valid" in await shown("drop(", mode="regex")
    assert "No indexed line has this text" in await shown("kind:class Lease", mode="exact"), "it is text here"
    assert link_of(await shown(r"drop\(self"), "") and "mode=regex" in await shown(r"drop\(self")
