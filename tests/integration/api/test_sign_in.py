"""Signing in at GitLab with a browser: forged ways back, other sites, several pods, and tokens of one's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import Engine, event

from reposync.store.database import Database
from tests.fixtures.databases import database_kind, open_database  # noqa: F401
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_server.rights import User
from tests.integration.api.people import SERVICE_TOKEN, Pod, pod, shown_secret, sign_in
from tests.integration.api.serving import bearer, code

OpenDatabase = Callable[[], Awaitable[Database]]
SESSION = "reposync-session"


@pytest.fixture
def gitlab() -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        yield server


@pytest.fixture
def ann(gitlab: GitLabServer) -> User:
    gitlab.oauth.signed_in = user = gitlab.rights.add_user("ann")
    return user


@pytest.fixture
async def pods(gitlab: GitLabServer, open_database: OpenDatabase) -> AsyncIterator[tuple[Pod, Pod]]:  # noqa: F811
    async with contextlib.AsyncExitStack() as stack:
        here = await stack.enter_async_context(pod(gitlab, await open_database()))
        there = pod(gitlab, await open_database(), public_url=here.public_url)
        yield here, await stack.enter_async_context(there)


async def test_a_page_leads_to_gitlab_and_back_to_the_page(pods: tuple[Pod, Pod], ann: User) -> None:
    here, there = pods
    async with here.browser() as browser:
        sent_away = await browser.get("/test/page?a=1")
        assert sent_away.headers["location"] == "/login?next=%2Ftest%2Fpage%3Fa%3D1"
        login = await browser.get(sent_away.headers["location"])
        assert 'href="/sign-in?next=%2Ftest%2Fpage%3Fa%3D1"' in login.text

        begun = await browser.get("/sign-in?next=%2Ftest%2Fpage%3Fa%3D1")
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert (asked["scope"], asked["code_challenge_method"]) == (["read_api"], ["S256"])
        answer = await sign_in(browser, "/test/page?a=1")

        assert (answer.status_code, answer.headers["location"]) == (303, "/test/page?a=1")
        cookie = SimpleCookie("\n".join(answer.headers.get_list("set-cookie")))[SESSION]
        assert (cookie["httponly"], cookie["samesite"], cookie["max-age"]) == (True, "lax", "43200")
        assert (await browser.get("/test/page")).text == '"shown"'
        # The other pod knows the session as well.
        async with there.browser(cookies=dict(browser.cookies)) as moved:
            assert (await moved.get("/test/page")).text == '"shown"'


async def test_signing_out_ends_the_session_on_the_other_pod_at_once(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, there = pods
    async with here.browser() as browser, there.browser() as copied:
        await sign_in(browser)
        copied.cookies.update(browser.cookies)
        assert (await copied.get("/test/me")).status_code == 200

        assert (await browser.post("/logout")).headers["location"] == "/login"

        assert (await copied.get("/test/me")).status_code == 401
        assert (await copied.get("/test/page")).status_code == 303
    assert gitlab.oauth.grants == [], "and GitLab's tokens are revoked"


async def test_when_gitlab_blocks_the_person_the_session_ends(pods: tuple[Pod, Pod], ann: User) -> None:
    here, there = pods
    async with here.browser() as browser, there.browser() as copied:
        await sign_in(browser)
        copied.cookies.update(browser.cookies)
        ann.state = "blocked"

        assert (await browser.get("/test/me")).status_code == 401

        ann.state = "active"
        assert (await copied.get("/test/me")).status_code == 401, "it has ended on every pod"


async def test_while_gitlab_is_away_nobody_is_signed_out(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    async with pods[0].browser() as browser:
        await sign_in(browser)
        gitlab.faults.bad_gateway(status=503, path="/api/graphql", times=None)
        assert (await browser.get("/test/me")).status_code == 503
        gitlab.faults.clear()
        assert (await browser.get("/test/me")).status_code == 200


# Forged ---------------------------------------------------------------------------------------------------------------


async def back_from_gitlab(browser: httpx.AsyncClient, onward: str = "/") -> str:
    """The path of the callback, with what GitLab adds to it."""
    begun = await browser.get("/sign-in", params={"next": onward})
    async with httpx.AsyncClient() as elsewhere:
        answer = await elsewhere.get(begun.headers["location"])
    return httpx.URL(answer.headers["location"]).raw_path.decode()


def begun(browser: httpx.AsyncClient) -> str:
    """The cookie of the one sign-in that has begun."""
    (name,) = [each for each in browser.cookies if each.startswith("reposync-sign-in")]
    return name


async def test_two_tabs_sign_in_at_a_time_in_any_order(pods: tuple[Pod, Pod], ann: User) -> None:
    async with pods[0].browser() as browser:
        first, second = [await back_from_gitlab(browser, f"/test/page?tab={number}") for number in (1, 2)]
        for link, number in ((second, 2), (first, 1)):
            assert (await browser.get(link)).headers["location"] == f"/test/page?tab={number}"
        assert [each for each in browser.cookies if each.startswith("reposync-sign-in")] == []
        for _ in range(6):
            await browser.get("/sign-in")
        assert len([each for each in browser.cookies if each.startswith("reposync-sign-in")]) == 3
        assert (await sign_in(browser)).status_code == 303


async def test_a_callback_that_this_browser_did_not_begin_signs_nobody_in(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    here, _ = pods
    async with here.browser() as attacker, here.browser() as victim:
        # The attacker's own sign-in, sent to somebody else as a link.
        link = await back_from_gitlab(attacker)
        for browser, path in (
            (victim, link),
            (attacker, link.replace("state=", "state=x")),
            (attacker, "/sign-in/callback"),
            (attacker, f"{link}&state=x"),
        ):
            answer = await browser.get(path)
            assert answer.status_code == 403
            assert SESSION not in browser.cookies
        await victim.get("/sign-in")
        assert (await victim.get(link)).status_code == 403
        attacker.cookies.set(name := begun(attacker), attacker.cookies[name][:-3] + "AAA")
        assert (await attacker.get(link)).status_code == 403
    assert gitlab.oauth.grants == []


async def test_the_way_back_is_used_once(pods: tuple[Pod, Pod], ann: User) -> None:
    async with pods[0].browser() as browser:
        link = await back_from_gitlab(browser)
        kept = browser.cookies[name := begun(browser)]
        assert (await browser.get(link)).status_code == 303
        browser.cookies.clear()
        browser.cookies.set(name, kept)
        answer = await browser.get(link)
        assert (answer.status_code, SESSION in browser.cookies) == (403, False)


async def test_a_refusal_at_gitlab_is_a_page_that_says_so(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    async with pods[0].browser() as browser:
        begun = await browser.get("/sign-in")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        answer = await browser.get("/sign-in/callback", params={"error": "access_denied<script>", "state": state})
        assert (answer.status_code, "access_denied&lt;script&gt;" in answer.text) == (403, True)
        gitlab.oauth.foreign = "of somebody else"
        assert (await sign_in(browser)).status_code == 403
        assert SESSION not in browser.cookies


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/..//evil.example", "javascript:alert(1)"],
)
async def test_a_sign_in_leads_to_no_other_server(pods: tuple[Pod, Pod], ann: User, elsewhere: str) -> None:
    async with pods[0].browser() as browser:
        assert (await sign_in(browser, elsewhere)).headers["location"] == "/"


async def test_a_made_up_session_is_none(pods: tuple[Pod, Pod], ann: User) -> None:
    async with pods[0].browser() as browser:
        for made_up in ("rss_", "rss_" + "A" * 43, "rss_" + "A" * 10_000, "rsp_x", "rsr_ü"):
            answer = await browser.get("/test/me", headers={"Cookie": f"{SESSION}={made_up}".encode()})
            assert answer.status_code == 401


@contextlib.contextmanager
def counted_lookups() -> Iterator[list[str]]:
    """The statements that look for sessions and tokens."""
    lookups: list[str] = []

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("SELECT") and "FROM credentials" in statement:
            lookups.append(statement)

    event.listen(Engine, "after_cursor_execute", executed)
    try:
        yield lookups
    finally:
        event.remove(Engine, "after_cursor_execute", executed)


@pytest.mark.parametrize("kind", ["session", "token", "agent", "signed out"])
async def test_made_up_sessions_and_tokens_cost_few_reads_and_nobody_else_waits(
    pods: tuple[Pod, Pod], ann: User, kind: str
) -> None:
    here = pods[0]
    async with here.browser() as browser, here.program() as stranger:
        await sign_in(browser)
        token = shown_secret(await browser.post("/access/tokens", data={"name": "laptop", "days": "30"}))
        assert (await stranger.get("/test/me", headers=bearer(token))).status_code == 200

        async def guess(number: int) -> int:
            secret = {"token": "rsp_", "agent": "rsa_"}.get(kind, "rss_") + f"guess-{number}"
            if kind in ("session", "signed out"):
                headers = {"Cookie": f"{SESSION}={secret}"}
                if kind == "signed out":
                    return (await stranger.post("/logout", headers=headers)).status_code
                return (await stranger.get("/test/me", headers=headers)).status_code
            method, path = ("POST", "/test/agent") if kind == "agent" else ("GET", "/test/me")
            return (await stranger.request(method, path, headers=bearer(secret))).status_code

        with counted_lookups() as lookups:
            statuses = [await guess(number) for number in range(100)]
            statuses += await asyncio.gather(*(guess(number) for number in range(100, 200)))
            made_up = len(lookups)
            again = await guess(0)
            assert len(lookups) == made_up, "what was refused a moment ago is not looked up again"

        usual = 303 if kind == "signed out" else 401
        assert (set(statuses), again) == ({usual, 429}, usual)
        assert made_up == statuses.count(usual) < 50
        # Of the same address.
        assert (await stranger.get("/test/me", headers=bearer(token))).status_code == 200
        assert (await browser.get("/test/page")).status_code == 200


# Tokens ---------------------------------------------------------------------------------------------------------------


async def test_a_person_makes_a_token_for_a_script_sees_it_once_and_revokes_it(
    pods: tuple[Pod, Pod], ann: User
) -> None:
    here, there = pods
    async with here.browser() as browser, there.program() as script:
        await sign_in(browser)
        made = await browser.post("/access/tokens", data={"name": "laptop <1>", "days": "30"})
        token = shown_secret(made)

        assert (await script.get("/test/me", headers=bearer(token))).status_code == 200
        assert (await script.post("/test/agent", headers=bearer(token))).status_code == 200
        listed = (await browser.get("/access/tokens")).text
        assert "laptop &lt;1&gt;" in listed and token not in listed and "never" not in listed

        family = listed.split('name="family" value="')[1].split('"')[0]
        answer = await browser.post("/access/tokens/revoke", data={"family": family})
        assert answer.headers["location"] == "/access/tokens?done=revoked"
        assert code(await script.get("/test/me", headers=bearer(token))) == (401, "UNAUTHENTICATED")
        assert "laptop &lt;1&gt;" not in (await browser.get("/access/tokens")).text


async def test_a_token_lives_on_when_its_session_is_signed_out_and_makes_no_tokens(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    async with pods[0].browser() as browser, pods[1].program() as script:
        await sign_in(browser)
        token = shown_secret(await browser.post("/access/tokens", data={"name": "ci", "days": "365"}))
        await browser.post("/logout")

        assert (await script.get("/test/me", headers=bearer(token))).status_code == 200
        form = {"name": "another", "days": "365"}
        assert (await script.post("/access/tokens", data=form, headers=bearer(token))).status_code == 403
        assert (await script.post("/access/tokens", data=form, headers=bearer(SERVICE_TOKEN))).status_code == 403
        assert (await script.get("/access/tokens", headers=bearer(token))).status_code == 403
    assert len(gitlab.oauth.grants) == 1


async def test_a_token_without_a_name_or_for_too_long_is_not_made(pods: tuple[Pod, Pod], ann: User) -> None:
    forms = [{"name": name, "days": "30"} for name in ("", "x" * 101, "a\x1b")]
    forms += [{"name": "a", "days": days} for days in ("366", "0", "-1", "1e2", "٣")] + [{"name": "a"}]
    async with pods[0].browser() as browser:
        await sign_in(browser)
        for form in forms:
            answer = await browser.post("/access/tokens", data=form)
            assert (answer.status_code, 'role="alert"' in answer.text, 'id="secret"' in answer.text) == (
                200,
                True,
                False,
            )
        assert "You have no tokens." in (await browser.get("/access/tokens")).text


async def test_nobody_revokes_tokens_of_somebody_else_or_from_another_site(
    pods: tuple[Pod, Pod], gitlab: GitLabServer, ann: User
) -> None:
    async with pods[0].browser() as browser, pods[0].browser() as other:
        await sign_in(browser)
        await browser.post("/access/tokens", data={"name": "mine", "days": "30"})
        listed = (await browser.get("/access/tokens")).text
        family = listed.split('name="family" value="')[1].split('"')[0]
        gitlab.oauth.signed_in = gitlab.rights.add_user("eve")
        await sign_in(other)

        await other.post("/access/tokens/revoke", data={"family": family})
        for path, form in (
            ("/access/tokens/revoke", {"family": family}),
            ("/access/tokens", {"name": "a", "days": "1"}),
        ):
            refused = await browser.post(path, data=form, headers={"Sec-Fetch-Site": "cross-site"})
            assert refused.status_code == 403

        assert "mine" in (await browser.get("/access/tokens")).text
        assert "mine" not in (await other.get("/access/tokens")).text


async def test_service_tokens_log_in_beside_people(pods: tuple[Pod, Pod]) -> None:
    async with pods[0].browser() as browser, pods[0].program() as script:
        assert (await script.get("/test/me", headers=bearer(SERVICE_TOKEN))).status_code == 200
        await browser.post("/login", data={"token": SERVICE_TOKEN})
        assert (await browser.get("/test/page")).status_code == 200
        assert (await browser.get("/access/tokens")).status_code == 403
        assert (await script.get("/test/me")).status_code == 401
