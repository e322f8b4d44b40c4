"""The pages in a real browser, served by a real daemon that really syncs. What each page shows of everything that there
may be is tested over tests/fixtures/showcase.py."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from reposync.config.database_url import sqlite_url
from tests.fixtures.browser import DESKTOP, keep_picture, log_out, visiting
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

FILES = 400
APP, BROKEN = "platform/app", "data/broken"
GITLAB_TOKEN = "glpat-reader-of-everything"
OPERATOR, READER = "operate-4f9a0c6b2d8e", "readonly-7b1c5e9d3a20"


class Daemon:
    """One for all tests of this module: with tokens, as whoever shares it has it."""

    def __init__(self, home: Path, gitlab: GitLabServer, embeddings: EmbeddingServer) -> None:
        self.embeddings = embeddings
        self.repository = GitRepository.create(home / "app.git")
        self.repository.commit(
            {"billing/sessions.py": b"def remove_expired_sessions(now):\n    return '<b>bold</b>'\n"}
        )
        gitlab.add_token(GITLAB_TOKEN, scopes=("read_api", "read_repository"))
        gitlab.add_project(APP, self.repository.path)
        (home / "repositories.yaml").write_text(
            f'{embeddings.registry}gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
            "daemon: {retry_seconds: 0.1, retry_max_seconds: 0.1, lease_seconds: 3}\n"
            "repositories:\n"
            f"  - {{name: {APP}, gitlab: main, project: {APP}, schedule: yearly}}\n"
            f"  - {{name: {BROKEN}, path: '{home}/nowhere', schedule: yearly}}\n"
        )
        tokens = {"REPOSYNC_API_TOKEN": f"operate:{OPERATOR},read:{READER}", "GITLAB_TOKEN": GITLAB_TOKEN}
        self.pod = Pod("pod", home, tokens)
        self.log = ExecutionLog(sqlite_url(home / "state" / "reposync.db"))
        self.gitlab_url = gitlab.url

    @property
    def url(self) -> str:
        assert self.pod.url is not None
        return self.pod.url


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon, None, None]:
    home = tmp_path_factory.mktemp("pages")
    with GitLabServer() as gitlab, EmbeddingServer() as embeddings:
        daemon = Daemon(home, gitlab, embeddings)
        with daemon.pod:
            until(lambda: daemon.log.ended(APP) and daemon.log.ended(BROKEN, "failed"), details=daemon.pod.log_tail)
            yield daemon


@pytest.fixture
def operator(page: Page, daemon: Daemon) -> Page:
    """A page of somebody who has logged in, and may do everything."""
    page.goto(f"{daemon.url}/")
    log_in(page, OPERATOR)
    expect(page.get_by_role("heading", name="Repositories", exact=True)).to_be_visible()
    return page


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def row(page: Page, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def press(page: Page, name: str, button: str) -> None:
    """In the menu of a repository on the first page."""
    row(page, name).locator("summary").click()
    row(page, name).get_by_role("button", name=button).click()


def status(page: Page) -> Any:
    return page.locator("#run .headline .status")


def test_people_log_in_and_readers_only_read(browser: Browser, daemon: Daemon) -> None:
    with visiting(browser) as context:
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(f"{daemon.url}/runs?status=completed")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        log_in(page, "something else entirely")
        expect(page.get_by_role("alert")).to_contain_text("unknown")

        log_in(page, READER)
        page.wait_for_url("**/runs?status=completed")  # where they wanted to go
        page.get_by_role("link", name="Repositories").click()
        expect(row(page, APP)).to_be_visible()
        assert {each.inner_text() for each in page.get_by_role("button").all()} == {"Filter"}
        page.get_by_text("read token").click()
        expect(page.get_by_text("token 2: may read, and change nothing.")).to_be_visible()
        page.keyboard.press("Escape")
        page.set_viewport_size({"width": 720, "height": 900})
        assert page.get_by_role("banner").evaluate("menu => menu.offsetHeight") < 60, "the menu fits on one line"

        copied = {each["name"]: each["value"] for each in context.cookies()}
        assert httpx.get(f"{daemon.url}/runs", cookies=copied).status_code == 200
        log_out(page)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert httpx.get(f"{daemon.url}/runs", cookies=copied).status_code == 303, "the session has ended"
        log_in(page, OPERATOR)
        press(page, APP, "Sync")
        expect(status(page)).to_have_text("completed")
        assert OPERATOR not in page.content()
        assert said == [], "Chromium names what its password manager misses"


def test_a_broken_registry_file_is_on_every_page_until_it_is_repaired(operator: Page, daemon: Daemon) -> None:
    page, registry = operator, daemon.pod.home / "repositories.yaml"
    before = registry.read_text()
    trouble = page.locator("#troubles").get_by_role("alert")
    expect(trouble).to_have_count(0)
    try:
        registry.write_text(before.replace("schedule:", "shedule:"))
        # On the page that is open, without a reload, with line and column.
        expect(trouble).to_contain_text(re.compile(r"registry: .*:\d+:\d+.*shedule"))
        for path in ("/runs", "/search", "/workers", "/docs", "/none", f"/runs?repository={APP}"):
            page.goto(f"{daemon.url}{path}")
            expect(trouble).to_contain_text("shedule")
    finally:
        registry.write_text(before)
    page.goto(f"{daemon.url}/runs")
    expect(trouble).to_have_count(0)


def test_a_click_starts_a_sync_that_is_seen_to_its_end_and_found_again(operator: Page, daemon: Daemon) -> None:
    page = operator
    daemon.repository.many(FILES)
    with daemon.embeddings.holding():
        press(page, APP, "Sync")
        page.wait_for_url("**/runs/*")
        page.evaluate("window.stayed = true")
        expect(status(page)).to_have_text("running")
        expect(page.locator(".progress")).to_contain_text(f"of {FILES} files")
        keep_picture(page, "a-real-run-under-way")
    expect(status(page)).to_have_text("completed")
    expect(page.locator(".facts")).to_contain_text(f"{FILES} stored")
    commits = page.locator(".commits a[href*='/-/commit/']")
    expect(commits.last).to_have_attribute("href", f"{daemon.gitlab_url}/{APP}/-/commit/{daemon.repository.head()}")
    expect(page.locator(".commits")).to_contain_text("Many files")
    expect(page.locator(".steps li.next")).to_have_count(0)
    assert page.evaluate("window.stayed")

    page.get_by_role("link", name="Runs").click()
    first = page.get_by_role("row").nth(1)
    for words in (APP, "completed", "token", f"{FILES:,}"):
        expect(first).to_contain_text(words)

    page.get_by_role("link", name="Search").click()
    page.get_by_label("Search in code").fill("remove expired sessions path:billing/*.py")
    page.get_by_role("button", name="Search").click()
    title = page.locator(".hits .card").first.get_by_role("heading")
    expect(title).to_have_text(re.compile(rf"{APP}\s*/\s*billing\s*/\s*sessions\.py"))
    link = title.get_by_role("link").last
    address = page.get_by_role("link", name="GitLab").first.get_attribute("href")
    assert address is not None and address.startswith(f"{daemon.gitlab_url}/{APP}/-/blob/")
    assert address.endswith("/billing/sessions.py#L1-2")
    expect(page.locator(".code").first).to_contain_text("return '<b>bold</b>'")

    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(rf"{APP}\s*/\s*billing\s*/\s*sessions\.py"))
    expect(page.locator(".line.marked")).to_have_count(2)
    assert page.get_by_role("link", name="Open at its source").get_attribute("href") == address
    page.locator(".definitions").get_by_role("link", name="remove_expired_sessions").click()
    assert page.evaluate("document.querySelector(':target').id") == "L1"


def test_a_run_is_cancelled_by_a_click(operator: Page, daemon: Daemon) -> None:
    page = operator
    daemon.repository.many(FILES, content=lambda number: f"cancelled = {number}\n".encode())
    with daemon.embeddings.holding():
        press(page, APP, "Sync")
        expect(status(page)).to_have_text("running")
        page.get_by_role("button", name="Cancel").click()
        expect(status(page)).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()


def test_the_history_tells_why_a_run_failed_and_a_click_tries_again(operator: Page, daemon: Daemon) -> None:
    page = operator
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("navigation", name="Status").get_by_role("link", name="Failed").click()
    expect(page.locator("tbody tr.note").first).to_contain_text("does not exist")
    page.locator("tbody a.id").first.click()
    expect(page.locator("#run > .reason")).to_contain_text("does not exist")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator(".timeline li")).to_have_count(2)
    expect(status(page)).to_have_text("failed")
    expect(page.locator("#notice")).to_have_count(0)


def test_the_keyboard_is_enough_and_times_are_the_readers(operator: Page, daemon: Daemon) -> None:
    page = operator
    page.goto(f"{daemon.url}/?name={BROKEN}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('tbody summary')"):
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    expect(status(page)).to_have_text("failed")

    time = page.locator(".facts time").first
    shown, utc = time.inner_text(), time.get_attribute("title")
    assert utc is not None and utc.endswith("UTC")
    assert DESKTOP["timezone_id"] == "Europe/Berlin"
    assert (int(shown[11:13]) - int(utc[11:13])) % 24 in (1, 2)
