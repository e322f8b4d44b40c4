"""Exact search over HTTP."""

from __future__ import annotations

import httpx
import pytest

from tests.fixtures.world import World
from tests.integration.api.serving import code

SESSIONS = b"def remove_expired(sessions):\n    return remove(sessions)\n"

FILES = {"src/sessions.py": SESSIONS, "docs/notes.md": b"# Notes\n\nremove_expired (Sessions)\n"}


async def asks(client: httpx.AsyncClient, **query: object) -> httpx.Response:
    return await client.get("/api/v1/grep", params=query)  # type: ignore[arg-type]


async def test_the_lines_that_match_are_found_with_their_places(world: World, client: httpx.AsyncClient):
    answer = await asks(client, q=r"\bremove_expired\b")

    assert answer.status_code == 200, answer.text
    nowhere = {"url": None, "mark": None}
    place = {"repository": "project", "commit": world.repository.head(), "outdated": False, "masked": 0}
    line = {"end_line": 1, "column": 5, "text": "def remove_expired(sessions):", **nowhere}
    assert answer.json() == {
        "items": [
            {
                **(place | {"path": "docs/notes.md", "language": "markdown"}),
                "matches": [{"line": 3, "end_line": 3, "column": 1, "text": "remove_expired (Sessions)", **nowhere}],
            },
            {**(place | {"path": "src/sessions.py", "language": "python"}), "matches": [{"line": 1, **line}]},
        ],
        "is_complete": True,
        "stopped": None,
        "files_searched": 2,
        "missing": None,
    }


async def test_parameters_narrow_a_search_and_say_what_the_pattern_is(client: httpx.AsyncClient):
    async def paths(**query: object) -> list[str]:
        answer = await asks(client, **query)
        assert answer.status_code == 200, answer.text
        return [each["path"] for each in answer.json()["items"]]

    assert await paths(q="(sessions)", fixed="true") == ["src/sessions.py"]
    assert await paths(q="(sessions)", fixed="true", ignore_case="true") == ["docs/notes.md", "src/sessions.py"]
    assert await paths(q="remove", path="docs/") == ["docs/notes.md"]
    assert await paths(q="remove", language="py", repository=["project"]) == ["src/sessions.py"]
    assert await paths(q="nothing like it") == []
    document = (await asks(client, q="remove", limit=1)).json()
    assert (len(document["items"]), document["is_complete"]) == (1, False)
    assert "raise the limit" in document["stopped"]
    whole = (await asks(client, q="[m]")).json()
    count = sum(len(each["matches"]) for each in whole["items"])
    exactly = (await asks(client, q="[m]", limit=count)).json()
    assert whole["is_complete"] and exactly == whole, "nothing is left"


@pytest.mark.parametrize(
    ("query", "expected", "said"),
    [
        ({"q": "foo("}, (422, "USAGE"), "missing ): foo(, at character 1"),
        ({"q": r"(?=x)"}, (422, "USAGE"), "no look-around"),
        ({"q": ""}, (422, "REQUEST_INVALID"), "query.q"),
        ({"q": "x" * 1_001}, (422, "REQUEST_INVALID"), "query.q"),
        ({}, (422, "REQUEST_INVALID"), "query.q"),
        ({"q": "x", "path": "["}, (422, "USAGE"), "matches nothing"),
        ({"q": "x", "language": "pythn"}, (422, "USAGE"), "Did you mean"),
        ({"q": "x", "limit": 1_001}, (422, "REQUEST_INVALID"), "limit"),
        ({"q": "x", "repository": ["project", "unknown"]}, (404, "REPOSITORY_NOT_FOUND"), "unknown"),
    ],
)
async def test_what_cannot_be_searched_is_refused_with_its_reason(
    client: httpx.AsyncClient, query: dict[str, object], expected: tuple[int, str], said: str
):
    answer = await asks(client, **query)

    assert code(answer) == expected
    assert said in answer.text


async def test_calls_of_a_name_are_found_by_a_grep_and_by_a_search_alike(client: httpx.AsyncClient):
    greped = (await asks(client, q="remove", kind="call")).json()
    searched = await client.get("/api/v1/search", params={"q": "usages:remove lang:python"})

    (file,) = greped["items"]
    call = {"line": 2, "end_line": 2, "column": 12, "text": "    return remove(sessions)", "url": None}
    assert file["matches"] == [call | {"mark": "name only"}]
    assert (searched.json()["items"], searched.json()["words"]) == ([], "remove")
    assert searched.json()["usages"] == greped
    nothing = (await client.get("/api/v1/search", params={"q": "usages:remove_expired"})).json()
    assert (nothing["usages"]["items"], nothing["missing"]["reason"]) == ([], "no_match")


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/grep", {"q": "a b", "kind": "call"}, "not the name of what is called"),
        ("/grep", {"q": "remove", "kind": "call", "ignore_case": "true"}, "as it is written"),
        ("/search", {"q": "usages:remove sessions"}, "for words or for the calls of a name"),
        ("/search", {"q": "usages:remove symbol:x"}, "for words or for the calls of a name"),
        ("/search", {"q": "usages:remove usages:add"}, "one `usages`"),
    ],
)
async def test_calls_of_what_is_no_single_name_are_refused(
    client: httpx.AsyncClient, path: str, query: dict[str, str], said: str
):
    answer = await client.get(f"/api/v1{path}", params=query)

    assert code(answer) == (422, "USAGE")
    assert said in answer.text


async def test_the_page_of_the_search_shows_calls_with_their_marks(client: httpx.AsyncClient):
    page = (await client.get("/search", params={"q": "usages:remove"})).text
    none = (await client.get("/search", params={"q": "usages:remove_expired"})).text
    refused = (await client.get("/search", params={"q": "usages:remove sessions"})).text

    assert "<b>1 line</b>" in page
    assert '<span class="dim">name only</span>' in page and "/files/project/-/src/sessions.py?lines=2-2#L2" in page
    assert "<mark>remove</mark>" in page
    assert "No indexed line calls this name." in none
    assert "for words or for the calls of a name" in refused
