"""With `access: gitlab` the administrator reads who searched and read what, whatever the front end."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from reposync.app.application import Application
from tests.fixtures.gitlab_server import User
from tests.fixtures.rights_world import AUDIENCE, PROJECTS, SERVICE, RightsWorld, asked, canary, sent
from tests.integration.api.test_mcp import agent, called

PAYMENTS, BILLING = PROJECTS[1], PROJECTS[2]


@pytest.fixture
def world(rights_world: RightsWorld) -> RightsWorld:
    return rights_world


@pytest.fixture
async def app(world: RightsWorld) -> AsyncGenerator[Application, None]:
    async with world.opened() as app:
        await world.index(app, PAYMENTS, BILLING)
        yield app


@pytest.fixture
async def client(world: RightsWorld, app: Application) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with world.served(app) as client:
        yield client


@pytest.fixture
def ada(world: RightsWorld) -> User:
    user = world.adds("ada")
    world.projects[1].members[user.id] = 20
    return user


async def audit(app: Application, client: httpx.AsyncClient, **filters: Any) -> list[dict[str, Any]]:
    """Oldest first."""
    await app.audit.flush()
    answer = await asked(client, "/audit", SERVICE, **filters)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items[::-1]


def words(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in ("actor", "operation", "repositories", "hits", "outcome"))


async def test_each_search_grep_and_read_is_recorded(app: Application, client: httpx.AsyncClient, ada: User) -> None:
    path = f"{canary(PAYMENTS)}.py"
    for address, query in (
        ("/search", {"q": "shared word"}),
        ("/grep", {"q": "shared"}),
        (f"/files/{PAYMENTS}/-/{path}", {}),
        (f"/repositories/{PAYMENTS}/outline", {"path": path}),
        ("/repositories", {}),
    ):
        answer = await client.get(f"/api/v1{address}", params=query, headers=sent(ada))
        assert answer.status_code == 200, answer.text
    entries = await audit(app, client)
    assert [words(entry) for entry in entries[:4]] == [
        ("@ada", "search", [PAYMENTS], 1, "ok"),
        ("@ada", "grep", [PAYMENTS], 1, "ok"),
        ("@ada", "read", [PAYMENTS], None, "ok"),
        ("@ada", "outline", [PAYMENTS], None, "ok"),
    ]
    assert entries[4]["operation"] == "list_repositories"
    assert {(entry["via"], entry["address"]) for entry in entries} == {("http", "127.0.0.1")}


async def test_what_somebody_tried_to_see_is_recorded_too(
    app: Application, client: httpx.AsyncClient, ada: User
) -> None:
    answer = await asked(client, f"/files/{BILLING}/-/{canary(BILLING)}.py", ada)
    assert answer.status_code == 404
    entries = await audit(app, client)
    assert [words(entry) for entry in entries] == [("@ada", "read", [BILLING], None, "REPOSITORY_NOT_FOUND")]


async def test_calls_of_tools_are_recorded_once_each(
    world: RightsWorld, app: Application, client: httpx.AsyncClient
) -> None:
    url = str(client.base_url).rstrip("/")
    job = world.gitlab.jobs.sign(world.gitlab.jobs.claims(world.projects[1], AUDIENCE))
    async with agent(url, Authorization=f"Bearer {job}") as tools:
        await called(tools, "search_code", q="shared word")
        await called(tools, "grep_code", q="shared")
        await called(tools, "list_repositories")
    entries = await audit(app, client)
    name = f"job 302 of {PAYMENTS}"
    assert [(entry["actor"], entry["via"], entry["operation"], entry["hits"]) for entry in entries] == [
        (name, "mcp", "search", 1),
        (name, "mcp", "grep", 1),
        (name, "mcp", "list_repositories", 1),
    ]


async def test_the_words_of_queries_are_kept_only_on_request(
    world: RightsWorld, app: Application, client: httpx.AsyncClient, ada: User
) -> None:
    await asked(client, "/search", ada, q="a secret wish")
    await world.adopt(app, "\naudit: {queries: true}")
    await asked(client, "/grep", ada, q="another wish")
    assert [entry["query"] for entry in await audit(app, client)] == [None, "another wish"]


async def test_nothing_is_recorded_if_the_operator_does_not_want_it(
    world: RightsWorld, app: Application, client: httpx.AsyncClient, ada: User
) -> None:
    await world.adopt(app, "\naudit: {enabled: false}")
    await asked(client, "/search", ada, q="shared word")
    assert await audit(app, client) == []


async def test_the_audit_is_not_for_readers(client: httpx.AsyncClient, ada: User) -> None:
    assert (await asked(client, "/audit", ada)).status_code == 403


async def test_pages_of_the_audit_follow_each_other(app: Application, client: httpx.AsyncClient, ada: User) -> None:
    for number in range(5):
        await asked(client, "/search", ada, q=f"word {number}")
    await app.audit.flush()
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while cursor is not None:
        page = (await asked(client, "/audit", SERVICE, limit=2, actor="@ada", **cursor)).json()
        seen += [entry["id"] for entry in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == len(set(seen)) == 5
    refused = await asked(client, "/audit", SERVICE, cursor="bm9uc2Vuc2U")
    assert refused.status_code == 422


async def test_filters_find_what_a_person_did_with_a_repository(
    app: Application, client: httpx.AsyncClient, ada: User
) -> None:
    await asked(client, "/search", ada, q="shared word")
    await asked(client, "/search", SERVICE, q=canary(BILLING))
    assert "@ada" in {entry["actor"] for entry in await audit(app, client, repository=PAYMENTS, operation="search")}
    assert {entry["actor"] for entry in await audit(app, client, actor="@ada")} == {"@ada"}
