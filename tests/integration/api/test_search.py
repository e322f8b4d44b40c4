"""Searching over HTTP."""

from __future__ import annotations

import asyncio
import html
import re

import httpx
import pytest

from reposync.api.web.code_pages import SHOWN_LINES
from reposync.app import limits
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
    assert set(document) == {"items", "words"}
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
        "definitions": [],
        "symbols": [{"name": "remove_expired_sessions", "kind": "function", "start_line": 1, "end_line": 2}],
    }
    parts = first["parts"]
    assert first["score"] == pytest.approx(sum(parts[each] for each in parts.keys() - {"prior"}) * parts["prior"])


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
    assert code(await asks(client, q="x" * 2_001)) == (422, "REQUEST_INVALID")
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
    link = html.unescape(re.search(r'href="(/search\?[^"]+)"[^>]*>More like this', page)[1])  # type: ignore[index]
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


async def test_the_page_shows_the_lines_that_match_and_marks_their_words(world: World, client: httpx.AsyncClient):
    found = f"{LONG}def drop_stale(leases, kept='<i>'):\n    return [each for each in leases if each.stale]\n\n\n{LONG}"
    world.repository.commit({"long.py": found.encode(), "docs/leases.md": b"# Leases\nA stale lease is dropped.\n"})
    await world.completed()
    page = (await client.get("/search", params={"q": "drop stale leases"})).text
    shown = page.partition("long.py")[2].partition("</li>")[0]
    assert "<mark>drop_stale</mark>" in shown and "<mark>stale</mark>" in shown
    assert "&lt;i&gt;" in shown and "<i>" not in shown
    for block in shown.split('class="code"')[1:]:
        assert block.count('class="linenos"') <= SHOWN_LINES
    whole = re.search(r'<a href="([^"]+)">chunk (\d+) to (\d+)</a>', shown)
    assert whole is not None
    file = (await client.get(html.unescape(whole[1]).partition("#")[0])).text
    assert file.count('class="line marked"') == int(whole[3]) - int(whole[2]) + 1
    assert len(page) < 40_000


async def test_the_page_groups_hits_by_file_and_narrows_them_by_language(world: World, client: httpx.AsyncClient):
    body = "".join(f"def sessions_{number}(expired):\n    '''{'x' * 60}'''\n\n\n" for number in range(200))
    world.repository.commit({"big.py": body.encode(), "docs/sessions.md": b"# Expired sessions\nThey are removed.\n"})
    await world.completed()
    page = (await client.get("/search", params={"q": "expired sessions"})).text
    assert page.count("<h2>") == len(set(re.findall(r"<h2>(.*?)</h2>", page)))
    link = re.search(r'<a href="([^"]+)"><b>\d+</b> markdown</a>', page)
    assert link is not None
    narrowed = (await client.get(f"/search{html.unescape(link[1])}")).text
    assert "docs/sessions.md" in narrowed and "big.py" not in narrowed
