"""Every page in a real browser, over everything that there is to show; and a run of another pod, seen live."""

# ruff: noqa: F401, F811 (fixtures of a browser are imported: conftest.py would load one for every test)
from __future__ import annotations

import re
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
from axe_playwright_python.base import AxeResults
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from reposync.errors import Starting, StoreUnavailable
from reposync.store.run import Run
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import VERSIONS
from tests.fixtures.browser import DESKTOP, PHONE, browser, keep_picture, page, visiting
from tests.fixtures.pods import until
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.reverse_proxy import ReverseProxy
from tests.fixtures.showcase import BLOCKED, FAILED, HOSTILE, LIVE, NEW, PAUSED, REAL, WEB, Showcase

OPERATOR = "operate-4f9a0c6b2d8e"
SHOWCASE = {"runs": 60}
# Chrome's own bound for a page that moves "a little" is 0.1.
LEAST_SHIFT = 0.01


@pytest.fixture
def live(showcase: Showcase) -> Generator[Run, None, None]:
    """A run of a repository of its own, which another pod has begun."""
    name = f"live/{showcase.next_number()}"
    showcase.register(name)
    run = showcase.begin(showcase.queue(name))
    yield run
    if not showcase.call(showcase.app.history.get(run.id)).is_final:
        showcase.end(run)


def row(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def status(page: Page) -> Any:
    return page.locator("#run .headline .status")


def fits(page: Page) -> bool:
    found: bool = page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    return found


# Every page -----------------------------------------------------------------------------------------------------------


def addresses(showcase: Showcase, url: str, login_url: str, away_url: str) -> dict[str, str]:
    runs = {name: showcase.run_of(*which).id for name, which in RUNS.items()}
    return {
        "repositories": f"{url}/",
        "repositories-that-need-a-look": f"{url}/?show=attention",
        "no-repository-fits": f"{url}/?name=none+of+these",
        "runs": f"{url}/runs",
        "runs-of-one-repository": f"{url}/runs?repository={LIVE}",
        "repository": f"{url}/repositories/{LIVE}",
        "files-of-a-repository": f"{url}/repositories/{REAL}?folder=billing",
        "no-run-fits": f"{url}/runs?trigger=command&status=blocked",
        **{f"run-{name}": f"{url}/runs/{identity}" for name, identity in runs.items()},
        "no-such-run": f"{url}/runs/abc",
        "search": f"{url}/search",
        "search-hits": f"{url}/search?q=expired+sessions",
        "search-nothing": f"{url}/search?q=expired&path=*.rs",
        "file": f"{url}/files/{REAL}/-/billing/sessions.py?lines=6-9#L6",
        "no-such-file": f"{url}/files/{REAL}/-/sessions.py",
        "search-mistake": f"{url}/search?q=expired&language=pyhton",
        "locks": f"{url}/locks",
        "api": f"{url}/docs",
        "help": f"{url}/help",
        "help-errors": f"{url}/help/errors",
        "help-page": f"{url}/help/run-the-daemon",
        "login": f"{login_url}/login?failed=token",
        "database-away": f"{away_url}/",
    }


RUNS = {
    "running": (LIVE, RunStatus.RUNNING),
    "queued": ("platform/web", RunStatus.QUEUED),
    "completed": (REAL, RunStatus.COMPLETED),
    "failed": (FAILED, RunStatus.FAILED),
    "blocked": (BLOCKED, RunStatus.BLOCKED),
    "incomplete": (WEB, RunStatus.COMPLETED),
}
# Rows like those before them are no news to axe, which takes its time for each.
CHECKED = {
    "include": [["html"]],
    "exclude": [["tbody tr:nth-child(n+5)"], ["article:nth-of-type(n+3)"], ["section:nth-of-type(n+3)"]],
}
# Numbers that a line break separates from their units.
BROKEN = r"""() => {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const broken = [];
  while (texts.nextNode()) {
    if (texts.currentNode.parentElement.closest("pre, noscript")) continue;
    for (const found of texts.currentNode.data.matchAll(/\d[\d.,]*\s(ms|s|min|h|d|B|kB|MB|GB)\b/g)) {
      const range = new Range();
      range.setStart(texts.currentNode, found.index);
      range.setEnd(texts.currentNode, found.index + found[0].length);
      if (range.getBoundingClientRect().height > 1.5 * (range.getClientRects()[0]?.height ?? 0)) broken.push(found[0]);
    }
  }
  return broken;
}"""
ONE_LINE = 60
"""Pixels of the header."""
# What the theme has to do with.
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}


def away() -> Any:
    raise StoreUnavailable("The database at db.example.com does not answer.", remedy="It is tried again.")


def check(page: Page, **rules: Any) -> None:
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    ask = "([what, how]) => axe.run(what, how)"
    found = AxeResults(page.evaluate(ask, [CHECKED, {"resultTypes": ["violations"], **rules}]))
    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"
    assert fits(page), f"{page.url} is wider than the window"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["desk", "phone"])
def test_every_page_is_accessible_does_not_shift_and_fits_the_window(
    browser: Browser, showcase: Showcase, url: str, kind: str
) -> None:
    is_desk = kind == "desk"
    window: dict[str, Any] = {"viewport": {"width": 1_440, "height": 900}} if is_desk else PHONE
    with (
        showcase.served(f"operate:{OPERATOR}") as login_url,
        showcase.served(application=away) as away_url,
        visiting(browser, **window) as context,
    ):
        page = context.new_page()
        size = page.viewport_size
        assert size is not None
        for name, address in addresses(showcase, url, login_url, away_url).items():
            page.goto(address)
            check(page)
            assert page.evaluate("window.shift") < LEAST_SHIFT, address
            assert page.evaluate(BROKEN) == [], f"a unit is on another line than its number: {address}"
            keep_picture(page, f"{name}-{kind}-light")
            page.emulate_media(color_scheme="dark")
            check(page, **COLOURS)
            keep_picture(page, f"{name}-{kind}-dark")
            page.emulate_media(color_scheme="light")
            for width in (720, 1_110) if is_desk else (360,):
                page.set_viewport_size({**size, "width": width})
                assert fits(page), f"{address} is wider than {width} px"
                if is_desk:
                    assert page.locator("header.top").evaluate("top => top.offsetHeight") < ONE_LINE, address
            page.set_viewport_size(size)


# One run, live --------------------------------------------------------------------------------------------------------


def test_a_run_of_a_different_pod_is_followed_by_events_to_its_end_without_a_reload(
    page: Page, showcase: Showcase, url: str, live: Run
) -> None:
    refreshes: list[str] = []
    page.on("request", lambda asked: refreshes.append(asked.url) if asked.header_value("x-requested-with") else None)
    with page.expect_response("**/events") as stream:
        page.goto(f"{url}/runs/{live.id}")
    assert stream.value.headers["content-type"].startswith("text/event-stream")
    page.evaluate("window.stayed = true")

    for done in (120, 800):
        showcase.tell(live, done, 1_204)
        expect(page.locator(".progress")).to_contain_text(
            f"indexing {done} of 1,204 files, {3 * done:,} of about 3,612 chunks"
        )
        expect(page.locator("progress")).to_have_js_property("value", 3 * done)
    expect(page.locator(".progress")).to_contain_text("38.8 chunks/s, 5.6 MB read, about 31 s left")
    assert len(refreshes) <= 1  # one may have gone before the stream was there

    showcase.end(live, files_processed=1_204, chunks_embedded=3_612, commit_after="c" * 40)
    expect(status(page)).to_have_text("completed")
    expect(page.locator(".facts")).to_contain_text("1,204 stored")
    expect(page.locator("#announced")).to_have_text("The run is completed.")
    expect(page.locator("progress")).to_have_count(0)
    assert page.evaluate("window.stayed") and page.evaluate("window.shift") < 0.3  # the page is another one now


def test_pages_of_one_browser_share_a_few_streams_and_close_them(
    browser: Browser, showcase: Showcase, url: str, live: Run
) -> None:
    with ReverseProxy(url) as proxy, visiting(browser) as context:
        pages = [context.new_page() for _ in range(8)]
        for each in pages:
            each.goto(f"{proxy.url}/runs/{live.id}")
        until(lambda: proxy.under_way("/events") == 3)
        showcase.tell(live, 700, 1_204)
        for each in pages:
            expect(each.locator(".progress")).to_contain_text("700 of 1,204 files")
        assert proxy.under_way("/events") == 3
        for each in pages:
            each.close()
        until(lambda: proxy.under_way("/events") == 0)

        page = context.new_page()
        page.goto(f"{proxy.url}/runs/{live.id}")
        until(lambda: proxy.under_way("/events") == 1)
        page.goto(f"{proxy.url}/locks")
        until(lambda: proxy.under_way("/events") == 0)
        page.go_back()
        until(lambda: proxy.under_way("/events") == 1)


def test_without_events_the_page_polls_and_a_broken_stream_is_opened_again(
    browser: Browser, showcase: Showcase, url: str, live: Run
) -> None:
    with ReverseProxy(url) as proxy, visiting(browser) as context:
        proxy.refuses = "/events"
        page = context.new_page()
        page.goto(f"{proxy.url}/runs/{live.id}")
        until(lambda: any("/events" in each for each in proxy.asked))
        showcase.tell(live, 100, 1_204)
        expect(page.locator(".progress")).to_contain_text("100 of 1,204 files")

        proxy.refuses = None
        page.reload()
        until(lambda: proxy.under_way("/events") == 1)
        proxy.cut()
        showcase.tell(live, 200, 1_204)
        expect(page.locator(".progress")).to_contain_text("200 of 1,204 files")
        until(lambda: proxy.under_way("/events") == 1)

        proxy.refuses = ""  # everything: the daemon starts again
        proxy.cut()
        expect(page.get_by_role("status")).to_have_text("The server does not respond. Trying again…")
        proxy.refuses = None
        showcase.end(live, RunStatus.FAILED)
        expect(status(page)).to_have_text("failed")
        expect(page.get_by_role("status")).to_be_hidden()
        expect(page.locator(".reason")).to_contain_text("The project is gone. SOURCE_GONE")


# What people do -------------------------------------------------------------------------------------------------------


def test_the_history_is_filtered_page_by_page_and_by_the_readers_days(page: Page, showcase: Showcase, url: str) -> None:
    runs = page.get_by_role("table", name="Runs, the newest first")
    page.goto(f"{url}/runs?repository={LIVE}")
    expect(page.locator(".figures")).to_contain_text("Success rate")
    expect(page.locator("svg.bars")).to_have_count(3)
    expect(runs.get_by_role("row")).to_have_count(51)
    page.get_by_role("link", name="Older").click()
    expect(runs.get_by_role("row")).to_have_count(12)
    page.get_by_role("link", name="Newest").click()
    expect(runs.get_by_role("row")).to_have_count(51)

    page.get_by_label("Status").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(f"**/runs?repository={LIVE.replace('/', '%2F')}&status=failed")
    expect(page.locator("tbody .status.failed")).to_have_count(3)
    page.get_by_role("link", name="Clear").click()

    name = "days/berlin"
    showcase.register(name)
    queued_at = showcase.now.replace(year=2026, month=1, day=10, hour=23, minute=30)
    showcase.add_history([showcase.past_run(name, RunStatus.COMPLETED, showcase.now - queued_at, 3.0)])
    # 23:30 in London is the next day in Berlin.
    for day, count in (("2026-01-10", 0), ("2026-01-11", 1)):
        page.get_by_label("Repository", exact=True).fill(name)
        page.get_by_label("Since").fill(day)
        page.get_by_label("Until").fill(day)
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url(f"**since={day}**zone=Europe%2FBerlin")
        expect(page.locator("tbody tr")).to_have_count(count)
    time = page.locator("tbody time")
    expect(time).to_have_text("2026-01-11 00:30:" + f"{showcase.now.second:02}")
    expect(time).to_have_attribute("title", f"2026-01-10 23:30:{showcase.now.second:02} UTC")


def test_repositories_are_filtered_and_a_button_leads_back_to_where_it_was(
    page: Page, showcase: Showcase, url: str
) -> None:
    for number in range(60):
        showcase.register(f"many/{number:03}", cron_expression="0 3 * * *")
    page.goto(f"{url}/")
    page.get_by_label("Name").fill("MANY/")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.get_by_text("1 to 50 of 60")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(10)

    row(page, "many/055").get_by_role("button", name="Pause").click()
    expect(row(page, "many/055").locator(".status").first).to_have_text("paused")
    expect(page.locator("#notice")).to_contain_text("Paused")
    expect(page.locator("#announced")).to_contain_text("Paused")
    expect(page.locator("tbody tr")).to_have_count(10)
    row(page, "many/055").get_by_role("button", name="Resume").click()
    expect(row(page, "many/055").locator(".status").first).to_have_text("active")


def test_search_shows_code_and_names_as_they_are_and_runs_nothing(page: Page, url: str, live: Run) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.goto(f"{url}/")
    page.get_by_role("link", name="Search").click()
    page.wait_for_url(f"{url}/search")  # with its script, which suggests the names
    page.get_by_label("Repository").press_sequentially("bill")
    expect(page.locator("#names option")).to_have_count(1)
    expect(page.locator("#names option")).to_have_attribute("value", BLOCKED)
    page.get_by_label("Repository").fill("")
    page.get_by_label("By description").fill("gizmo")
    page.keyboard.press("Enter")
    hit = page.locator(".hits li").first
    expect(hit.locator("h2")).to_contain_text(HOSTILE)
    expect(hit.locator("h2")).to_contain_text("\\x1b[2J")
    expect(hit.locator(".code")).to_contain_text("def gizmo")
    expect(hit.locator(".code .k").first).to_have_text("def")  # highlighted
    expect(hit.locator(".code .linenos").first).to_have_text("2")
    expect(hit.locator("mark", has_text="gizmo").last).to_be_in_viewport()
    page.keyboard.press("/")
    expect(page.get_by_label("By description")).to_be_focused()
    expect(page.get_by_label("By description")).to_have_value("gizmo")

    for path in (
        *(f"/search?q={HOSTILE}&repository={HOSTILE}", f"/repositories/{REAL}?folder=src", f"/repositories/{HOSTILE}"),
        *(f"/runs?repository={HOSTILE}", f"/?name={HOSTILE}"),
    ):
        page.goto(url + path)
        expect(page.locator("main")).to_contain_text(" ")
        assert page.locator("main img").count() == 0, path


def test_lines_of_a_file_are_marked_by_the_address(page: Page, url: str) -> None:
    page.goto(f"{url}/files/{REAL}/-/billing/sessions.py#L6-9")
    expect(page.locator(".line.marked")).to_have_count(4)
    page.get_by_role("link", name="11", exact=True).click()
    expect(page.locator(".line:target")).to_contain_text("return len(expired)")


def test_what_renews_itself_moves_nothing_and_keeps_the_focus(page: Page, url: str) -> None:
    page.clock.install()
    page.goto(f"{url}/")
    button = row(page, PAUSED).get_by_role("button", name="Resume")
    button.focus()
    before = button.element_handle()
    for _ in range(2):
        with page.expect_response(lambda answer: bool(answer.request.headers.get("x-requested-with"))) as renewal:
            page.clock.run_for(5_000)
        assert renewal.value.status in (200, 304)
    expect(button).to_be_focused()
    assert before.evaluate("button => button.isConnected") is False  # it is another one by now
    assert page.evaluate("window.shift") < LEAST_SHIFT


def test_an_error_page_reloads_when_the_error_is_over(page: Page, showcase: Showcase) -> None:
    is_over = False

    def application() -> Any:
        return showcase.app if is_over else away()

    with showcase.served(application=application) as url:
        page.clock.install()
        page.goto(f"{url}/locks")
        expect(page.get_by_role("heading")).to_have_text("This did not work")
        is_over = True
        page.clock.run_for(5_000)
        expect(page.get_by_role("heading")).to_have_text("Locks")


def test_without_scripts_everything_is_there(browser: Browser, showcase: Showcase, url: str, live: Run) -> None:
    with visiting(browser, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/runs/{live.id}")
        assert page.locator("noscript").inner_html().count('http-equiv="refresh"') == 1
        page.goto(f"{url}/runs")
        assert page.locator("tbody time").first.inner_text()
        page.get_by_label("Status").select_option("blocked")
        page.get_by_role("button", name="Filter").click()
        assert page.locator("tbody .status.blocked").count() >= 1
        page.goto(f"{url}/")
        row(page, PAUSED).get_by_role("button", name="Sync").click()
        page.wait_for_url("**/runs/*")
        assert page.locator("#notice").inner_text() == "A sync was requested."


# The page of a repository -------------------------------------------------------------------------------------------


def test_a_repository_is_looked_through_from_the_first_page_to_a_line_of_a_file(page: Page, url: str) -> None:
    page.goto(f"{url}/?name={REAL}")
    page.get_by_role("link", name=REAL).click()
    expect(page.locator(".facts")).to_contain_text("every 30 minutes")
    expect(page.get_by_role("region", name="Definition")).to_contain_text("From the registry file")
    expect(page.get_by_role("region", name="Definition")).to_contain_text("max_file_bytes")

    files = page.get_by_role("region", name="Files")
    expect(files.locator(".tally")).to_contain_text("1 binary")
    expect(files.get_by_role("row", name="uv.lock")).to_contain_text("lock fileinclude it by name")
    expect(files.get_by_role("row", name="billing/")).to_contain_text("1 of 1 file")
    files.get_by_role("link", name="billing/").click()
    expect(files.get_by_role("row")).to_have_count(2)
    files.get_by_role("link", name="sessions.py").click()
    expect(page.locator("#L6")).to_contain_text("def remove_expired_sessions")
    page.get_by_role("link", name=REAL).click()
    page.wait_for_url(f"{url}/repositories/{REAL}")


# Versions of indexes, and files that failed ------------------------------------------------------------------------


def test_versions_of_an_index_are_seen(page: Page, showcase: Showcase, url: str) -> None:
    name = f"versions/{showcase.next_number()}"
    showcase.register(name)
    showcase.add_history(showcase.versions(name), VERSIONS)
    page.goto(f"{url}/repositories/{name}")
    versions = page.get_by_role("region", name="Versions of the index").locator("tbody tr")
    expect(versions).to_have_count(2)
    for words in ("2", "live", "openai text-embedding-3-small", "7000 characters"):
        expect(versions.first).to_contain_text(words)
    expect(versions.nth(1)).to_contain_text("removed in 6 d")


def test_what_needs_attention_is_on_the_pages(page: Page, showcase: Showcase, url: str) -> None:
    incomplete, blocked = showcase.run_of(WEB, RunStatus.COMPLETED), showcase.run_of(BLOCKED, RunStatus.BLOCKED)
    for path, selector, words in (
        ("/?show=attention", "tbody", "3 files could not be read"),
        ("/?show=attention", "tbody", "the token is not valid any more"),
        ("/?show=attention", ".figures.day", f"most of all {FAILED}, synced"),
        ("/?show=attention", ".figures.day", f"most of all {BLOCKED}, last current"),
        ("/?show=attention", "tbody .late", "late"),
        ("/?show=behind", "tbody", BLOCKED),
        ("/?show=paused", "tbody", "Moves to another server until Friday."),
        ("/", "section.change", "1 building"),
        (f"/repositories/{LIVE}", "section.index", "311 of about 1,204 files built"),
        (f"/repositories/{LIVE}", "section.missed", "noticed 24 h 0 min late"),
        (f"/runs?repository={WEB}&status=completed", "#runs .outcome .status.failed", "completed, 3 failed"),
        (f"/runs/{incomplete.id}", "#run .headline .status", "completed, 3 failed"),
        (f"/runs/{incomplete.id}", ".facts", "3 failed"),
        (f"/runs/{incomplete.id}", "#run", "Sync again"),
        (f"/runs/{incomplete.id}", "tbody tr:first-child", "src/router.ts"),
        (f"/?name={BLOCKED}", "tbody details", "Approve: 1,182 of 1,204 files lose their points"),
        (f"/runs/{blocked.id}", ".brake", "1,180 vanished, 2 too large"),
        (f"/runs/{blocked.id}", ".headline", "Approve: 1,182 of 1,204 files lose their points"),
    ):
        if page.url != url + path:
            page.goto(url + path)
        expect(page.locator(selector).first).to_contain_text(words)
    page.goto(f"{url}/repositories/{BLOCKED}")
    expect(page.locator("section.missed")).to_have_count(0)


def test_what_costs_is_confirmed_and_leads_to_its_run(page: Page, url: str) -> None:
    for button, notice, wants in (
        ("Full sync", "A full sync was requested: it reads every file again.", "full"),
        (
            "Verify and repair",
            "A verification was requested: it compares the index with the commit, and repairs what differs.",
            "full",
        ),
    ):
        page.goto(f"{url}/repositories/{NEW}")
        expect(page.get_by_role("button", name=button)).to_be_hidden()
        page.get_by_text("More", exact=True).click()
        page.get_by_role("button", name=button).click()
        page.wait_for_url(f"{url}/runs/*")
        expect(page.locator("#notice")).to_have_text(notice)
        expect(page.locator(".facts")).to_contain_text(wants)


def test_a_blocked_run_is_approved_on_the_first_page(page: Page, showcase: Showcase, url: str) -> None:
    blocked = showcase.run_of(BLOCKED, RunStatus.BLOCKED)
    page.goto(f"{url}/?name={BLOCKED}")
    approve = page.get_by_role("button", name="Approve: 1,182 of 1,204 files lose their points")
    expect(approve).to_be_hidden()
    page.get_by_text("Approve…").click()
    expect(approve).to_be_visible()
    expect(page.locator(f'input[value="{blocked.id}"]')).to_have_count(1)


def test_the_code_of_a_failed_run_leads_to_what_to_do(page: Page, showcase: Showcase, url: str) -> None:
    failed = showcase.run_of(FAILED, RunStatus.FAILED)
    page.goto(f"{url}/runs/{failed.id}")
    page.locator("#run > .reason").get_by_role("link", name="SOURCE_DENIED").click()
    paragraph = page.locator("#source_denied")
    expect(paragraph).to_be_in_viewport()
    expect(paragraph.locator("~ p").nth(1)).to_be_in_viewport()
    expect(paragraph.locator("~ p").nth(1)).to_contain_text("reposync runs retry ID")
    page.get_by_role("link", name="Rotate the token").click()
    expect(page.locator("h1")).to_have_text("Rotate a token")
    expect(page.get_by_role("navigation", name="Pages").locator("[aria-current]")).to_have_text("Help")
