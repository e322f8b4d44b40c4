"""Every page in a real browser, over everything that there is to show; and a run of another pod, seen live."""

# ruff: noqa: F401, F811 (fixtures of a browser are imported: conftest.py would load one for every test)
from __future__ import annotations

import re
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AxeResults
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from reposync.errors import Starting, StoreUnavailable
from reposync.store.run import Run
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import FILES, REPOSITORIES, VERSIONS
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


def press(page: Page, name: str, button: str) -> None:
    """In the menu of a repository on the first page."""
    row(page, name).locator("summary").click()
    row(page, name).get_by_role("button", name=button).click()


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
        "run-log": f"{url}/runs/{runs['incomplete']}?tab=log",
        "no-such-run": f"{url}/runs/abc",
        "search": f"{url}/search",
        "search-hits": f"{url}/search?q=expired+sessions",
        "search-nothing": f"{url}/search?q=expired&path=*.rs",
        "search-exact": f"{url}/search?q=expired+repo:{REAL}&mode=exact",
        "search-filtered": f"{url}/search?q=expired+lang:python",
        "file-found": f"{url}/files/{REAL}/-/billing/sessions.py?find=expired",
        "file": f"{url}/files/{REAL}/-/billing/sessions.py?lines=6-9#L6",
        "no-such-file": f"{url}/files/{REAL}/-/sessions.py",
        "search-mistake": f"{url}/search?q=expired&language=pyhton",
        "workers": f"{url}/workers",
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
NARROW_PHONE = PHONE | {"viewport": {"width": 360, "height": 740}}
# What the width of the window has to do with.
LAYOUT = {
    "runOnly": {
        "type": "rule",
        "values": [
            *("scrollable-region-focusable", "aria-hidden-focus", "color-contrast", "heading-order"),
            *("landmark-unique", "region", "empty-table-header", "bypass", "nested-interactive"),
        ],
    }
}
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
    window: dict[str, Any] = {"viewport": {"width": 1_440, "height": 900}} if is_desk else NARROW_PHONE
    for shown, name in every_page(browser, showcase, url, window):
        check(shown)
        assert shown.evaluate("window.shift") < LEAST_SHIFT, shown.url
        assert shown.evaluate(BROKEN) == [], f"a unit is on another line than its number: {shown.url}"
        keep_picture(shown, f"{name}-{kind}-light")
        shown.emulate_media(color_scheme="dark")
        check(shown, **COLOURS)
        keep_picture(shown, f"{name}-{kind}-dark")
        shown.emulate_media(color_scheme="light")


@pytest.mark.full
@pytest.mark.parametrize("width", [768, 1_920])
def test_every_page_is_accessible_on_a_tablet_and_on_a_wide_screen(
    browser: Browser, showcase: Showcase, url: str, width: int
) -> None:
    window = {"viewport": {"width": width, "height": 900}}
    for shown, _ in every_page(browser, showcase, url, window):
        check(shown, **LAYOUT)
        for other in (width, 1_110, 390):
            shown.set_viewport_size({"width": other, "height": 900})
            assert fits(shown), f"{shown.url} is wider than {other} px"
            assert shown.locator("header.top").evaluate("top => top.offsetHeight") < ONE_LINE, shown.url
        shown.set_viewport_size({"width": width, "height": 900})


def every_page(
    browser: Browser, showcase: Showcase, url: str, window: dict[str, Any]
) -> Generator[tuple[Page, str], None, None]:
    """One after another, each with its name."""
    with (
        showcase.served(f"operate:{OPERATOR}") as login_url,
        showcase.served(application=away) as away_url,
        visiting(browser, **window) as context,
    ):
        page = context.new_page()
        for name, address in addresses(showcase, url, login_url, away_url).items():
            page.goto(address)
            yield page, name


# The frame of every page ----------------------------------------------------------------------------------------------


def test_code_is_searched_from_every_page_and_the_keys_are_shown_on_request(page: Page, url: str, live: Run) -> None:
    for path in ("/", "/runs", f"/runs/{live.id}", f"/repositories/{REAL}", "/workers", "/docs", "/help/errors"):
        page.goto(url + path)
        page.keyboard.press("/")
        expect(page.get_by_role("search", name="Code").get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("where? / gizmo")  # keys are letters there
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/search?q=where*gizmo")

    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("Search code")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()


def test_without_scripts_the_keys_are_in_the_help_and_a_phone_has_its_menu(browser: Browser, url: str) -> None:
    with visiting(browser, **PHONE, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/")
        pages = page.get_by_role("navigation", name="Pages")
        expect(pages).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        assert pages.get_by_role("link").all_inner_texts() == [
            "Search",
            "Repositories",
            "Runs",
            "Workers",
            "API",
            "Help",
        ]
        pages.get_by_role("link", name="Runs").click()
        page.wait_for_url(f"{url}/runs")
        page.get_by_role("link", name="Keys").click()
        expect(page.locator("main #keys ~ table").first).to_contain_text("search code")


def test_a_notice_is_gone_when_what_was_requested_is_over(page: Page, showcase: Showcase, url: str, live: Run) -> None:
    page.goto(f"{url}/runs/{live.id}?done=sync")
    expect(page.locator("#notice")).to_have_text("A sync was requested.")
    showcase.end(live)
    expect(status(page)).to_have_text("completed")
    expect(page.locator("#notice")).to_have_count(0)
    page.reload()
    expect(page.locator("#notice")).to_have_count(0)


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
        page.goto(f"{proxy.url}/workers")
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
    expect(page.locator(".history")).to_contain_text("Success rate")
    for kind in ("Duration", "Queue wait", "Chunks embedded", "Results"):
        page.get_by_role("navigation", name="Charts").get_by_role("link", name=kind).click()
        expect(page.get_by_role("group", name=kind).locator("a").first).to_be_visible()
    rows = runs.get_by_role("row").filter(has=page.locator(".outcome"))
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(11)
    page.get_by_role("link", name="Newest").click()
    expect(rows).to_have_count(50)

    status = page.get_by_role("navigation", name="Status")
    status.get_by_role("link", name="Failed").click()
    page.wait_for_url(f"**/runs?repository={LIVE.replace('/', '%2F')}&status=failed")
    expect(page.locator("tbody .dot.failed")).to_have_count(3)
    expect(status.get_by_role("link", name="Failed")).to_have_text("Failed 3")
    status.get_by_role("link", name="Running").click()
    expect(rows).to_have_count(4)
    page.get_by_role("link", name="Clear").click()

    name = "days/berlin"
    showcase.register(name)
    queued_at = showcase.now.replace(year=2026, month=1, day=10, hour=23, minute=30)
    showcase.add_history([showcase.past_run(name, RunStatus.COMPLETED, showcase.now - queued_at, 3.0)])
    # 23:30 in London is the next day in Berlin.
    for day, count in (("2026-01-10", 0), ("2026-01-11", 1)):
        page.get_by_label("Filter").fill(f"repo:{name}")
        page.get_by_label("Since").fill(day)
        page.get_by_label("Until").fill(day)
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url(f"**since={day}**zone=Europe%2FBerlin")
        expect(page.locator("tbody tr")).to_have_count(count)
    expect(page.locator("tbody time")).to_have_attribute("title", re.compile(r"2026-01-10 23:3\d:\d\d UTC"))


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

    press(page, "many/055", "Pause")
    expect(row(page, "many/055").locator(".status").first).to_have_text("paused")
    expect(page.locator("#notice")).to_contain_text("Paused")
    expect(page.locator("#announced")).to_contain_text("Paused")
    expect(page.locator("tbody tr")).to_have_count(10)
    press(page, "many/055", "Resume")
    expect(row(page, "many/055").locator(".status")).to_have_count(0)


def test_a_filter_that_fits_nothing_can_be_left_out_also_if_an_index_of_other_repositories_is_gone(
    page: Page, url: str
) -> None:
    page.goto(f"{url}/search?q=expired&path=*.rs")
    expect(page.get_by_role("main")).to_contain_text("No results.")
    page.get_by_role("link", name="Search without path:*.rs").click()
    expect(page.get_by_role("main")).to_contain_text("remove_expired_sessions")


def test_a_name_that_no_longer_fits_is_not_taken_while_the_server_is_slow(page: Page, url: str, live: Run) -> None:
    page.route(re.compile(r"/repositories\?.*name="), lambda route: None)  # never answered
    page.goto(f"{url}/search")
    field, options = page.get_by_role("combobox", name="Search in code"), page.get_by_role("option")
    field.press_sequentially("repo:")
    expect(options.nth(1)).to_be_visible()
    second = options.nth(1).inner_text()
    field.press_sequentially(second.removeprefix("repo:"))
    expect(options).to_have_text([second])
    page.keyboard.press("Tab")
    expect(field).to_have_value(f"{second} ")


def test_search_shows_code_and_names_as_they_are_and_runs_nothing(page: Page, url: str, live: Run) -> None:
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.goto(f"{url}/")
    page.get_by_role("link", name="Search").click()
    page.wait_for_url(f"{url}/search")  # with its script, which suggests the names
    field = page.get_by_role("combobox", name="Search in code")
    field.press_sequentially("rep")
    options = page.get_by_role("option")
    # Lists: a locator of one element fails at once, and does not wait, while the options of the text before are shown.
    expect(options).to_have_text([re.compile("repo:")])
    page.keyboard.press("Tab")
    expect(field).to_have_value("repo:")
    field.press_sequentially("bill")
    expect(options).to_have_text([f"repo:{BLOCKED}"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(field).to_have_value(f"repo:{BLOCKED} ")
    field.fill("gizmo")
    page.keyboard.press("Enter")
    card = page.locator(".hits .card").first
    expect(card.get_by_role("heading")).to_contain_text(HOSTILE)
    expect(card.get_by_role("heading")).to_contain_text("\\x1b[2J")
    hit = card.locator(".hit").first
    expect(hit.locator(".code")).to_contain_text("def gizmo")
    expect(hit.locator(".code .k").first).to_have_text("def")  # highlighted
    expect(hit.locator("mark", has_text="gizmo").last).to_be_in_viewport()
    page.keyboard.press("/")
    expect(field).to_be_focused()
    expect(field).to_have_value("gizmo")

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


def test_hits_are_walked_through_with_the_keyboard_beside_a_preview(page: Page, url: str) -> None:
    page.goto(f"{url}/search?q=expired+repo:{REAL}&mode=exact")
    hits, preview = page.locator(".hit"), page.locator("#preview")
    expect(hits.nth(0)).to_have_class("hit current")
    expect(preview.locator(".codeline.marked").first).to_contain_text("expired")
    expect(preview).to_contain_text("Open billing/sessions.py")
    page.locator("body").press("Enter")
    page.wait_for_url("**/files/**")
    expect(page.locator(".line.marked").first).to_contain_text("expired")


def test_more_lines_of_a_hit_are_added_where_it_is(page: Page, url: str) -> None:
    page.goto(f"{url}/search?q=symbol:remove_expired_sessions")
    hit = page.locator(".hit").first
    rows = hit.locator(".codeline")
    before = rows.count()
    hit.get_by_role("link", name="+10 lines above").click()
    expect(rows.first).to_have_attribute("data-line", "1")
    assert rows.count() > before
    numbers = [int(row.get_attribute("data-line") or 0) for row in rows.all()]
    assert numbers == list(range(1, len(numbers) + 1)), "each line once, in order"
    expect(hit.get_by_role("link", name="+10 lines above")).to_be_hidden()


def test_what_renews_itself_moves_nothing_and_keeps_the_focus(page: Page, url: str) -> None:
    page.clock.install()
    page.goto(f"{url}/")
    button = row(page, PAUSED).locator("summary")
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
        page.goto(f"{url}/workers")
        expect(page.get_by_role("heading")).to_have_text("This did not work")
        is_over = True
        page.clock.run_for(5_000)
        expect(page.get_by_role("heading", level=1)).to_have_text("Workers")


def test_without_scripts_everything_is_there(browser: Browser, showcase: Showcase, url: str, live: Run) -> None:
    with visiting(browser, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/runs/{live.id}")
        assert page.locator("noscript").inner_html().count('http-equiv="refresh"') == 1
        page.goto(f"{url}/runs")
        assert page.locator("tbody time").first.inner_text()
        page.get_by_role("navigation", name="Status").get_by_role("link", name="Blocked").click()
        assert page.locator("tbody .dot.blocked").count() >= 1
        page.goto(f"{url}/")
        press(page, PAUSED, "Sync")
        page.wait_for_url("**/runs/*")
        assert page.locator("#notice").inner_text() == "A sync was requested."


# The page of a repository -------------------------------------------------------------------------------------------


def test_a_repository_is_looked_through_from_the_first_page_to_a_line_of_a_file(page: Page, url: str) -> None:
    page.goto(f"{url}/?name={REAL}")
    page.get_by_role("link", name=REAL, exact=True).click()
    expect(page.locator("#standing")).to_contain_text("current, checked")
    page.get_by_text("Settings and definition").click()
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
    for words in ("2", "live", "openai text-embedding-3-small", "7,000 characters"):
        expect(versions.first).to_contain_text(words)
    expect(versions.nth(1)).to_contain_text("removed in 6 d")


def test_what_needs_attention_is_on_the_pages(page: Page, showcase: Showcase, url: str) -> None:
    incomplete, blocked = showcase.run_of(WEB, RunStatus.COMPLETED), showcase.run_of(BLOCKED, RunStatus.BLOCKED)
    for path, selector, words in (
        ("/", ".attention", "3 files could not be read"),
        ("/", ".attention", "the token is not valid any more. Make a new one. for 5"),
        ("/", ".attention", "behind for 2"),
        ("/?show=attention", "tbody .late", "late, checked 3"),
        ("/?show=behind", "tbody", BLOCKED),
        ("/?show=paused", "tbody", "Moves to another server until Friday."),
        ("/", "section.change", "1 building"),
        (f"/repositories/{LIVE}", "section.index", "311 of about 1,204 files built"),
        (f"/repositories/{LIVE}", "section.missed", "noticed 24 h 0 min late"),
        (f"/runs?repository={WEB}&status=completed", "#runs .outcome .error", "completed, 3 failed"),
        (f"/runs/{incomplete.id}", "#run .headline .status", "completed, 3 failed"),
        (f"/runs/{incomplete.id}", ".facts", "3 failed"),
        (f"/runs/{incomplete.id}", "#run", "Sync again"),
        (f"/runs/{incomplete.id}", "tbody tr:first-child", "src/router.ts"),
        (f"/runs/{blocked.id}", ".decision", "1,180 deleted in the commit, 2 too large now"),
        (f"/runs/{blocked.id}", ".decision", "Remove 1,182 files from the index"),
        (f"/runs/{blocked.id}", ".decision", "billing/ 1,140"),
        (f"/runs/{blocked.id}", ".decision", "reposync runs approve"),
        (f"/runs/{blocked.id}", ".commits", "Ada Lovelace"),
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


def test_a_blocked_run_is_decided_on_its_page_to_which_the_first_page_leads(
    page: Page, showcase: Showcase, url: str
) -> None:
    blocked = showcase.run_of(BLOCKED, RunStatus.BLOCKED)
    page.goto(f"{url}/")
    expect(page.locator('form[action="/actions/approve"]')).to_have_count(0)
    page.get_by_role("link", name=f"Decide: {BLOCKED}").click()
    page.wait_for_url(f"{url}/runs/{blocked.id}")
    expect(page.get_by_role("button", name="Remove 1,182 files from the index")).to_be_visible()


def test_a_first_sync_that_was_cancelled_needs_attention(page: Page, showcase: Showcase, url: str) -> None:
    name = f"words/{showcase.next_number()}"
    showcase.register(name)
    (live, _) = showcase.versions(name)
    showcase.add_history([live | {"meaning_pending": 94}], VERSIONS)
    showcase.add_history([showcase.file(name, number) | {"chunks": 1} for number in range(100)], FILES)
    showcase.add_history([showcase.past_run(name, RunStatus.CANCELLED, timedelta(minutes=17), 30.0)])
    page.goto(f"{url}/?name={name}&show=attention")
    expect(row(page, name)).to_contain_text("words only, 6% of meaning")
    page.goto(f"{url}/")
    line = page.locator(".attention li").filter(has_text=name)
    expect(line).to_contain_text("no run continues it")
    line.get_by_role("button", name="Sync").click()
    page.wait_for_url(f"{url}/runs/*")


def test_when_all_are_current_the_first_page_says_so_in_one_line(browser: Browser, tmp_path: Path) -> None:
    with Showcase(tmp_path, is_empty=True) as calm, calm.served() as url, visiting(browser, **PHONE) as context:
        for number in range(10):
            calm.register(f"platform/service-{number}")
            calm.add_history(calm.versions(f"platform/service-{number}")[:1], VERSIONS)
        calm.call(calm.app.database.change(update(REPOSITORIES).values(last_sync_at=calm.now)))
        page = context.new_page()
        page.goto(f"{url}/")
        expect(page.locator("#calm")).to_contain_text("All 10 repositories are current, last check")
        expect(page.locator(".attention")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollHeight") < 1_500
        page.get_by_text("checked").nth(4).click(force=True)  # the link of its row covers it
        page.wait_for_url(f"{url}/repositories/platform/service-4")


def test_the_code_of_a_failed_run_leads_to_what_to_do(page: Page, showcase: Showcase, url: str) -> None:
    failed = showcase.run_of(FAILED, RunStatus.FAILED)
    page.goto(f"{url}/runs/{failed.id}")
    page.locator("#run > .reason").get_by_role("link", name="SOURCE_DENIED").click()
    row = page.get_by_role("row", name="SOURCE_DENIED")
    expect(row).to_be_in_viewport()
    row.get_by_role("link", name="Rotate the token").click()
    expect(page.locator("h1")).to_have_text("Rotate a token")
    expect(page.get_by_role("navigation", name="Pages").locator("[aria-current]")).to_have_text("Help")
