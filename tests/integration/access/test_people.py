"""People and their agents over a whole company: what they find after they signed in, with the SDK's own client and in a
real browser."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
import pytest
from mcp.client.auth.oauth2 import OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from playwright.sync_api import Page, expect, sync_playwright
from pydantic import AnyUrl, SecretStr

from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.api.people import people_of
from reposync.api.server import serve_http
from reposync.app.application import Application
from reposync.app.gitlab_access import GitLabAccess
from reposync.config.sections import SignInConfig
from reposync.store.run import Ask
from reposync.store.status import RunTrigger
from tests.fixtures.browser import SWITCHES, keep_picture, log_out, program, visiting
from tests.fixtures.gitlab_server import User
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.rights_world import PROJECTS, SERVICE, RightsWorld, canary
from tests.fixtures.supervised import free_port
from tests.integration.access.test_over_http import ada, app, world  # noqa: F401
from tests.integration.api.people import fields, shown_secret, sign_in
from tests.integration.api.serving import bearer, parts_of
from tests.integration.api.test_pages_in_a_browser import check

PAYMENTS, MODELS = PROJECTS[1], PROJECTS[4]
AGENT_AT = "http://localhost:51234/callback"


@contextlib.asynccontextmanager
async def served(world: RightsWorld, app: Application) -> AsyncGenerator[str, None]:
    """The public address of a pod where people sign in."""
    port = free_port()
    public_url = f"http://localhost:{port}"
    application = world.gitlab.oauth.add_application(f"{public_url}/sign-in/callback")
    sign_in = SignInConfig(client_id=application.id, client_secret=SecretStr(application.secret))
    registry = app.configuration.registry
    http = registry.http.model_copy(update={"public_url": public_url, "sign_in": sign_in})
    assert registry.access_server is not None
    readers = GitLabAccess(registry.access_server, http.rights, lambda: app, audience=public_url, elapsed=world.seconds)
    people = people_of(http, registry.access_server, readers, lambda: app)
    assert people is not None
    access = Access([SERVICE], http, readers=readers, people=people)
    parts = replace(parts_of(app, access), health=parts_of().health)
    async with serve_http(create_app(parts), "127.0.0.1", port):
        yield public_url
    world.gitlab.faults.clear()
    await readers.close()
    await people.sign_ins.oauth.close()


@pytest.fixture
async def url(world: RightsWorld, app: Application, ada: User) -> AsyncGenerator[str, None]:
    """Of a pod, in the browser of whose visitors Ada is signed in at GitLab; she reports in one project."""
    world.projects[1].members[ada.id] = 20
    world.gitlab.oauth.signed_in = ada
    async with served(world, app) as url:
        yield url


@pytest.fixture
async def browser(url: str) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, headers={"Accept": "text/html"}) as browser:
        await sign_in(browser)
        yield browser


async def test_a_person_finds_what_gitlab_lets_them_read_and_loses_it_with_the_right(
    browser: httpx.AsyncClient, world: RightsWorld, ada: User
) -> None:
    async def found() -> tuple[bool, bool]:
        page = (await browser.get("/search", params={"q": "shared word"})).text
        return PAYMENTS in page, MODELS in page

    assert await found() == (True, False)
    access = (await browser.get("/access")).text
    assert "2 of 10 repositories</b> are yours to see" in " ".join(access.split())
    assert "member: Reporter" in access and "its readers are everybody" in access
    hidden = [name for name in world.names if name not in world.expected(ada)]
    for page in ("/access", "/", "/runs", "/access/tokens"):
        text = (await browser.get(page)).text
        assert [name for name in hidden if name in text or canary(name) in text] == [], page

    del world.projects[1].members[ada.id]
    world.seconds.now += 61
    assert await found() == (False, False)


def reasons(page: httpx.Response) -> dict[str, str]:
    """What `Your access` lists."""
    rows = re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a></th><td data-label="Because">(.*?)</td>', page.text)
    return {html.unescape(name): re.sub("<[^>]*>", "", why) for name, why in rows}


async def test_your_access_says_what_gitlab_says_when_it_is_opened(
    browser: httpx.AsyncClient, world: RightsWorld, ada: User
) -> None:
    projects = world.projects
    projects[1].members[ada.id], projects[6].members[ada.id] = 30, 10
    projects[2].visibility, projects[3].visibility, projects[6].visibility = "internal", "public", "public"
    world.gitlab.rights.groups["research"].members[ada.id] = 50
    world.gitlab.rights.groups["platform/core"].members[ada.id] = 5
    world.seconds.now += 61
    questions = len(world.gitlab.log.matching("/api/graphql"))

    assert reasons(await browser.get("/access")) == {
        PAYMENTS: "member: Developer",
        PROJECTS[2]: "internal",
        PROJECTS[3]: "public",
        MODELS: "member: Owner",
        PROJECTS[6]: "public, member: Guest",
        "folder-of-everybody": "its readers are everybody (readers of the registry)",
    }
    assert len(world.gitlab.log.matching("/api/graphql")) == questions + 2
    await browser.get("/")
    assert len(world.gitlab.log.matching("/api/graphql")) == questions + 2, "other pages do not ask for reasons"

    projects[1].members[ada.id] = 50
    assert reasons(await browser.get("/access"))[PAYMENTS] == "member: Owner"
    # It explains rights, and gives none: what is hidden by now stays listed as long as the last answer counts.
    projects[5].visibility = "public"
    assert PROJECTS[5] not in reasons(await browser.get("/access"))


async def test_an_administrator_is_told_what_is_known(
    browser: httpx.AsyncClient, world: RightsWorld, ada: User
) -> None:
    ada.admin = True
    world.seconds.now += 61
    assert reasons(await browser.get("/access"))[MODELS] == "may maintain the project"


async def test_an_administrator_sees_what_a_person_sees_by_asking_gitlab_with_their_token(
    url: str, world: RightsWorld, ada: User, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, headers={"Accept": "text/html"}) as browser:
        assert (await browser.post("/login", data={"token": SERVICE})).status_code == 303
        first = await browser.get("/access")
        assert f"{len(world.names)} repositories" in first.text.replace("\N{NO-BREAK SPACE}", " ")
        assert reasons(first) == {} and 'href="/access"' in (await browser.get("/")).text

        page = await browser.post("/access", data={"token": f" glpat-of-{ada.username} "})
        assert reasons(page) == {
            PAYMENTS: "member: Reporter",
            "folder-of-everybody": "its readers are everybody (readers of the registry)",
        }
        assert "What @ada sees" in page.text and "2 of 10 repositories" in page.text.replace("\N{NO-BREAK SPACE}", " ")
        assert "glpat-of-" not in page.text + caplog.text
        assert reasons(await browser.get("/access")) == {}, "it is not kept"

        for token, why in (("glpat-of-nobody", "does not accept this token"), ("", "not a token of GitLab")):
            refused = await browser.post("/access", data={"token": token})
            assert refused.status_code == 200 and why in refused.text and reasons(refused) == {}
        ada.state = "blocked"
        world.seconds.now += 61
        assert reasons(await browser.post("/access", data={"token": "glpat-of-ada"})) == {}


async def test_only_an_administrator_asks_as_another_person(browser: httpx.AsyncClient) -> None:
    assert 'name="token"' not in (await browser.get("/access")).text
    assert (await browser.post("/access", data={"token": "glpat-of-ada"})).status_code == 403


async def test_a_hidden_repository_and_a_name_that_nobody_has_get_the_same_answer(
    browser: httpx.AsyncClient, world: RightsWorld
) -> None:
    async def answer(name: str) -> str:
        page = await browser.get("/access", params={"name": name})
        assert page.status_code == 200
        return page.text.replace(name, "NAME")

    assert f"<b>{PAYMENTS}</b>: member: Reporter" in (await browser.get("/access", params={"name": PAYMENTS})).text
    nobody = await answer("research/modelx")
    assert "No repository" in nobody and 'id="answer"' in nobody
    assert await answer(MODELS) == nobody
    assert "<script>" not in (await browser.get("/access", params={"name": "<script>x"})).text


async def test_without_an_answer_about_reasons_the_page_says_so_and_lists_the_names(
    browser: httpx.AsyncClient, world: RightsWorld
) -> None:
    listed = set(reasons(await browser.get("/access")))
    unexplained = 'id="unexplained"'
    for body in ('{"errors": [{"message": "Field \'maxAccessLevel\' doesn\'t exist on type \'Project\'"}]}', "<html>"):
        world.gitlab.faults.answer(200, body, path="/api/graphql", times=None)
        page = await browser.get("/access")
        assert (page.status_code, unexplained in page.text) == (200, True)
        assert set(reasons(page)) == listed == {PAYMENTS, "folder-of-everybody"}
        assert reasons(page)[PAYMENTS] == "GitLab shows its code"
        world.gitlab.faults.clear()
    assert unexplained not in (await browser.get("/access")).text


async def test_who_maintains_a_project_syncs_it_on_its_page_and_by_no_token(
    browser: httpx.AsyncClient, world: RightsWorld, ada: User, url: str
) -> None:
    token = shown_secret(await browser.post("/access/tokens", data={"name": "laptop", "days": "30"}))
    refused = await browser.post("/actions/sync", data={"name": PAYMENTS})
    assert refused.status_code == 403
    world.projects[1].members[ada.id] = 40
    world.seconds.now += 61

    assert "member: Maintainer" in (await browser.get("/access")).text
    assert (await browser.post("/actions/sync", data={"name": PAYMENTS})).status_code == 303
    assert (await browser.post("/actions/sync", data={"name": MODELS})).status_code == 404
    async with httpx.AsyncClient(base_url=url, headers=bearer(token)) as script:
        assert (await script.post(f"/api/v1/repositories/{PAYMENTS}/sync")).status_code == 403
        listed = (await script.get("/api/v1/repositories")).json()["items"]
        assert {each["name"] for each in listed} == world.expected(ada)


async def test_no_page_offers_what_it_refuses(
    browser: httpx.AsyncClient, world: RightsWorld, app: Application, ada: User
) -> None:
    """Neither to a reader, nor to somebody who maintains another project."""

    async def offers(page: str) -> dict[str, int]:
        """Each link and button of the page, and how it is answered."""
        text = (await browser.get(page)).text
        links = {html.unescape(link) for link in re.findall(r'href="(/[^"]*)"', text)}
        answers = {link: (await browser.get(link)).status_code for link in sorted(links)}
        form = r'<form method="post" action="(/actions/[^"]*)"[^>]*>(.*?)</form>'
        for action, content in re.findall(form, text, re.DOTALL):
            answer = await browser.post(action, data=dict(re.findall(r'name="([^"]*)" value="([^"]*)"', content)))
            answers[f"{action} {content}"] = answer.status_code
        return answers

    async def waiting_run(name: str) -> str:
        return f"/runs/{(await app.runs.enqueue(name, Ask(RunTrigger.COMMAND, 'a test')))[0].id}"

    pages = ["/", "/runs", "/search?q=shared+word", f"/repositories/{PAYMENTS}", await waiting_run(PAYMENTS)]
    for page in (*pages, "/access", "/access/tokens"):
        answers = await offers(page)
        assert not [each for each in answers if each.startswith("/actions/") or each == "/workers"], page
        assert 403 not in answers.values(), page

    world.projects[2].members[ada.id] = 40
    world.seconds.now += 61
    for page in pages:
        answers = await offers(page)
        assert 403 not in answers.values() and "/workers" in answers, page
    shown = await offers(await waiting_run(PROJECTS[2]))
    assert [status for each, status in shown.items() if each.startswith("/actions/cancel")] == [303]


# Agents ---------------------------------------------------------------------------------------------------------------


class Memory:
    """What an agent keeps between its starts."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    """Who sits in front of the browser that an agent opens."""

    def __init__(self, browser: httpx.AsyncClient) -> None:
        self.browser = browser
        self.asked = 0
        self.brought: dict[str, str] = {}

    async def visit(self, address: str) -> None:
        self.asked += 1
        leads = await self.browser.get(address)
        page = await self.browser.get(leads.headers["location"])
        assert "Test agent" in page.text
        answer = await self.browser.post("/authorize/consent", data=fields(page) | {"decision": "allow"})
        back = html.unescape(answer.text.split('id="back" href="')[1].split('"')[0])
        self.brought = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}

    async def come_back(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**self.brought)


def authorization(url: str, memory: Memory, person: Person) -> OAuthClientProvider:
    about = OAuthClientMetadata(client_name="Test agent", redirect_uris=[AnyUrl(AGENT_AT)])
    return OAuthClientProvider(f"{url}/mcp", about, memory, person.visit, person.come_back)


@contextlib.asynccontextmanager
async def agent(url: str, auth: OAuthClientProvider) -> AsyncGenerator[Client, None]:
    async with (
        httpx2.AsyncClient(auth=auth, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


async def repositories(client: Client) -> set[str]:
    result = await client.call_tool("list_repositories", {})
    assert not result.is_error, result.content
    return {each["name"] for each in result.structured_content["repositories"]}


async def test_the_sdks_client_signs_in_by_itself_and_finds_what_its_person_may_read(
    url: str, browser: httpx.AsyncClient, world: RightsWorld, ada: User
) -> None:
    memory, person = Memory(), Person(browser)
    async with agent(url, authorization(url, memory, person)) as client:
        assert await repositories(client) == world.expected(ada)
        found = await client.call_tool("search_code", {"q": "shared word"})
        shown = {each["repository"] for each in found.structured_content["files"]}
    assert PAYMENTS in shown and MODELS not in shown
    assert person.asked == 1

    # Started again with what it kept: nobody is asked.
    async with agent(url, authorization(url, memory, person)) as client:
        await repositories(client)
    assert person.asked == 1


async def test_the_sdks_client_gets_new_tokens_by_itself(
    url: str, browser: httpx.AsyncClient, world: RightsWorld, ada: User
) -> None:
    memory, person = Memory(), Person(browser)
    auth = authorization(url, memory, person)
    async with agent(url, auth) as client:
        await repositories(client)
        first = memory.tokens
        auth.context.token_expiry_time = 1.0
        assert await repositories(client) == world.expected(ada)

    assert first is not None and memory.tokens is not None
    assert memory.tokens.refresh_token != first.refresh_token
    assert person.asked == 1


async def test_an_agent_in_a_pipeline_needs_no_secret_and_a_token_of_gitlab_is_refused(
    url: str, world: RightsWorld, ada: User
) -> None:
    jobs = world.gitlab.jobs
    job = jobs.sign(jobs.claims(world.projects[1], url))
    async with (
        httpx2.AsyncClient(headers=bearer(job), timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        assert await repositories(client) == {PAYMENTS}

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient(base_url=url) as program:
        for headers in (bearer("glpat-of-ada"), {"PRIVATE-TOKEN": "glpat-of-ada"}):
            assert (await program.get("/api/v1/repositories", headers=headers)).status_code == 200
            assert (await program.post("/mcp", json=call, headers=headers)).status_code == 401


# In a browser ---------------------------------------------------------------------------------------------------------


def keeps(page: Page, name: str) -> None:
    """A picture of the page, which everybody can use, at a desk and on a phone."""
    for width, height in ((390, 740), (1280, 900)):
        page.set_viewport_size({"width": width, "height": height})
        check(page)
        keep_picture(page, f"{name}-{width}")


async def visited(visit: object, url: str) -> None:
    """Playwright has an event loop of its own, so it gets a thread."""
    path = program()
    if path is None:
        pytest.skip("no Chromium: `make browser` installs it, and TEST_BROWSER names a different one")

    def run() -> None:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=path, args=list(SWITCHES))
            with visiting(chromium) as context:
                visit(context.new_page(), url)  # type: ignore[operator]
            chromium.close()

    await asyncio.to_thread(run)


async def test_in_a_browser_a_person_signs_in_searches_makes_a_token_and_signs_out(
    url: str, world: RightsWorld, ada: User
) -> None:
    world.gitlab.oauth.asks = True

    def visit(page: Page, url: str) -> None:
        page.goto(f"{url}/search?q=shared+word")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        keeps(page, "sign-in")
        page.get_by_role("link", name="Sign in with GitLab").click()
        page.get_by_role("button", name="Authorize").click()
        expect(page).to_have_url(f"{url}/search?q=shared+word")
        expect(page.get_by_text(PAYMENTS).first).to_be_visible()
        assert MODELS not in page.content()
        page.get_by_text("@ada").click()
        page.get_by_role("link", name="Your access").click()
        expect(page.locator("#count")).to_contain_text("2 of 10 repositories")
        keeps(page, "your-access")
        page.get_by_label("A repository that you miss, or see").fill(MODELS)
        page.get_by_role("button", name="Why?").click()
        expect(page.locator("#answer")).to_contain_text(f"No repository '{MODELS}' is registered.")
        check(page)
        page.get_by_text("@ada").first.click()
        page.get_by_role("link", name="Access tokens").click()
        page.get_by_label("Name").fill("laptop")
        page.get_by_role("button", name="Make a token").click()
        assert page.locator("#secret").inner_text().startswith("rsp_")
        # Some tokens have no place where a line may break.
        page.locator("#secret").evaluate("secret => secret.textContent = 'rsp_' + 'W'.repeat(43)")
        keeps(page, "access-tokens")
        page.get_by_role("button", name="Revoke laptop").click()
        expect(page.locator("#notice")).to_have_text("It is revoked, on every pod.")
        log_out(page)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.goto(f"{url}/search?q=shared+word")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()

    await visited(visit, url)
    assert world.gitlab.oauth.grants == []


async def test_in_a_browser_a_person_lets_an_agent_in_and_lands_at_the_agent(
    url: str, world: RightsWorld, ada: User
) -> None:
    arrived: list[str] = []

    async def callback(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append((await reader.readline()).decode())
        body = b"<!doctype html><title>Agent</title><h1>You can close this page</h1>"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n%s" % (len(body), body))  # fmt: skip
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(callback, "127.0.0.1", 0)
    back = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/callback"
    async with httpx.AsyncClient(base_url=url) as program_of_the_agent:
        about = {"client_name": "Claude Code", "redirect_uris": [back]}
        client_id = (await program_of_the_agent.post("/register", json=about)).json()["client_id"]
    query = {"client_id": client_id, "redirect_uri": back, "response_type": "code", "code_challenge": "A" * 43}

    def visit(page: Page, url: str) -> None:
        page.goto(str(httpx.URL(f"{url}/authorize", params=query | {"code_challenge_method": "S256", "state": "s"})))
        page.get_by_role("link", name="Sign in with GitLab").click()
        expect(page.get_by_role("heading", name="Claude Code")).to_be_visible()
        keeps(page, "let-an-agent-in")
        page.get_by_role("button", name="Allow").click()
        expect(page.get_by_role("heading", name="You can close this page")).to_be_visible()

    async with listener:
        await visited(visit, url)
    brought = parse_qs(urlsplit(arrived[0].split()[1]).query)
    assert brought["code"][0].startswith("rsc_")
    assert (brought["state"], brought["iss"]) == (["s"], [url])
