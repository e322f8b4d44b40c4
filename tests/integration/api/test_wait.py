"""Waiting over HTTP until a commit, or one that comes after it, can be searched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
from sqlalchemy import update

from reposync.app.commit_wait import SearchableCommits
from reposync.store import notifications
from reposync.store.tables import REPOSITORIES
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.world import World
from tests.integration.api.serving import OPERATOR, READER, TOKENS, bearer, code, eventually, serving

TOKEN = "glpat-waiting"
_LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


async def asks(client: httpx.AsyncClient, commit: str, seconds: float = 0, name: str = "project") -> httpx.Response:
    return await client.get(f"/api/v1/repositories/{name}/wait", params={"commit": commit, "timeout": seconds})


async def test_a_commit_is_searchable_once_its_sync_is_completed(world: World, client: httpx.AsyncClient):
    first = world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    second = world.repository.commit({"b.py": b"y = 2\n"})

    assert code(await asks(client, second)) == (504, "NOT_SEARCHABLE_YET")
    waiting = asyncio.create_task(asks(client, second, 60))
    await world.completed()
    answer = await waiting

    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["repository"], found["commit"], found["relation"]) == ("project", second, "same")
    assert found["last_commit"] == second and found["last_sync_at"] is not None
    older = (await asks(client, first.upper()[:7])).json()
    assert (older["relation"], older["last_commit"], older["commit"]) == ("descendant", second, first.upper()[:7])


async def test_the_timeout_responds_with_the_current_state(world: World, client: httpx.AsyncClient):
    first = world.repository.commit({"a.py": b"x = 1\n"})
    run = await world.completed()
    second = world.repository.commit({"b.py": b"y = 2\n"})

    answer = await asks(client, second, 0.2)

    assert code(answer) == (504, "NOT_SEARCHABLE_YET")
    details = answer.json()["error"]["details"]
    assert (details["last_commit"], details["commit"], details["run"]["id"]) == (first, second, run.id)
    assert details["run"]["completed_at"].endswith("Z")
    assert (details["tells_descendants"], details["trouble"], details["is_active"]) == (True, None, True)
    assert f"the index holds {first[:10]}. Its latest run " in answer.text


async def test_a_commit_on_another_branch_is_not_searchable_however_old_it_is(world: World, client: httpx.AsyncClient):
    base = world.repository.commit({"a.py": b"x = 1\n"})
    aside = world.repository.commit({"b.py": b"y = 2\n"}, branch="aside", parents=[base])
    # The clock of whoever committed this was wrong: it seems to be older than its parents.
    odd = world.repository.commit({"c.py": b"z = 3\n"}, parents=[base], when=_LONG_AGO)
    head = world.repository.commit({"d.py": b"u = 4\n"})
    unrelated = world.repository.commit({"e.py": b"v = 5\n"}, branch="unrelated", parents=[])
    merge = world.repository.commit({"f.py": b"w = 6\n"}, parents=[head, aside], branch="merged")
    await world.completed()

    answers = {name: await asks(client, name) for name in (base, odd, head, aside, unrelated, merge)}

    assert {name: each.status_code for name, each in answers.items()} == {
        base: 200,
        odd: 200,
        head: 200,
        aside: 504,
        unrelated: 504,
        merge: 504,
    }
    world.repository.force(merge)
    await world.completed()
    merged = await asks(client, aside)
    assert merged.status_code == 200, merged.text
    assert merged.json()["relation"] == "descendant"


async def test_of_a_folder_of_a_different_machine_the_indexed_commit_is_known(world: World, client: httpx.AsyncClient):
    commit = world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    world.repository.path.rename(world.folder / "elsewhere.git")
    await world.app.database.change(update(REPOSITORIES).values(origin_host="laptop"))

    found = (await asks(client, commit)).json()
    assert (found["relation"], found["tells_descendants"]) == ("same", False)
    other = await asks(client, "0" * 40)
    assert code(other) == (504, "NOT_SEARCHABLE_YET")
    assert "only the indexed commit itself is known" in other.text and "laptop" in other.text


async def test_what_cannot_be_waited_for_is_refused_at_once(world: World, client: httpx.AsyncClient):
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    tree = world.repository.git("rev-parse", "HEAD^{tree}").decode().strip()

    assert code(await asks(client, "0" * 40, 60)) == (404, "COMMIT_NOT_FOUND")
    assert code(await asks(client, tree, 60)) == (404, "COMMIT_NOT_FOUND")
    assert code(await asks(client, "0" * 40, 60, name="nobody")) == (404, "REPOSITORY_NOT_FOUND")
    for commit, seconds in (("abc", 1), ("main", 1), ("a" * 40, 301), ("a" * 40, -1)):
        assert code(await asks(client, commit, seconds)) == (422, "REQUEST_INVALID"), (commit, seconds)


async def test_waiting_clients_are_limited_and_end_with_the_server(world: World):
    world.app.commits = SearchableCommits(world.app, max_waiting=1)
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    later = world.repository.commit({"b.py": b"y = 2\n"})
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as outside:
        async with serving(world.app) as client:
            outside.base_url = client.base_url
            waiting = asyncio.create_task(asks(outside, later, 300))

            async def is_refused() -> bool:
                nonlocal waiting
                if waiting.done():  # this one came first
                    waiting = asyncio.create_task(asks(outside, later, 300))
                return code(await asks(client, later)) == (503, "TOO_MANY_WATCHERS")

            await eventually(is_refused)
        answer = await waiting
    assert code(answer) == (503, "SHUTTING_DOWN")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_token_takes_no_more_than_its_share_of_the_waits(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifications, "MAX_OF_A_CLIENT", 2)
    world.repository.commit({"a.py": b"x = 1\n"})
    await world.completed()
    later = world.repository.commit({"b.py": b"y = 2\n"})
    async with serving(world.app, *TOKENS) as client:
        client.headers = bearer(READER)
        async with httpx.AsyncClient(
            base_url=client.base_url, timeout=PATIENCE_SECONDS, headers=bearer(READER)
        ) as greedy:
            holding = [asyncio.create_task(asks(greedy, later, 300)) for _ in range(2)]

            async def is_refused() -> bool:
                for number, each in enumerate(holding):
                    if each.done():  # the one below came first
                        holding[number] = asyncio.create_task(asks(greedy, later, 300))
                return code(await asks(client, later)) == (503, "TOO_MANY_WATCHERS")

            await eventually(is_refused)
            client.headers = bearer(OPERATOR)
            assert code(await asks(client, later)) == (504, "NOT_SEARCHABLE_YET")
            for each in holding:
                each.cancel()
            await asyncio.gather(*holding, return_exceptions=True)


# GitLab and plain git ------------------------------------------------------------------------------------------------


@pytest.fixture
def gitlab(closed_world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitLabServer]:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    with GitLabServer() as server:
        server.add_token(TOKEN, scopes=("read_api", "read_repository"))
        server.add_project("platform/api", closed_world.repository.path, id=42, visibility="public")
        registered = (
            "  - {name: api, gitlab: main, project: platform/api}\n"
            f"  - {{name: plain, git: '{server.url}/platform/api.git'}}\n"
            f"gitlab: [{{name: main, url: '{server.url}', token: '${{GITLAB_TOKEN}}'}}]\n"
        )
        closed_world.configure(extra=registered)
        yield server


async def test_clients_that_wait_for_one_commit_share_one_call_to_gitlab(gitlab: GitLabServer, closed_world: World):
    first = closed_world.repository.commit({"a.py": b"x = 1\n"})
    second = closed_world.repository.commit({"b.py": b"y = 2\n"})
    aside = closed_world.repository.commit({"c.py": b"z = 3\n"}, branch="aside", parents=[])
    async with closed_world.opened() as world, serving(world.app) as client:
        await world.completed("api")
        asked = len(_merge_bases(gitlab))

        found = await asyncio.gather(*(asks(client, first[:9], 30, name="api") for _ in range(20)))
        same = await asks(client, second, name="api")
        other = await asks(client, aside, name="api")
        unknown = await asks(client, "0" * 40, name="api")

        assert {(each.status_code, each.json()["relation"]) for each in found} == {(200, "descendant")}
        assert same.json()["relation"] == "same"
        assert code(other) == (504, "NOT_SEARCHABLE_YET")
        assert code(unknown) == (404, "COMMIT_NOT_FOUND")
        assert len(_merge_bases(gitlab)) - asked == 3


async def test_an_unavailable_gitlab_is_named_and_called_again(gitlab: GitLabServer, closed_world: World):
    first = closed_world.repository.commit({"a.py": b"x = 1\n"})
    second = closed_world.repository.commit({"b.py": b"y = 2\n"})
    async with closed_world.opened() as world, serving(world.app) as client:
        await world.completed("api")
        gitlab.faults.answer(403, path=".*/merge_base")

        refused = await asks(client, first, name="api")
        same = await asks(client, second, name="api")
        gitlab.faults.clear()
        again = await asks(client, first, name="api")

    assert code(refused) == (504, "NOT_SEARCHABLE_YET")
    assert "may not read the repository" in refused.json()["error"]["details"]["trouble"]
    assert TOKEN not in refused.text
    assert same.status_code == again.status_code == 200


async def test_for_a_plain_git_server_the_indexed_commit_counts_and_a_run_that_began_after_the_request(
    gitlab: GitLabServer, closed_world: World
):
    first = closed_world.repository.commit({"a.py": b"x = 1\n"})
    second = closed_world.repository.commit({"b.py": b"y = 2\n"})
    async with closed_world.opened() as world, serving(world.app) as client:
        await world.completed("plain")

        assert (await asks(client, second[:8], name="plain")).json()["relation"] == "same"
        unknown = await asks(client, first, name="plain")
        assert code(unknown) == (504, "NOT_SEARCHABLE_YET")
        details = unknown.json()["error"]["details"]
        assert details["tells_descendants"] is False
        assert "cannot compare commits" in details["limit"]

        waiting = asyncio.create_task(asks(client, first, 60, name="plain"))
        await asyncio.sleep(0)  # the request is sent
        while not waiting.done():
            await world.completed("plain")
        assert (await waiting).json()["relation"] == "later"


def _merge_bases(server: GitLabServer) -> list[object]:
    return [each for each in server.log if "/merge_base" in each.path]
