"""Logging in with a browser: what the cookie is, how far it reaches, and what no other site can do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import Morsel, SimpleCookie

import httpx
import pytest

from reposync.api.auth import Access
from reposync.config.sections import HttpConfig
from reposync.errors import StoreUnavailable
from reposync.store.database import Database
from reposync.store.workers import StoredEndedSessions
from tests.fixtures.databases import database_kind  # noqa: F401
from tests.integration.api.serving import OPERATOR, READER, TOKENS, code, log_in, server

WRONG = "this-token-nobody-has"
BEHIND_TLS = {"X-Forwarded-Proto": "https"}


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    async with server(Access(TOKENS)) as client:
        yield client


def cookies_set(answer: httpx.Response) -> dict[str, Morsel[str]]:
    jar: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        jar.load(line)
    return dict(jar)


async def test_a_page_leads_to_the_login_and_the_login_back_to_the_page(browser: httpx.AsyncClient) -> None:
    sent_away = await browser.get("/test/page?a=1")
    assert (sent_away.status_code, sent_away.headers["location"]) == (303, "/login?next=%2Ftest%2Fpage%3Fa%3D1")

    answer = await log_in(browser, f" {OPERATOR}\n", next="/test/page?a=1")

    assert (answer.status_code, answer.headers["location"]) == (303, "/test/page?a=1")
    shown = (await browser.get("/test/page")).json()
    assert shown["who"] == ["OPERATE", "token 2, in a browser", "127.0.0.1"]
    # The API takes the session as well: scripts of the pages ask it.
    assert (await browser.get("/test/read")).status_code == 200


async def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(browser: httpx.AsyncClient) -> None:
    cookies = cookies_set(await log_in(browser, READER))

    session = cookies["reposync-session"]
    assert (session["httponly"], session["samesite"], session["path"]) == (True, "lax", "/")
    assert (session["max-age"], session["secure"], session["domain"]) == ("43200", "", "")
    assert READER not in session.value


@pytest.mark.parametrize(
    ("root", "secure", "headers", "name"),
    [
        ("", None, BEHIND_TLS, "__Host-reposync-session"),
        ("/reposync", None, BEHIND_TLS, "__Secure-reposync-session"),
        ("/reposync", None, {}, "reposync-session"),
        ("", True, {}, "__Host-reposync-session"),
        ("", False, BEHIND_TLS, "reposync-session"),
    ],
)
async def test_over_https_the_cookie_never_goes_over_plain_http_and_it_stays_under_its_path(
    root: str, secure: bool | None, headers: dict[str, str], name: str
) -> None:
    config = HttpConfig(root_path=root, trusted_proxies=("127.0.0.1",), secure_cookies=secure)
    async with server(Access(TOKENS, config), headers=headers) as browser:
        answer = await log_in(browser, READER, root=root, next=f"{root}/runs")
        assert answer.headers["location"] == f"{root}/runs"
        session = cookies_set(answer)[name]
        assert (session["path"], bool(session["secure"])) == (root or "/", name != "reposync-session")
        kept = {"Cookie": f"{name}={session.value}"}
        assert (await browser.get(f"{root}/test/read", headers=kept)).status_code == 200


async def test_a_wrong_token_leads_back_to_the_form_that_says_so(browser: httpx.AsyncClient) -> None:
    for token in (WRONG, "", OPERATOR[:-1], "ü" * 40, "x" * 5_000):
        answer = await log_in(browser, token, next="/test/page")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?failed=token&next=%2Ftest%2Fpage")
        assert "reposync-session" not in cookies_set(answer)
    assert (await browser.get("/test/page")).status_code == 303
    assert code(await log_in(browser, "x" * 20_000)) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # a different port of this machine, or a sibling subdomain
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
async def test_no_page_of_another_site_logs_in_or_uses_the_session(
    browser: httpx.AsyncClient, elsewhere: dict[str, str]
) -> None:
    await log_in(browser, OPERATOR)
    for path in ("/login", "/logout", "/test/operate"):
        answer = await browser.post(path, data={"token": READER}, headers=elsewhere)
        assert code(answer) == (403, "CROSS_SITE_REFUSED")
        assert "set-cookie" not in answer.headers

    own = {"Sec-Fetch-Site": "same-origin", "Origin": str(browser.base_url).rstrip("/")}
    assert (await browser.post("/test/operate", data={"name": "api"}, headers=own)).json() == {"fields": ["name"]}


async def test_logging_out_ends_the_session(browser: httpx.AsyncClient) -> None:
    await log_in(browser, OPERATOR)
    answer = await browser.post("/logout")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert (await browser.get("/test/page")).status_code == 303
    # Twice does no harm.
    assert (await browser.post("/logout")).status_code == 303


async def test_a_copied_cookie_ends_with_its_session_on_every_pod(database_url: str) -> None:
    async with (
        await Database.open(database_url) as here,
        await Database.open(database_url) as there,
        server(Access(TOKENS, ended=StoredEndedSessions(lambda: here))) as browser,
        server(Access(TOKENS, ended=StoredEndedSessions(lambda: there))) as other_pod,
    ):
        await log_in(browser, OPERATOR)
        copied = dict(browser.cookies)
        other_pod.cookies.update(copied)
        assert (await other_pod.get("/test/read")).status_code == 200

        await browser.post("/logout")

        for pod in (browser, other_pod):
            pod.cookies.update(copied)
            assert (await pod.get("/test/page")).status_code == 303
            assert (await pod.get("/test/read")).status_code == 401
            assert (await pod.post("/test/operate")).status_code == 401
        # Another session of the same token goes on.
        other_pod.cookies.clear()
        await log_in(other_pod, OPERATOR)
        assert (await other_pod.get("/test/read")).status_code == 200


async def test_without_the_database_no_cookie_is_accepted() -> None:
    def away() -> Database:
        raise StoreUnavailable("The database does not answer.")

    async with server(Access(TOKENS, ended=StoredEndedSessions(away))) as browser:
        await log_in(browser, OPERATOR)
        for path in ("/test/page", "/test/read"):
            assert (await browser.get(path)).status_code == 503
        # Nobody was signed in: there is nothing to ask the database.
        browser.cookies.clear()
        assert (await browser.get("/test/page")).status_code == 303


async def test_a_session_of_one_pod_is_one_of_all_pods_and_ends_when_its_token_goes(browser: httpx.AsyncClient) -> None:
    await log_in(browser, OPERATOR)
    cookies = dict(browser.cookies)

    async with server(Access(reversed(TOKENS)), cookies=cookies) as another:
        assert (await another.get("/test/page")).status_code == 200
        assert (await another.post("/test/operate")).status_code == 200
    async with server(Access([TOKENS[0], "a-token-that-is-new-here"]), cookies=cookies) as rotated:
        assert (await rotated.get("/test/page")).status_code == 303
        assert (await rotated.get("/test/read")).status_code == 401
    async with server(Access([f"read:{OPERATOR}"]), cookies=cookies) as demoted:
        answer = await demoted.post("/test/operate")
        assert code(answer) == (403, "FORBIDDEN")


async def test_without_tokens_there_is_nothing_to_log_in_to() -> None:
    async with server(Access([])) as browser:
        answer = await browser.post("/login", data={"token": "", "next": "/runs"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        assert "set-cookie" not in answer.headers
        assert (await browser.post("/logout")).headers["location"] == "/"
        assert (await browser.get("/test/page")).json()["who"] == ["OPERATE", "anonymous", "127.0.0.1"]
