"""The pages in a real browser, served by a real daemon."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from reposync.store.addresses import sqlite_url
from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

FILES = 1_500
HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN, READER = "operate-4f9a0c6b2d8e", "readonly-7b1c5e9d3a20"


@pytest.fixture
def pod(person: Person, repository: GitRepository, embeddings: EmbeddingServer) -> Generator[Pod, None, None]:
    repository.commit({"billing/sessions.py": b"def remove_expired_sessions(now):\n    return '<b>bold</b>'\n"})
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.configures(
        f'embedding: {{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64}}\n'
        "daemon: {retry_seconds: 0.1, retry_max_seconds: 0.1}\n"
        "repositories:\n"
        f"  - {{name: platform/app, path: '{repository.path}', schedule: yearly}}\n"
        f"  - {{name: broken, path: '{person.home}/nowhere', schedule: yearly}}\n"
    )
    pod = Pod("pod", person.home)
    try:
        yield pod
    finally:
        pod.__exit__(None, None, None)


@pytest.fixture
def log(person: Person) -> ExecutionLog:
    return ExecutionLog(sqlite_url(person.home / "state" / "reposync.db"))


@pytest.fixture
def served(pod: Pod, log: ExecutionLog) -> Pod:
    pod.start()
    until(lambda: log.ended("platform/app") and log.ended("broken", "failed"), told=pod.said)
    return pod


def row(page: Page, name: str):
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def test_a_click_starts_a_sync_that_is_seen_to_its_end_without_a_reload(
    page: Page,
    served: Pod,
    repository: GitRepository,
    embeddings: EmbeddingServer,
):
    repository.many(FILES)
    with embeddings.holding():
        page.goto(f"{served.url}/")
        row(page, "platform/app").get_by_role("button", name="Sync").click()
        page.wait_for_url("**/runs/*")
        page.evaluate("window.stayed = true")
        expect(page.locator("#run .status").first).to_have_text("running")
        expect(page.locator(".progress")).to_contain_text("files")
    expect(page.locator("#run .status").first).to_have_text("completed", timeout=60_000)
    expect(page.locator(".facts")).to_contain_text(f"{FILES:,} stored")
    assert page.evaluate("window.stayed")

    page.get_by_role("link", name="Runs").click()
    first = page.get_by_role("row").nth(1)
    expect(first).to_contain_text("platform/app")
    expect(first).to_contain_text("http")


def test_the_history_is_filtered_and_tells_why_a_run_failed(page: Page, served: Pod):
    page.goto(f"{served.url}/runs")
    expect(page.get_by_role("row")).to_have_count(3)

    page.get_by_label("Status").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("row").nth(1).get_by_role("link").first.click()
    expect(page.locator(".reason")).to_contain_text("does not exist")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("status")).to_contain_text("Queued again")

    page.goto(f"{served.url}/runs?repository=platform/app")
    expect(page.get_by_text("Success rate")).to_be_visible()
    expect(page.locator("svg.bars")).to_have_count(2)
    page.goto(f"{served.url}/runs?trigger=webhook")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()


def test_a_run_is_cancelled_by_a_click(
    page: Page,
    served: Pod,
    repository: GitRepository,
    embeddings: EmbeddingServer,
):
    repository.many(FILES)
    with embeddings.holding():
        page.goto(f"{served.url}/")
        row(page, "platform/app").get_by_role("button", name="Sync").click()
        expect(page.locator("#run .status").first).to_have_text("running")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#run .status").first).to_have_text("cancelled", timeout=60_000)


def test_pause_and_resume_are_a_click_each_and_times_are_the_readers(page: Page, served: Pod):
    page.goto(f"{served.url}/")
    row(page, "platform/app").get_by_role("button", name="Pause").click()
    expect(row(page, "platform/app").locator(".status").first).to_have_text("paused")
    row(page, "platform/app").get_by_role("button", name="Resume").click()
    expect(row(page, "platform/app").locator(".status").first).to_have_text("active")

    page.goto(f"{served.url}/runs")
    time = page.locator("time").first
    shown, utc = time.inner_text(), time.get_attribute("title")
    assert utc.endswith("UTC")
    hours = (int(shown[11:13]) - int(utc[11:13])) % 24
    assert hours in (1, 2)  # Berlin


def test_search_shows_code_and_does_not_run_it(page: Page, served: Pod, repository: GitRepository, log):
    repository.commit({f"src/{HOSTILE}\x1b[2J.py": f"# {HOSTILE}\ndef gizmo(): pass\n".encode()})
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(f"{served.url}/")
    row(page, "platform/app").get_by_role("button", name="Sync").click()
    expect(page.locator("#run .status").first).to_have_text("completed")

    page.get_by_role("link", name="Search").click()
    page.get_by_label("In words").fill("gizmo")
    page.get_by_role("button", name="Search").click()
    hit = page.locator(".hits li").first
    expect(hit.locator("h2")).to_contain_text(HOSTILE)
    expect(hit.locator("h2")).to_contain_text("\\x1b[2J")
    expect(hit.locator(".code")).to_contain_text("def gizmo")
    expect(hit.locator(".code .linenos").first).to_have_text("1")

    page.goto(f"{served.url}/search?q={HOSTILE}&repository={HOSTILE}")
    expect(page.get_by_text("No repository")).to_be_visible()
    page.goto(f"{served.url}/runs?repository={HOSTILE}&before={HOSTILE}")
    assert page.locator("img").count() == 0
    assert dialogs == []


def test_with_tokens_people_log_in_and_readers_only_read(page: Page, pod: Pod, log: ExecutionLog):
    pod.environment = {"REPOSYNC_API_TOKEN": f"operate:{TOKEN},read:{READER}"}
    pod.start()
    until(lambda: log.ended("platform/app"), told=pod.said)
    page.goto(f"{pod.url}/runs?status=completed")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Token").fill("something else entirely")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")

    page.get_by_label("Token").fill(READER)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/runs?status=completed")  # where they wanted to go
    page.get_by_role("link", name="Repositories").click()
    expect(page.get_by_role("link", name="platform/app", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Sync")).to_have_count(0)

    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    row(page, "platform/app").get_by_role("button", name="Sync").click()
    expect(page.locator("#run .status").first).to_have_text("completed")
    assert TOKEN not in page.content()


PATHS = ("/", "/runs", "/runs?repository=platform/app", "/search?q=expired", "/locks", "/search", "/runs/none-of-this")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_the_pages(browser: Browser, served: Pod, log: ExecutionLog, scheme):
    run = log.ended("broken", "failed")[0]
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    for path in (*PATHS, f"/runs/{run.id}"):
        page.goto(served.url + path)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
    context.close()


def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, served: Pod, log):
    run = log.ended("broken", "failed")[0]
    context = browser.new_context(viewport={"width": 360, "height": 700}, has_touch=True)
    page = context.new_page()
    for path in (*PATHS, f"/runs/{run.id}"):
        page.goto(served.url + path)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
    context.close()


def test_the_keyboard_is_enough(page: Page, served: Pod):
    page.goto(f"{served.url}/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Sync":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")


def test_what_renews_itself_moves_nothing_and_keeps_the_focus(page: Page, served: Pod):
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((e) => window.shift += e.value))"
        ".observe({type: 'layout-shift', buffered: true});"
    )
    page.goto(f"{served.url}/")
    button = row(page, "platform/app").get_by_role("button", name="Pause")
    button.focus()
    with page.expect_response(lambda answer: answer.request.headers.get("x-requested-with") == "refresh"):
        pass
    expect(row(page, "platform/app").get_by_role("button", name="Pause")).to_be_focused()
    assert page.evaluate("window.shift") < 0.01
