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
    place = {"repository": "project", "commit": world.repository.head(), "outdated": False, "masked": 0}
    line = {"end_line": 1, "column": 5, "text": "def remove_expired(sessions):", "url": None}
    assert answer.json() == {
        "items": [
            {
                **(place | {"path": "docs/notes.md", "language": "markdown"}),
                "matches": [{"line": 3, "end_line": 3, "column": 1, "text": "remove_expired (Sessions)", "url": None}],
            },
            {**(place | {"path": "src/sessions.py", "language": "python"}), "matches": [{"line": 1, **line}]},
        ],
        "is_complete": True,
        "stopped": None,
        "files_searched": 2,
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
