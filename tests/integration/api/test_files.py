"""Reading indexed files over HTTP."""

from __future__ import annotations

import httpx
import pytest

from reposync.store.repository import Registration
from reposync.words import file_address
from tests.fixtures.missing_blobs import lose
from tests.fixtures.world import World
from tests.integration.api.serving import code

API = "/api/v1"
FILE = f"{API}/files/project/-/src/sessions.py"
SESSIONS = "def remove_expired(sessions, now):\r\n    return [s for s in sessions if s.expires > now]\r\n\nlast = 'é'"

FILES = {"src/sessions.py": SESSIONS.encode(), "x/-/a b%2F#?.txt": b"odd\n", "logo.png": b"\0"}


async def test_a_file_is_read_with_what_is_known_about_it(world: World, client: httpx.AsyncClient):
    answer = await client.get(FILE)

    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "repository": "project",
        "path": "src/sessions.py",
        "commit": world.repository.head(),
        "language": "python",
        "url": None,
        "start_line": 1,
        "end_line": 4,
        "total_lines": 4,
        "outdated": False,
        "masked": 0,
        "is_notebook": False,
        "text": SESSIONS,
        "symbols": [{"name": "remove_expired", "kind": "function", "start_line": 1, "end_line": 2}],
    }


async def test_lines_and_plain_text_are_given_on_request(client: httpx.AsyncClient):
    lines = (await client.get(FILE, params={"start": 2, "end": 3})).json()
    assert (lines["start_line"], lines["end_line"], lines["text"].count("\n")) == (2, 3, 2)
    assert (await client.get(FILE, params={"start": 4, "end": 99})).json()["text"] == "last = 'é'"

    text = await client.get(FILE, headers={"Accept": "text/plain"})
    assert (text.content.decode(), text.headers["content-type"]) == (SESSIONS, "text/plain; charset=utf-8")
    browser = await client.get(FILE, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert browser.headers["content-type"] == "application/json"


async def test_what_the_client_has_already_is_not_sent_again(world: World, client: httpx.AsyncClient):
    for headers in ({}, {"Accept": "text/plain"}):
        answer = await client.get(FILE, headers=headers)
        assert answer.headers["vary"] == "Authorization, Cookie, Accept"
        asked = {**headers, "If-None-Match": answer.headers["etag"]}
        again = await client.get(FILE, headers=asked)
        assert (again.status_code, again.content) == (304, b"")
        other = {**asked, "Accept": "application/json" if headers else "text/plain"}
        assert (await client.get(FILE, headers=other)).status_code == 200
    world.repository.commit({"src/sessions.py": b"new = 1\n"})
    await world.completed()
    assert (await client.get(FILE, headers=asked)).status_code == 200


async def test_what_does_not_fit_is_refused_with_a_reason(client: httpx.AsyncClient):
    assert code(await client.get(FILE, params={"start": 0})) == (422, "REQUEST_INVALID")
    assert code(await client.get(FILE, params={"start": 10**10})) == (422, "REQUEST_INVALID")
    assert code(await client.get(FILE, params={"lines": "1-2"})) == (422, "REQUEST_INVALID")
    assert code(await client.get(FILE, params={"start": 3, "end": 2})) == (422, "USAGE")
    beyond = await client.get(FILE, params={"start": 5})
    assert code(beyond) == (422, "LINES_NOT_FOUND")
    assert "It has 4 lines." in beyond.text
    assert code(await client.get(f"{API}/files/projekt/-/a.py")) == (404, "REPOSITORY_NOT_FOUND")
    missing = await client.get(f"{API}/files/project/-/sessions.py")
    assert code(missing) == (404, "FILE_NOT_INDEXED")
    assert "src/sessions.py" in missing.text
    skipped = await client.get(f"{API}/files/project/-/logo.png")
    assert "excluded by the rule binary" in skipped.json()["error"]["message"]
    for path in ("project", "project/src/sessions.py", "project/-/", "-/src/sessions.py"):
        assert code(await client.get(f"{API}/files/{path}")) == (404, "NOT_FOUND")


async def test_a_path_may_hold_what_addresses_give_a_meaning(client: httpx.AsyncClient):
    address = f"{API}{file_address('project', 'x/-/a b%2F#?.txt')}"
    assert (await client.get(address)).json()["text"] == "odd\n"
    assert (await client.get(address.replace("x/-/", "x%2F-%2F"))).json()["text"] == "odd\n"


@pytest.mark.parametrize("path", ["two\nlines.py", "line\n", "a\tb.py", "bell\x07.py", "new\x85line\u2028.py"])
async def test_a_file_is_read_whatever_characters_its_name_has(
    world: World, client: httpx.AsyncClient, path: str
) -> None:
    world.repository.commit({path: b"odd = 1\n"})
    await world.completed()
    answer = await client.get(f"{API}{file_address('project', path)}")
    assert (answer.status_code, answer.json()["text"], answer.json()["path"]) == (200, "odd = 1\n", path)
    assert code(await client.get(f"{API}/files/project/-/a%00b.py")) == (422, "REQUEST_INVALID")


async def test_the_name_of_a_repository_may_have_slashes(world: World, client: httpx.AsyncClient):
    for name in ("platform/api", "platform/-/api", "sync"):
        where = Registration(name=name, location=f"/{name}", source="path", origin="command", collection="code")
        await world.app.repositories.register(where)
        for address in {file_address(name, "a/sync"), f"/files/{name.replace('/', '%2F')}/-/a/sync"}:
            answer = await client.get(f"{API}{address}")
            assert f"Nothing of '{name}' is indexed yet" in answer.text


async def test_a_file_whose_newer_state_could_not_be_read_is_the_older_one_and_says_so(
    world: World, client: httpx.AsyncClient
):
    before = world.repository.head()
    world.repository.commit({"src/sessions.py": b"new = 1\n", "fine.py": b"x = 1\n"})
    lose(world.repository, "src/sessions.py")
    await world.completed()

    read = (await client.get(FILE)).json()

    assert (read["text"], read["outdated"], read["commit"]) == (SESSIONS, True, before)
