"""The pages below a path of a server that others share, behind a proxy that ends TLS."""

# ruff: noqa: F401, F811 (fixtures of a browser are imported: conftest.py would load one for every test)
from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from reposync.config.sections import HttpConfig
from reposync.store.status import RunStatus
from tests.fixtures.browser import browser, keep_picture, log_out, visiting
from tests.fixtures.network import Authority
from tests.fixtures.pods import until
from tests.fixtures.reverse_proxy import ReverseProxy
from tests.fixtures.showcase import LIVE, Showcase

pytestmark = pytest.mark.full

OPERATOR = "operate-4f9a0c6b2d8e"
PATH = "/tools/reposync"
BEHIND = HttpConfig(root_path=PATH, trusted_proxies=("127.0.0.1",))


@pytest.fixture(scope="module")
def server(showcase: Showcase) -> Generator[str, None, None]:
    with showcase.served(f"operate:{OPERATOR}", http=BEHIND) as url:
        yield url


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls"), "localhost")


@pytest.fixture(params=["keeps the path", "takes it off"])
def proxy_url(request: pytest.FixtureRequest, server: str, authority: Authority) -> Generator[str, None, None]:
    """Where a browser finds the pages."""
    keeps_path = request.param == "keeps the path"
    with ReverseProxy(server, path=PATH, tls=authority.server_context(), keeps_path=keeps_path) as proxy:
        yield proxy.url


def log_in(page: Page) -> None:
    page.get_by_label("Token").fill(OPERATOR)
    page.get_by_role("button", name="Log in").click()


def test_everything_works_below_the_path_and_nothing_leaves_it(
    browser: Browser, showcase: Showcase, proxy_url: str
) -> None:
    name = f"proxied/{showcase.next_number()}"
    showcase.register(name)
    origin = proxy_url.removesuffix(PATH)
    with visiting(browser, ignore_https_errors=True) as context:
        page = context.new_page()
        page.on("request", lambda asked: strays.append(asked.url) if not asked.url.startswith(proxy_url) else None)
        strays: list[str] = []
        page.goto(f"{proxy_url}/runs?repository={name}")
        expect(page).to_have_url(re.compile(re.escape(f"{proxy_url}/login?next=%2Ftools%2Freposync%2Fruns")))
        log_in(page)
        page.wait_for_url(f"{proxy_url}/runs?repository={name}")

        # The cookie goes to no neighbour below another path, to no script, and never over plain http.
        (cookie,) = context.cookies()
        assert cookie["name"] == "__Secure-reposync-session"
        assert (cookie["path"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (PATH, True, True, "Lax")

        for link in ("Repositories", "Runs", "Search", "Workers", "API", "reposync"):
            with page.expect_navigation() as landed:
                page.get_by_role("banner").get_by_role("link", name=link, exact=True).click()
            assert landed.value is not None and landed.value.status == 200
            assert page.evaluate("[...document.styleSheets].every((sheet) => sheet.cssRules.length > 0)")
        addresses = page.eval_on_selector_all(
            "a[href]:not([href^='#']), form", "all => all.map((e) => e.action || e.href)"
        )
        assert addresses and all(each.startswith(proxy_url) for each in addresses), addresses

        page.goto(f"{proxy_url}/?name={name}")
        page.locator("tbody summary").click()
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("tbody .status").first).to_have_text("paused")
        page.locator("tbody summary").click()
        with page.expect_response("**/events") as stream:
            page.get_by_role("button", name="Sync").click()
            page.wait_for_url(f"{proxy_url}/runs/*")
        assert stream.value.status == 200
        run = showcase.begin(showcase.run_of(name, RunStatus.QUEUED))
        showcase.tell(run, 310, 1_204)
        expect(page.locator(".progress")).to_contain_text("310 of 1,204 files")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("Cancellation was requested; it ends within seconds.")).to_be_visible()
        showcase.end(run, RunStatus.CANCELLED)
        expect(page.locator(".headline .status")).to_have_text("cancelled")
        keep_picture(page, f"below-a-path-{showcase.next_number()}")

        answer = page.request.get(f"{proxy_url}/runs", headers={"Accept": "text/html"})
        again = page.request.get(f"{proxy_url}/runs", headers={"If-None-Match": f"W/{answer.headers['etag']}"})
        assert (answer.status, again.status) == (200, 304)
        page.goto(f"{proxy_url}/nothing")
        expect(page.get_by_role("main").get_by_role("link").first).to_have_attribute("href", f"{PATH}/")

        log_out(page)
        page.wait_for_url(f"{proxy_url}/login")
        assert context.cookies() == [] or {each["name"] for each in context.cookies()} == {"__Secure-reposync-login"}
        assert strays == [], strays
    assert origin.startswith("https://")
