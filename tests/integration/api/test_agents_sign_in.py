"""Agents at /mcp: they register, a person lets them in on a page, and they get tokens of their own; on any pod."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from reposync.store.database import Database
from tests.fixtures.databases import open_database  # noqa: F401
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_server.rights import User
from tests.integration.api.people import SERVICE_TOKEN, Pod, fields, pod, sign_in
from tests.integration.api.serving import bearer

OpenDatabase = Callable[[], Awaitable[Database]]
REDIRECT_URI = "http://localhost:51234/callback"
AGENT = {"client_name": "Claude Code", "redirect_uris": [REDIRECT_URI]}


@pytest.fixture
def database_kind() -> str:
    return "postgresql"


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


class Agent:
    """A program that follows the protocol step by step, each time on the other pod."""

    def __init__(self, pods: tuple[Pod, Pod]) -> None:
        self.here, self.there = pods
        self.resource = f"{self.here.public_url}/mcp"
        self.client_id = ""
        self.verifier = secrets.token_urlsafe(48)

    async def register(self, **changes: Any) -> httpx.Response:
        async with self.here.program() as program:
            answer = await program.post("/register", json=AGENT | changes)
        if answer.status_code == 201:
            self.client_id = answer.json()["client_id"]
        return answer

    def question(self, **changes: str | None) -> dict[str, str]:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        asked: dict[str, str | None] = {
            "client_id": self.client_id,
            "redirect_uri": REDIRECT_URI,
            "response_type": "code",
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "state": "state-of-the-agent",
            "scope": "read",
            "resource": self.resource,
        }
        return {name: value for name, value in (asked | changes).items() if value is not None}

    async def ask(self, browser: httpx.AsyncClient, **changes: str | None) -> httpx.Response:
        """The page that asks the person."""
        asked = await browser.get("/authorize", params=self.question(**changes))
        assert asked.status_code == 302, asked.text
        return await browser.get(browser.base_url.join(asked.headers["location"]))

    async def code(self, browser: httpx.AsyncClient, **changes: str | None) -> str:
        page = await self.ask(browser, **changes)
        answer = await browser.post("/authorize/consent", data=fields(page) | {"decision": "allow"})
        return back(answer)["code"]

    async def token(self, *, on: Pod | None = None, **form: str) -> httpx.Response:
        sent = {"client_id": self.client_id, "grant_type": "authorization_code", "redirect_uri": REDIRECT_URI}
        async with (on or self.there).program() as program:
            return await program.post("/token", data=sent | {"code_verifier": self.verifier} | form)

    async def refresh(self, token: str, **form: str) -> httpx.Response:
        async with self.here.program() as program:
            sent = {"client_id": self.client_id, "grant_type": "refresh_token", "refresh_token": token}
            return await program.post("/token", data=sent | form)

    async def is_let_in(self, token: str, *, path: str = "/test/agent") -> bool:
        found = []
        for each in (self.here, self.there):
            async with each.program() as program:
                answer = await program.request("GET" if path == "/test/me" else "POST", path, headers=bearer(token))
                found.append(answer.status_code == 200)
        assert len(set(found)) == 1, "both pods agree"
        return found[0]


def back(answer: httpx.Response) -> dict[str, str]:
    """What the browser brings to the agent."""
    assert answer.status_code == 200, answer.text
    address = answer.text.split('id="back" href="')[1].split('"')[0].replace("&amp;", "&")
    assert f'content="0; url={address.replace("&", "&amp;")}"' in answer.text
    assert address.startswith(REDIRECT_URI)
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


@pytest.fixture
async def agent(pods: tuple[Pod, Pod]) -> Agent:
    agent = Agent(pods)
    assert (await agent.register()).status_code == 201
    return agent


@pytest.fixture
async def browser(pods: tuple[Pod, Pod], ann: User) -> AsyncIterator[httpx.AsyncClient]:
    async with pods[0].browser() as browser:
        await sign_in(browser)
        yield browser


async def test_an_agent_is_led_to_where_it_gets_a_token(pods: tuple[Pod, Pod]) -> None:
    here, _ = pods
    async with here.program() as program:
        refused = await program.post("/test/agent")
        wrong = await program.post("/test/agent", headers=bearer("rsa_unknown"))
        elsewhere = await program.get("/test/me")
        challenge = refused.headers["www-authenticate"]
        where = challenge.split('resource_metadata="')[1].split('"')[0]
        resource = (await program.get(urlsplit(where).path)).json()
        server = (await program.get("/.well-known/oauth-authorization-server")).json()

    assert (refused.status_code, wrong.status_code) == (401, 401)
    assert 'scope="read"' in challenge and "error=" not in challenge
    assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
    assert "resource_metadata" not in elsewhere.headers["www-authenticate"]
    assert where == f"{here.public_url}/.well-known/oauth-protected-resource/mcp"
    assert (resource["resource"], resource["authorization_servers"]) == (f"{here.public_url}/mcp", [here.public_url])
    assert server["issuer"] == here.public_url
    assert server["code_challenge_methods_supported"] == ["S256"]
    assert server["token_endpoint_auth_methods_supported"] == ["none"]
    assert server["authorization_response_iss_parameter_supported"] is True


async def test_a_person_lets_an_agent_in_and_it_works_on_every_pod(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    page = await agent.ask(browser)
    assert "Claude Code" in page.text and '<b id="where">this machine</b>' in page.text and "@ann" in page.text
    answer = await browser.post("/authorize/consent", data=fields(page) | {"decision": "allow"})
    brought = back(answer)
    assert (brought["state"], brought["iss"]) == ("state-of-the-agent", pods[0].public_url)

    granted = await agent.token(code=brought["code"])

    tokens = granted.json()
    assert (granted.status_code, tokens["token_type"], tokens["expires_in"], tokens["scope"]) == (
        *(200, "Bearer", 3600, "read"),
    )
    assert granted.headers["cache-control"] == "no-store"
    assert await agent.is_let_in(tokens["access_token"])
    listed = (await browser.get("/access/tokens")).text
    assert "Claude Code" in listed and listed.count('<td data-label="Kind">agent</td>') == 1
    # It is for /mcp alone, and so is nothing else a token there.
    assert not await agent.is_let_in(tokens["access_token"], path="/test/me")
    assert not await agent.is_let_in(tokens["refresh_token"])
    assert await agent.is_let_in(SERVICE_TOKEN)


async def test_a_token_of_gitlab_is_none_of_an_agent(agent: Agent, browser: httpx.AsyncClient, gitlab: GitLabServer,
                                                      ann: User) -> None:  # fmt: skip
    gitlab.add_token("glpat-of-ann", user=ann)
    assert not await agent.is_let_in("glpat-of-ann")
    assert not await agent.is_let_in(gitlab.oauth.grants[0].access)


async def test_without_a_session_the_person_signs_in_first(agent: Agent, pods: tuple[Pod, Pod], ann: User) -> None:
    async with pods[0].browser() as browser:
        sent_away = await agent.ask(browser)
        assert sent_away.status_code == 303
        onward = parse_qs(urlsplit(sent_away.headers["location"]).query)["next"][0]

        answer = await sign_in(browser, onward)

        page = await browser.get(answer.headers["location"])
        assert "Claude Code" in page.text


async def test_a_denial_and_a_bad_request_come_back_to_the_agent_with_the_issuer(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    page = await agent.ask(browser)
    denied = back(await browser.post("/authorize/consent", data=fields(page) | {"decision": "deny"}))
    assert (denied["error"], denied["iss"], "code" in denied) == ("access_denied", pods[0].public_url, False)

    for changes, error in (
        ({"resource": "https://other.example.com/mcp"}, "invalid_target"),
        ({"scope": "operate"}, "invalid_scope"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"state": secrets.token_urlsafe(2_000)}, "invalid_request"),
    ):
        answer = await browser.get("/authorize", params=agent.question(**changes))
        query = parse_qs(urlsplit(answer.headers["location"]).query)
        assert (query["error"], query["iss"]) == ([error], [pods[0].public_url]), changes


async def test_a_request_with_an_unknown_client_or_address_leads_nowhere(
    agent: Agent, browser: httpx.AsyncClient
) -> None:
    for changes in (
        {"client_id": "unknown"},
        {"redirect_uri": "https://evil.example/"},
        {"redirect_uri": f"{REDIRECT_URI}/more"},
        {"redirect_uri": "http://localhost:9/callback"},
    ):
        answer = await browser.get("/authorize", params=agent.question(**changes))
        assert (answer.status_code, "location" in answer.headers) == (400, False)


async def test_only_the_page_that_the_person_saw_lets_an_agent_in(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod], gitlab: GitLabServer
) -> None:
    page = await agent.ask(browser)
    form = fields(page) | {"decision": "allow"}
    gitlab.oauth.signed_in = gitlab.rights.add_user("eve")
    async with pods[1].browser() as other:
        await sign_in(other)
        stolen = await other.post("/authorize/consent", data=form)
        assert stolen.status_code == 422
    for changed in (form | {"proof": "0" * 64}, form | {"request": form["request"][:-2] + "AA"}, {"decision": "allow"}):
        assert (await browser.post("/authorize/consent", data=changed)).status_code == 422
    cross_site = await browser.post("/authorize/consent", data=form, headers={"Sec-Fetch-Site": "cross-site"})
    assert cross_site.status_code == 403
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    # A service token stands for nobody.
    async with pods[0].browser() as service:
        answer = await service.post("/authorize/consent", data=form, headers=bearer(SERVICE_TOKEN))
        assert answer.status_code == 403


async def test_below_a_path_of_a_proxy_everything_is_below_it(
    gitlab: GitLabServer,
    ann: User,
    open_database: OpenDatabase,  # noqa: F811
) -> None:
    async with pod(gitlab, await open_database(), root="/reposync") as served, served.browser() as browser:
        answer = await sign_in(browser, "/reposync/test/page")
        assert answer.headers["location"] == "/reposync/test/page"
        agent = Agent((served, served))
        await agent.register()
        code = await agent.code(browser)
        assert await agent.is_let_in((await agent.token(code=code)).json()["access_token"])

        async with served.program() as program:
            refused = await program.post("/test/agent")
            where = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
            resource = (await program.get(where)).json()
            top = served.public_url.removesuffix("/reposync")
            found = [
                (await program.get(address)).json()["issuer"]
                for address in (
                    f"{top}/.well-known/oauth-authorization-server/reposync",
                    f"{top}/reposync/.well-known/oauth-authorization-server",
                    f"{top}/reposync/.well-known/openid-configuration",
                )
            ]
        assert resource["resource"] == f"{served.public_url}/mcp"
        assert found == [served.public_url] * 3


# Codes and tokens that were stolen ------------------------------------------------------------------------------------


async def test_a_code_is_worth_nothing_without_its_verifier_client_and_address(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    code = await agent.code(browser)
    other = Agent(pods)
    await other.register()
    for form in ({"code_verifier": "of-a-thief"}, {"redirect_uri": "http://localhost:51234/other"},
                 {"client_id": other.client_id}, {"code": f"{code}x"},
                 {"resource": "https://other.example.com/mcp"}):  # fmt: skip
        assert (await agent.token(**{"code": code} | form)).status_code == 400
    assert (await agent.token(code=code, resource=agent.resource)).status_code == 200


async def test_a_code_that_is_used_twice_ends_the_tokens_that_came_of_it(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    code = await agent.code(browser)
    tokens = (await agent.token(code=code)).json()
    assert await agent.is_let_in(tokens["access_token"])

    again = await agent.token(code=code, on=pods[0])

    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
    assert not await agent.is_let_in(tokens["access_token"])
    assert (await agent.refresh(tokens["refresh_token"])).status_code == 400


async def test_a_refresh_token_rotates_and_an_old_one_ends_the_whole_family(
    agent: Agent, browser: httpx.AsyncClient
) -> None:
    first = (await agent.token(code=await agent.code(browser))).json()
    second = (await agent.refresh(first["refresh_token"])).json()
    assert await agent.is_let_in(second["access_token"])
    assert await agent.is_let_in(first["access_token"]), "calls on their way are not cut off"

    stolen = await agent.refresh(first["refresh_token"])

    assert (stolen.status_code, stolen.json()["error"]) == (400, "invalid_grant")
    for token in (first["access_token"], second["access_token"]):
        assert not await agent.is_let_in(token)
    assert (await agent.refresh(second["refresh_token"])).status_code == 400
    assert "Claude Code" not in (await browser.get("/access/tokens")).text


async def test_a_refresh_token_is_of_its_client_and_widens_no_scope(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    tokens = (await agent.token(code=await agent.code(browser))).json()
    other = Agent(pods)
    await other.register()
    assert (await other.refresh(tokens["refresh_token"])).status_code == 400
    wider = await agent.refresh(tokens["refresh_token"], scope="read operate")
    assert (wider.status_code, wider.json()["error"]) == (400, "invalid_scope")
    assert (await agent.refresh(tokens["refresh_token"])).status_code == 200


async def test_a_revoked_token_ends_with_its_family(
    agent: Agent, browser: httpx.AsyncClient, pods: tuple[Pod, Pod]
) -> None:
    tokens = (await agent.token(code=await agent.code(browser))).json()
    other = Agent(pods)
    await other.register()
    async with pods[1].program() as program:
        for client in (other, agent):
            sent = {"token": tokens["refresh_token"], "client_id": client.client_id}
            assert (await program.post("/revoke", data=sent)).status_code == 200
            assert await agent.is_let_in(tokens["access_token"]) is (client is other)


async def test_when_the_person_signs_out_agents_go_on_and_when_gitlab_ends_it_they_end(
    agent: Agent, browser: httpx.AsyncClient, ann: User
) -> None:
    tokens = (await agent.token(code=await agent.code(browser))).json()
    await browser.post("/logout")
    assert await agent.is_let_in(tokens["access_token"])

    ann.state = "blocked"

    assert not await agent.is_let_in(tokens["access_token"])
    ann.state = "active"
    assert not await agent.is_let_in(tokens["access_token"])
    assert (await agent.refresh(tokens["refresh_token"])).status_code == 400


# Registration ---------------------------------------------------------------------------------------------------------


async def test_an_agent_gets_no_secret_whatever_it_asks_for(pods: tuple[Pod, Pod]) -> None:
    answer = await Agent(pods).register(token_endpoint_auth_method="client_secret_post", scope="read")
    assert answer.status_code == 201
    shown = answer.json()
    assert (shown.get("client_secret"), shown["token_endpoint_auth_method"]) == (None, "none")


async def test_an_agent_elsewhere_needs_https_or_a_scheme_of_its_own(pods: tuple[Pod, Pod]) -> None:
    agent = Agent(pods)
    for uri in (
        *("http://agent.example.com/cb", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"),
        *("ftp://a.b/c", "https://a.example/#x", "https://user@a.example/", "blob:https://a.example/1"),
        "https://a.example/" + "x" * 600,
    ):
        assert (await agent.register(redirect_uris=[uri])).status_code == 400, uri
        assert (await agent.register(redirect_uris=[REDIRECT_URI, uri])).status_code == 400, uri
    for uri in ("https://agent.example.com/cb", "http://127.0.0.1:9/cb", "cursor://a.b/cb", "com.example.agent:/cb"):
        assert (await agent.register(redirect_uris=[uri])).status_code == 201, uri


async def test_one_address_registers_twenty_agents_an_hour_and_no_large_ones(pods: tuple[Pod, Pod]) -> None:
    agent = Agent(pods)
    assert (await agent.register(contacts=["x" * 20_000])).status_code == 413
    for _ in range(20):
        assert (await agent.register(scope="operate")).status_code == 400
        assert (await agent.register()).status_code == 201
    refused = await agent.register()
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "TOO_MANY_REGISTRATIONS")


async def test_the_name_of_an_agent_is_shown_and_not_believed(agent: Agent, browser: httpx.AsyncClient) -> None:
    await agent.register(client_name="<b>GitLab</b>\u202e\n")
    page = await agent.ask(browser)
    assert "<b>GitLab</b>" not in page.text
    assert "nobody has checked the name" in page.text
