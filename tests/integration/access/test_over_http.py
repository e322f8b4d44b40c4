"""With `access: gitlab`: over HTTP, whoever GitLab knows sees the code that GitLab lets them read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from reposync.access.strangers import MAX_QUESTIONS, REFUSED_PER_MINUTE
from reposync.app.application import Application
from reposync.store.notifications import listen
from tests.fixtures.gitlab_server import User
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.rights_world import (
    FOLDERS,
    HOOK,
    INDEXER,
    PROJECTS,
    SERVICE,
    RightsWorld,
    asked,
    canary,
    found,
    listed,
    sent,
)

EVERYBODYS = "folder-of-everybody"
PAYMENTS = PROJECTS[1]


@pytest.fixture
def world(rights_world: RightsWorld) -> RightsWorld:
    return rights_world


@pytest.fixture
async def app(world: RightsWorld) -> AsyncGenerator[Application, None]:
    async with world.opened() as app:
        await world.index(app)
        yield app


@pytest.fixture
async def client(world: RightsWorld, app: Application) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with world.served(app) as client:
        yield client


@pytest.fixture
def ada(world: RightsWorld) -> User:
    return world.adds("ada")


def reporter(world: RightsWorld, user: User) -> None:
    world.projects[1].members[user.id] = 20


def guest(world: RightsWorld, user: User) -> None:
    world.projects[1].members[user.id] = 10


def invited_group(world: RightsWorld, user: User) -> None:
    world.gitlab.rights.groups["guild"].members[user.id] = 50
    world.projects[1].shares["guild"] = 20


def group_above(world: RightsWorld, user: User) -> None:
    world.gitlab.rights.groups["platform"].members[user.id] = 30


def internal(world: RightsWorld, user: User) -> None:
    world.projects[6].visibility = "internal"


def internal_for_an_external_user(world: RightsWorld, user: User) -> None:
    user.external = True
    world.projects[6].visibility = "internal"


def members_only(world: RightsWorld, user: User) -> None:
    world.projects[6].visibility, world.projects[6].repository_access_level = "public", "private"


def switched_off(world: RightsWorld, user: User) -> None:
    reporter(world, user)
    world.projects[1].repository_access_level = "disabled"


def transferred(world: RightsWorld, user: User) -> None:
    group_above(world, user)
    world.projects[1].move("research/payments")


def member_of_the_readers(world: RightsWorld, user: User) -> None:
    world.gitlab.rights.groups["platform"].members[user.id] = 10


@pytest.mark.parametrize(
    ("arrange", "sees"),
    [
        (reporter, {PAYMENTS}),
        (guest, set()),
        (invited_group, {PAYMENTS}),
        (group_above, {PROJECTS[1], PROJECTS[2], PROJECTS[3], "folder-of-members"}),
        (internal, {PROJECTS[6]}),
        (internal_for_an_external_user, set()),
        (members_only, set()),
        (switched_off, set()),
        (transferred, {PROJECTS[2], PROJECTS[3], "folder-of-members"}),
        (member_of_the_readers, {"folder-of-members"}),
    ],
)
async def test_a_reader_sees_what_gitlab_lets_them_read(
    world: RightsWorld,
    client: httpx.AsyncClient,
    ada: User,
    arrange: Callable[[RightsWorld, User], None],
    sees: set[str],
) -> None:
    arrange(world, ada)
    visible = sees | {EVERYBODYS}
    assert world.expected(ada) == visible

    assert await listed(client, ada) == visible
    assert await found(client, ada) == visible
    assert await found(client, ada, "/grep") == visible
    for name in world.names:
        file = await asked(client, f"/files/{name}/-/{canary(name)}.py", ada)
        assert (file.status_code == 200) is (name in visible), name
    history = await asked(client, "/runs", ada, limit=200)
    assert {row["repository"] for row in history.json()["items"]} == visible


async def test_both_headers_of_gitlab_are_accepted_and_service_tokens_see_everything(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    reporter(world, ada)
    for private in (False, True):
        answer = await client.get("/api/v1/repositories", headers=sent(ada, private=private))
        assert {row["name"] for row in answer.json()["items"]} == {PAYMENTS, EVERYBODYS}
    assert await listed(client, SERVICE) == set(world.names)
    assert (await client.get("/api/v1/repositories")).status_code == 401
    refused = await client.get("/api/v1/repositories", headers=sent("glpat-of-nobody", private=True))
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert "glpat-of-nobody" not in refused.text


async def test_the_indexing_token_itself_is_subject_to_what_gitlab_says_of_it(
    world: RightsWorld, client: httpx.AsyncClient
) -> None:
    answer = await asked(client, "/repositories", INDEXER)
    assert answer.status_code == 401


async def test_a_repository_is_hidden_until_the_number_of_its_project_is_known(
    world: RightsWorld, client: httpx.AsyncClient, app: Application, ada: User
) -> None:
    project = world.gitlab.add_project("platform/new", world.projects[1].repository.path, id=77)
    project.members[ada.id] = 30
    await listed(client, ada)
    await world.adopt(app, "\n  - {name: platform/new, gitlab: main, project: platform/new}")
    world.seconds.now += 2
    assert "platform/new" not in await listed(client, ada)
    world.gitlab.log.forget()

    await world.index(app, "platform/new")
    world.gitlab.log.forget()
    world.seconds.now += 2

    assert "platform/new" in await listed(client, ada)
    assert len(world.gitlab.log.matching("/api/graphql")) == 1


async def test_readers_of_a_folder_change_with_the_registry(
    world: RightsWorld, client: httpx.AsyncClient, app: Application, ada: User
) -> None:
    assert await listed(client, ada) == {EVERYBODYS}
    world.folders[EVERYBODYS] = "research"
    await world.adopt(app, "")
    world.seconds.now += 2

    assert await listed(client, ada) == set()


async def test_a_maintainer_may_start_a_sync_and_a_developer_may_not(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    world.projects[1].members[ada.id], world.projects[2].members[ada.id] = 40, 30

    async def syncs(name: str) -> int:
        path = f"/api/v1/repositories/{name.replace('/', '%2F')}/sync"
        return (await client.post(path, headers=sent(ada))).status_code

    assert [await syncs(PROJECTS[number]) for number in (1, 2, 3)] == [202, 403, 404]
    assert await syncs("no/such") == 404


# Removal --------------------------------------------------------------------------------------------------------------


async def test_who_was_removed_sees_nothing_after_a_minute(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    reporter(world, ada)
    assert PAYMENTS in await listed(client, ada)
    world.projects[1].members.clear()
    world.seconds.now += 60

    assert await listed(client, ada) == {EVERYBODYS}
    assert canary(PAYMENTS) not in (await asked(client, "/search", ada, q="shared word")).text


async def test_a_blocked_user_is_unknown(world: RightsWorld, client: httpx.AsyncClient, ada: User) -> None:
    reporter(world, ada)
    await listed(client, ada)
    ada.state = "blocked"
    world.seconds.now += 60
    assert (await asked(client, "/repositories", ada)).status_code == 401


async def test_while_gitlab_is_away_the_last_answer_counts_and_then_nothing_is_shown(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    reporter(world, ada)
    await listed(client, ada)
    world.gitlab.faults.answer(502, path="/api/", times=None)
    world.seconds.now += 299
    assert await found(client, ada) == {PAYMENTS, EVERYBODYS}

    world.seconds.now += 6
    answer = await asked(client, "/repositories", ada)

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "RIGHTS_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) > 0
    assert await listed(client, SERVICE) == set(world.names)


async def test_a_client_that_guesses_tokens_has_to_wait_and_others_do_not(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    await listed(client, ada)
    world.gitlab.log.forget()
    guesses = [asked(client, "/repositories", f"glpat-guess-{number}") for number in range(60)]
    answers = await asyncio.gather(*guesses)

    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {401, 429}
    most = REFUSED_PER_MINUTE + MAX_QUESTIONS
    assert statuses.count(401) <= most
    assert len(world.gitlab.log) <= most
    limited = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(limited.headers["Retry-After"]) <= 60
    assert await listed(client, ada) == {EVERYBODYS}


# System hooks ---------------------------------------------------------------------------------------------------------


def hook(world: RightsWorld, client: httpx.AsyncClient, token: str = HOOK) -> None:
    world.gitlab.system_hooks.hooks = [
        Hook(1, str(client.base_url.join("/api/v1/webhooks/gitlab-system")), token=token)
    ]


async def test_a_removal_that_gitlab_announces_is_effective_at_once(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    reporter(world, ada)
    hook(world, client)
    assert PAYMENTS in await listed(client, ada)
    world.projects[1].members.clear()
    assert PAYMENTS in await listed(client, ada)

    hooks = world.gitlab.system_hooks
    (delivery,) = await asyncio.to_thread(hooks.team, "user_remove_from_team", ada, world.projects[1])

    assert (delivery.status, delivery.answer) == (200, b'{"status":"forgotten"}')
    assert await listed(client, ada) == {EVERYBODYS}


async def test_every_event_about_rights_is_understood_and_others_are_ignored(
    world: RightsWorld, client: httpx.AsyncClient, ada: User
) -> None:
    hook(world, client)
    hooks, project = world.gitlab.system_hooks, world.projects[1]
    group = world.gitlab.rights.groups["platform"]

    def deliveries() -> list[tuple[str, int | None]]:
        events = [
            hooks.team("user_add_to_team", ada, project),
            hooks.group_member("user_remove_from_group", ada, group),
            hooks.project("project_update", project),
            hooks.project("project_transfer", project, old_path_with_namespace="old/path"),
            hooks.group("group_destroy", group),
            hooks.user("user_failed_login", ada),
            hooks.send({"event_name": "user_something_new"}),
            hooks.send({"event_name": "project_something_new", "project_id": "one"}),
        ]
        ignored = [hooks.send({"event_name": name}) for name in ("key_create", "push", "anything", "group_create")]
        return [(each.answer.decode(), each.status) for (each,) in [*events, *ignored]]

    answers = await asyncio.to_thread(deliveries)
    assert answers == [('{"status":"forgotten"}', 200)] * 8 + [('{"status":"ignored"}', 200)] * 4


async def test_only_gitlab_may_announce(world: RightsWorld, client: httpx.AsyncClient, ada: User) -> None:
    reporter(world, ada)
    await listed(client, ada)
    world.gitlab.log.forget()
    hook(world, client, "not-the-secret-of-system-hooks")
    (delivery,) = await asyncio.to_thread(world.gitlab.system_hooks.user, "user_destroy", ada)
    assert delivery.status == 401
    path = "/api/v1/webhooks/gitlab-system"
    headers = {"X-Gitlab-Token": HOOK, "X-Gitlab-Event": "System Hook"}
    for body, status in (("{}", 422), ("[]", 422), ("{", 422), ('{"event_name": 7}', 422)):
        assert (await client.post(path, content=body, headers=headers)).status_code == status
    assert (await client.post(path, content="{}", headers={"X-Gitlab-Token": HOOK})).status_code == 422
    await listed(client, ada)
    assert not world.gitlab.log


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_an_event_at_one_pod_is_effective_at_the_others(world: RightsWorld, ada: User, database_url: str) -> None:
    world.database_url = database_url
    reporter(world, ada)
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(world.opened(pod)) for pod in ("one", "two")]
        await world.index(one, PAYMENTS)
        clients = [await stack.enter_async_context(world.served(app)) for app in (one, two)]
        heard, connected = asyncio.Event(), asyncio.Event()
        two.database.hear(lambda text: heard.set() if text == f"{ada.id}:1" else connected.set())
        listening = asyncio.ensure_future(listen(two.database))
        stack.callback(listening.cancel)
        await asyncio.wait_for(connected.wait(), PATIENCE_SECONDS)
        for client in clients:
            assert PAYMENTS in await listed(client, ada)
        world.projects[1].members.clear()
        hook(world, clients[0])

        await asyncio.to_thread(world.gitlab.system_hooks.team, "user_remove_from_team", ada, world.projects[1])

        assert PAYMENTS not in await listed(clients[0], ada)
        await asyncio.wait_for(heard.wait(), PATIENCE_SECONDS)
        assert PAYMENTS not in await listed(clients[1], ada)


def test_every_folder_and_project_has_its_own_words() -> None:
    names = [*PROJECTS.values(), *FOLDERS]
    assert len({canary(name) for name in names}) == len(names)
