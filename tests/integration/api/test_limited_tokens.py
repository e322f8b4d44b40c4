"""A token that is for some of the repositories: the others do not exist for it, in any answer of the HTTP side."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest

from reposync.api.auth import Access
from reposync.api.service_tokens import Token
from reposync.app.application import Application
from reposync.config.sections import HttpConfig
from reposync.config.settings import ApiToken
from reposync.errors import ConfigError
from reposync.operations.core import Actor, Rule
from reposync.store.repository import Registration
from reposync.visible import EVERYTHING, Visible
from tests.fixtures.limited_world import (
    ABSENT,
    HIDDEN,
    OPEN,
    OPERATES,
    QUESTION,
    READS,
    SHARED,
    LimitedWorld,
    limited_world,
    requests_of,
)
from tests.fixtures.world import World
from tests.integration.api.serving import bearer, code

ALL = "token-that-may-everything"


@pytest.fixture
async def limited(closed_world: World) -> AsyncIterator[LimitedWorld]:
    async with limited_world(closed_world) as found:
        yield found


# Nothing of what is hidden -------------------------------------------------------------------------------------------


async def test_no_answer_shows_anything_of_a_hidden_repository_nor_that_it_exists(limited: LimitedWorld):
    runs = await limited.app.history.runs(HIDDEN)

    assert [leak async for leak in limited.leaks()] == []

    assert await limited.app.history.runs(HIDDEN) == runs, "a hidden run was changed, or there is a new one"
    assert (await limited.app.repositories.get(HIDDEN)).is_active


async def test_a_token_for_all_repositories_sees_what_is_hidden_from_others(limited: LimitedWorld):
    """Else the walk would find nothing whatever it does."""
    for path in ("/api/v1/repositories", "/api/v1/runs", f"/api/v1/search?q={QUESTION}", "/metrics", "/readyz", "/"):
        answer = await limited.client.get(path, headers=bearer(ALL))
        assert answer.status_code == 200 and HIDDEN in answer.text, path


def test_a_route_that_the_walk_does_not_know_fails_it(limited: LimitedWorld):
    with pytest.raises(KeyError):
        requests_of(("GET", "/api/v1/everything"), limited.hidden, limited.canaries)


Plant = Callable[[pytest.MonkeyPatch, LimitedWorld], None]


def _view_with(name: str) -> Plant:
    """One part of a limited application reads the whole database."""

    def plant(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
        limit = Application._limited_to

        def leaky(app: Application, visible: Visible) -> Application:
            view = limit(app, visible)
            setattr(view, name, getattr(app, name))
            return view

        patch.setattr(Application, "_limited_to", leaky)

    return plant


def _rule(changed: Rule, to: Rule) -> Plant:
    """A rule is taken for a different one."""

    def plant(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
        may = Actor.may
        patch.setattr(Actor, "may", lambda actor, rule: may(actor, to if rule is changed else rule))

    return plant


def _whole_for_readers(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
    """A rule gives the application as it is."""

    async def application(rule: Rule, app: Application, actor: Actor, named: Mapping[str, Any]) -> Any:
        actor.require(rule)
        return app, {}

    patch.setattr(Rule, "application", application)


def _maintains_unseen(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
    """A repository is changed by its name, without a look whether it exists for the actor."""
    limit = Rule.application

    async def application(rule: Rule, app: Application, actor: Actor, named: Mapping[str, Any]) -> Any:
        return (app, {}) if rule is Rule.MAINTAIN and actor.may(rule) else await limit(rule, app, actor, named)

    patch.setattr(Rule, "application", application)


def _token_for_all(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
    """A token's patterns are not looked at."""

    async def visible(token: Token, names: object) -> Visible:
        return EVERYTHING

    patch.setattr(Token, "visible", visible)


def _stale_view(patch: pytest.MonkeyPatch, world: LimitedWorld) -> None:
    """The application of one actor is given to another."""
    ids = frozenset([world.hidden.identity, world.open.identity])
    view = world.app.limited(Visible(ids))
    patch.setattr(Application, "limited", lambda app, visible: app if visible.is_everything else view)


PLANTS: Mapping[str, Plant] = {
    **{f"all {name}": _view_with(name) for name in ("database", "repositories", "history", "searching", "findings")},
    "figures of repositories": _rule(Rule.READ_EVERYTHING, Rule.READ),
    "the application as it is": _whole_for_readers,
    "writes without a look at the repository": _maintains_unseen,
    "operators of some operate all": _rule(Rule.OPERATE, Rule.MAINTAIN),
    "a token for all": _token_for_all,
    "the view of a different actor": _stale_view,
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
async def test_the_walk_finds_a_leak(limited: LimitedWorld, monkeypatch: pytest.MonkeyPatch, plant: Plant):
    plant(monkeypatch, limited)

    async for leak in limited.leaks():
        print(leak)
        return
    raise AssertionError("the walk found nothing")


# What is shown, and what may be done ---------------------------------------------------------------------------------


async def test_a_reader_finds_and_reads_the_repositories_of_the_token(limited: LimitedWorld):
    client, reads = limited.client, bearer(READS)

    listed = (await client.get("/api/v1/repositories", headers=reads)).json()["items"]
    hits = (await client.get("/api/v1/search", params={"q": QUESTION}, headers=reads)).json()["items"]
    lines = (await client.get("/api/v1/grep", params={"q": "striped"}, headers=reads)).json()["items"]
    text = (await client.get(f"/api/v1/files/{OPEN}/-/src/lib.py", headers=reads)).json()["text"]
    runs = (await client.get("/api/v1/runs", headers=reads)).json()["items"]

    assert [each["name"] for each in listed] == [OPEN, SHARED]
    assert {each["repository"] for each in hits} == {each["repository"] for each in lines} == {OPEN, SHARED}
    assert "open_striped" in text
    assert {each["repository"] for each in runs} == {OPEN, SHARED}
    assert code(await client.post(f"/api/v1/repositories/{OPEN}/sync", headers=reads)) == (403, "FORBIDDEN")


async def test_an_operator_syncs_and_pauses_the_repositories_of_the_token_and_registers_none(limited: LimitedWorld):
    client, operates = limited.client, bearer(OPERATES)
    place = f"/api/v1/repositories/{OPEN}"

    async def asked(method: str, path: str, body: Any = None) -> httpx.Response:
        return await client.request(method, path, json=body, headers=operates)

    run = (await asked("POST", f"{place}/sync")).json()
    assert (run["repository"], run["asked_by"]) == (OPEN, ["deploy"])
    cancelled = await asked("POST", f"/api/v1/runs/{run['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    paused = (await asked("PATCH", place, {"is_active": False, "paused_reason": "Until Friday."})).json()
    assert (paused["state"], paused["paused_reason"]) == ("paused", "Until Friday.")
    assert (await asked("PATCH", place, {"is_active": True})).json()["state"] == "active"
    for method, path, body in (
        ("PATCH", place, {"schedule": "never"}),
        ("POST", f"{place}/sync", {"allow_mass_delete": True}),
        ("DELETE", place, None),
        ("POST", "/api/v1/repositories", {"name": "platform/new", "git": "https://example.com/new.git"}),
        ("GET", "/api/v1/groups", None),
    ):
        assert code(await asked(method, path, body)) == (403, "FORBIDDEN"), (method, path, body)


async def test_what_is_registered_renamed_or_removed_counts_at_the_next_request(limited: LimitedWorld):
    async def names() -> list[str]:
        answer = await limited.client.get("/api/v1/repositories", headers=bearer(READS))
        return [each["name"] for each in answer.json()["items"]]

    repositories = limited.app.repositories
    new = Registration(name="platform/new", location="/new", source="path", origin="command", collection="code")
    assert await names() == [OPEN, SHARED]
    row = await repositories.register(new)
    assert await names() == ["platform/new", OPEN, SHARED]
    await repositories.rename(row, "elsewhere/new")
    assert await names() == [OPEN, SHARED]
    await repositories.rename(await repositories.get(HIDDEN), "platform/quagga")
    assert await names() == [OPEN, "platform/quagga", SHARED]
    await repositories.remove("platform/quagga")
    assert await names() == [OPEN, SHARED]


async def test_an_answer_is_unchanged_only_for_what_this_token_may_see(limited: LimitedWorld):
    """The tag of a list that somebody else got is not the tag of one's own."""
    everything = await limited.client.get("/api/v1/repositories", headers=bearer(ALL))
    own = await limited.client.get("/api/v1/repositories", headers=bearer(READS))
    foreign = {"If-None-Match": everything.headers["etag"]}

    assert everything.headers["etag"] != own.headers["etag"]
    assert (await limited.client.get("/api/v1/repositories", headers=bearer(READS) | foreign)).status_code == 200
    assert "authorization" in own.headers["vary"].lower()


async def test_a_session_in_a_browser_sees_what_its_token_sees(limited: LimitedWorld):
    client = limited.client
    assert (await client.post("/login", data={"token": OPERATES})).status_code == 303

    home = (await client.get("/", headers={"Accept": "text/html"})).text
    assert OPEN in home and HIDDEN not in home
    assert 'value="platform/open"' in home and "retry-failed" not in home
    done = await client.post("/actions/sync", data={"name": OPEN})
    assert done.headers["location"].startswith("/runs/")
    hidden, absent = [await client.post("/actions/sync", data={"name": name}) for name in (HIDDEN, ABSENT)]
    assert hidden.status_code == absent.status_code == 404


async def test_one_actor_at_a_time_is_seen_by_each_of_many_tokens(limited: LimitedWorld):
    """Applications are kept for those who ask again, and each has its own."""
    app, whole = limited.app, await limited.app.repositories.names()
    ids = {row.name: row.id for row in await app.repositories.list()}
    for _ in range(3):
        for name, identity in ids.items():
            assert await app.limited(Visible(frozenset({identity}))).repositories.names() == [name]
    assert await app.repositories.names() == whole
    view = app.limited(Visible(frozenset({ids[OPEN]})))
    assert view is app.limited(Visible(frozenset({ids[OPEN]})))
    assert view.searches is app.searches and copy.copy(view.indexes) == app.indexes


def test_a_token_that_is_given_twice_is_an_error():
    token = ApiToken.parse("read:0123456789abcdef")
    limited = ApiToken("read", token.secret, "search", ("a/**",))
    with pytest.raises(ConfigError, match="REPOSYNC_API_TOKEN"):
        Access([token, limited], HttpConfig())
