"""Pages as they go over the wire: what goes wrong is told on a page, and what is asked again and again costs little."""

from __future__ import annotations

import contextlib
import gzip
import html
import re
import ssl
from collections.abc import Generator, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update

from reposync.api.web.runs_page import PAGE_REQUESTS
from reposync.app.application import Application
from reposync.errors import Starting, StoreUnavailable
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import FILES, REPOSITORIES
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.showcase import HOSTILE, LIVE, MAX_ATTEMPTS, PAUSED, WORKER, Showcase

OPERATOR, READER = "operate-4f9a0c6b2d8e", "readonly-7b1c5e9d3a20"
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
# Made once: it takes longer than a page does.
NO_TLS = ssl.create_default_context()
ask = partial(httpx.request, verify=NO_TLS, timeout=PATIENCE_SECONDS)


def failing(app: FastAPI) -> None:
    @app.get("/test/unforeseen")
    async def unforeseen() -> None:
        raise ZeroDivisionError("hunter22")


@pytest.fixture(scope="module")
def open_url(showcase: Showcase) -> Generator[str, None, None]:
    """Without tokens: whoever is on this machine may do everything."""
    with showcase.served(routes=failing) as url:
        yield url


@pytest.fixture(scope="module")
def guarded_url(showcase: Showcase) -> Generator[str, None, None]:
    with showcase.served(f"operate:{OPERATOR}", f"read:{READER}") as url:
        yield url


def away() -> Application:
    raise StoreUnavailable("The database at db.example.com does not answer.", remedy="It is tried again.")


def starting() -> Application:
    raise Starting("The daemon is starting.", remedy="Ask again in a moment.")


@contextlib.contextmanager
def logged_in(url: str, token: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers=BROWSER, verify=NO_TLS, timeout=PATIENCE_SECONDS) as client:
        answer = client.post("/login", data={"token": token})
        assert answer.headers["location"] == "/"
        yield client


def heading(answer: httpx.Response) -> str:
    found = re.search(r"<h1>(.*?)</h1>", answer.text)
    assert found is not None, answer.text
    return found[1]


def check(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert heading(answer) == ("Not found" if status == 404 else "This did not work")
    assert '<header class="top">' in answer.text
    for each in words:
        assert each in answer.text, answer.text
    assert "Traceback" not in answer.text and '{"error"' not in answer.text
    assert "<code>reposync" not in answer.text and "/api/v1" not in answer.text, "a browser has no shell"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/nothing/here", 404, "There is nothing at /nothing/here."),
        ("GET", "/<script>alert(1)</script>", 404, "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("GET", "/runs/none-of-this", 404, "none-of-this"),
        ("GET", "/actions/sync", 405, "GET is not possible"),
        ("GET", "/logout", 405, "GET is not possible"),
        ("POST", "/", 405, "POST is not possible"),
        ("GET", "/runs?before=rubbish", 422, "cursor is not valid"),
        ("GET", "/?after=***", 422, "cursor is not valid"),
        ("GET", "/repositories/a%1Bb", 422, "must not contain a line break"),
        ("GET", "/runs?repository=a%0Ab", 422, "must not contain a line break"),
        ("GET", "/?name=a%1Bb", 422, "must not contain a line break"),
        ("GET", "/search?q=%00", 422, "NUL"),
        ("GET", "/search?q=" + "a" * 9_000, 414, "the limit is 8,192"),
        ("GET", "/test/unforeseen", 500, "under incident"),
    ],
)
def test_an_error_page_says_what_happened(open_url: str, method: str, path: str, status: int, words: str) -> None:
    answer = ask(method, open_url + path, headers=BROWSER)

    check(answer, status, words, 'href="/"')
    assert "hunter22" not in answer.text
    assert ("allow" in answer.headers) == (status == 405)


def test_a_button_that_comes_too_late_or_names_nothing_says_so(open_url: str, showcase: Showcase) -> None:
    def press(what: str, **fields: str) -> httpx.Response:
        return ask("POST", f"{open_url}/actions/{what}", data=fields, headers=BROWSER)

    ended = showcase.run_of(LIVE, RunStatus.COMPLETED)
    check(press("approve", run=ended.id), 409, "only a blocked run can be approved")
    near = "Did you mean &#39;platform/web&#39;?"
    check(press("sync", name="paltform/web"), 404, near)
    check(press("sync", name="zzzzzzzz"), 404, "zzzzzzzz")
    check(press("sync"), 404)
    check(press("cancel", run=ended.id[:8]), 404)
    check(press("release", name=PAUSED), 404)
    check(press("explode"), 422, "no action")
    check(press("sync", name="x" * 1_100_000), 413)


def test_another_sites_page_and_a_name_that_is_not_ours_get_nothing_but_a_page(open_url: str) -> None:
    foreign = {**BROWSER, "Origin": "http://evil.example"}
    check(ask("POST", f"{open_url}/actions/sync", headers=foreign), 403, "A page of another site")

    rebound = ask("GET", open_url, headers={**BROWSER, "Host": "rebound.example"})
    check(rebound, 421, "rebound.example")
    assert LIVE not in rebound.text and 'href="/runs"' not in rebound.text
    # It can be read, though: what it looks like is no secret.
    (stylesheet,) = re.findall(r'<link rel="stylesheet" href="(.*?)">', rebound.text)
    assert ask("GET", open_url + stylesheet, headers={"Host": "rebound.example"}).status_code == 200


def test_a_reader_cannot_change_anything_and_no_other_site_can(guarded_url: str) -> None:
    with logged_in(guarded_url, READER) as reader:
        page = reader.get("/")
        assert LIVE in page.text and "/actions/" not in page.text
        check(reader.post("/actions/sync", data={"name": LIVE}), 403, "may read, but not operate")
    with logged_in(guarded_url, OPERATOR) as operator:
        for action in ("/actions/sync", "/logout"):
            answer = operator.post(action, data={"name": LIVE}, headers={"Origin": "http://evil.example"})
            check(answer, 403, "A page of another site")
        assert operator.get("/").status_code == 200


def test_without_a_session_there_is_the_login_and_no_error(guarded_url: str) -> None:
    paths = ("/", "/runs?status=failed", "/runs/abc", "/search", "/workers", "/nothing/../runs")
    for path in (*paths, f"/repositories/{LIVE}", f"/files/{LIVE}/-/a.py"):
        answer = ask("GET", guarded_url + path, headers=BROWSER)
        assert (answer.status_code, answer.headers["location"][:6]) == (303, "/login"), path
    # What is in nobody's way tells nothing about what there is.
    check(ask("GET", f"{guarded_url}/nothing", headers=BROWSER), 404)
    wrong = {**BROWSER, "Authorization": "Bearer of-nobody-at-all"}
    assert ask("GET", guarded_url, headers=wrong).headers["location"] == "/login"


def test_a_filter_by_a_misspelt_repository_names_the_nearest(open_url: str) -> None:
    misspelt = ask("GET", f"{open_url}/runs?repository=paltform/web", headers=BROWSER)
    known = ask("GET", f"{open_url}/runs?repository=platform/web&since=2030-01-01", headers=BROWSER)

    assert misspelt.status_code == known.status_code == 200
    assert "No repository &#39;paltform/web&#39; is registered. Did you mean &#39;platform/web&#39;?" in misspelt.text
    assert "No run matches these filters" in known.text and "Did you mean" not in known.text


def test_while_the_database_is_away_pages_say_so_and_try_again_by_themselves(showcase: Showcase) -> None:
    with showcase.served(application=starting) as url:
        answer = ask("GET", f"{url}/runs", headers=BROWSER)
        check(answer, 503, "The daemon is starting", 'data-retry="5"', "reloads by itself")
        assert "database" not in answer.text
    with showcase.served(application=away) as url:
        for path in ("/", "/runs", f"/runs/{'a' * 36}", "/workers", "/search?q=x"):
            answer = ask("GET", url + path, headers=BROWSER)
            check(answer, 503, "db.example.com", 'data-retry="5"', "reloads by itself")
            assert answer.headers["retry-after"] == "5"
        # A button is not pressed again by itself.
        pressed = ask("POST", f"{url}/actions/sync", data={"name": LIVE}, headers=BROWSER)
        assert pressed.status_code == 503 and "data-retry" not in pressed.text
        # What needs no database is there.
        assert ask("GET", f"{url}/docs", headers=BROWSER).status_code == 200
        assert ask("GET", f"{url}/search", headers=BROWSER).status_code == 200
        refused = ask("GET", f"{url}/api/v1/runs", headers=BROWSER)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "STORE_UNAVAILABLE")


def test_the_api_responds_with_its_envelope_to_browsers_too(open_url: str, guarded_url: str) -> None:
    for path, code in (("/api/v1/runs/none", "RUN_NOT_FOUND"), ("/api/v1/none", "NOT_FOUND")):
        answer = ask("GET", open_url + path, headers=BROWSER)
        assert (answer.headers["content-type"], answer.json()["error"]["code"]) == ("application/json", code)
    assert ask("GET", f"{guarded_url}/api/v1/runs", headers=BROWSER).json()["error"]["code"] == "UNAUTHENTICATED"
    # Nobody said that HTML will do.
    for accept in ("*/*", "application/json", ""):
        answer = ask("GET", f"{open_url}/runs/none", headers={"Accept": accept})
        assert answer.json()["error"]["code"] == "RUN_NOT_FOUND", accept


def test_a_page_costs_the_same_few_statements_and_bytes_however_much_there_is(showcase: Showcase) -> None:
    def cost() -> dict[str, tuple[int, int]]:
        found = {}
        for path in ("/", "/?show=attention", "/runs", "/runs?status=failed", f"/runs?repository={LIVE}", "/search"):
            with showcase.statements() as asked:
                answer = ask("GET", url + path, headers=BROWSER)
            assert answer.status_code == 200
            found[path] = (len(asked), len(gzip.compress(answer.content)))
        return found

    with showcase.served() as url:
        few = cost()
        names = [f"many/{number:04}" for number in range(300)]
        showcase.register_all(names)
        ages = [(name, timedelta(minutes=20 * number)) for number in range(10) for name in names]
        statuses = (RunStatus.COMPLETED, RunStatus.FAILED)
        showcase.add_history(
            [showcase.past_run(name, statuses[each % 2], age, 3.0) for each, (name, age) in enumerate(ages)]
            + [showcase.past_run(LIVE, RunStatus.COMPLETED, timedelta(days=2, hours=each), 3.0) for each in range(200)]
        )
        many = cost()
    for path, (statements, size) in many.items():
        assert statements <= max(few[path][0], 6), path
        assert size < 30_000, path  # styles and scripts are as much again


def test_what_has_not_changed_is_not_sent_again(open_url: str) -> None:
    for path in ("/", "/runs", "/workers", "/search", "/docs", "/help", "/help/errors"):
        first = ask("GET", open_url + path, headers=BROWSER)
        tag = first.headers["etag"]
        assert first.headers["cache-control"] == "private, no-cache"
        for given in (tag, f"W/{tag}", f'"other", {tag}'):  # as it was, compressed by a proxy, one of several
            again = ask("GET", open_url + path, headers={**BROWSER, "If-None-Match": given})
            assert (again.status_code, again.content) == (304, b""), path


def test_files_of_the_pages_are_kept_for_as_long_as_they_are_the_same(open_url: str) -> None:
    page = ask("GET", f"{open_url}/search", headers=BROWSER).text
    found = re.findall(r'(?:href|src)="(/static/[^"]*)"', page)
    assert len(found) >= 4
    for address in found:
        assert "immutable" in ask("GET", open_url + address).headers["cache-control"]
        # Without the digest, or with another release's, it has to be asked for.
        assert ask("GET", open_url + address.partition("?")[0]).headers["cache-control"] == "no-cache"
        assert ask("GET", open_url + address + "0").headers["cache-control"] == "no-cache"
    assert ask("GET", f"{open_url}/static/none.css").json()["error"]["code"] == "NOT_FOUND"


def test_a_button_requests_a_sync_with_the_configured_attempts(showcase: Showcase, open_url: str) -> None:
    showcase.register("pressed/service")
    answer = ask("POST", f"{open_url}/actions/sync", data={"name": "pressed/service"}, headers=BROWSER)
    run = showcase.run_of("pressed/service", RunStatus.QUEUED)
    assert answer.headers["location"] == f"/runs/{run.id}?done=sync"
    assert (run.max_attempts, run.trigger) == (MAX_ATTEMPTS, "http")
    # One that waits is not doubled.
    again = ask("POST", f"{open_url}/actions/sync", data={"name": "pressed/service"}, headers=BROWSER)
    assert again.headers["location"] == answer.headers["location"]
    for back, onward in (("/?name=mono&done=pause", "/?name=mono&done=resume"), ("//evil.example", "/?done=resume")):
        fields = {"name": PAUSED, "back": back}
        resumed = ask("POST", f"{open_url}/actions/resume", data=fields, headers=BROWSER)
        ask("POST", f"{open_url}/actions/pause", data={"name": PAUSED}, headers=BROWSER)
        assert resumed.headers["location"] == onward


def test_lists_show_how_far_a_run_is(showcase: Showcase, open_url: str) -> None:
    showcase.register("busy/service")
    run = showcase.begin(showcase.queue("busy/service"))
    showcase.tell(run, 100, 400)
    for path in ("/?name=busy", "/runs?repository=busy/service"):
        page = ask("GET", open_url + path, headers=BROWSER).text
        assert '<progress class="thin" max="1200" value="300"' in page, path
    showcase.end(run)
    assert 'class="thin"' not in ask("GET", f"{open_url}/?name=busy", headers=BROWSER).text


def test_all_that_failed_is_retried_with_one_button(showcase: Showcase, open_url: str) -> None:
    for name, status in (("night/one", RunStatus.FAILED), ("night/two", RunStatus.FAILED), ("night/ok", None)):
        showcase.register(name)
        showcase.end(showcase.begin(showcase.queue(name)), status or RunStatus.COMPLETED)
    assert "Retry all failed" in ask("GET", f"{open_url}/", headers=BROWSER).text
    answer = ask("POST", f"{open_url}/actions/retry-failed", headers=BROWSER)
    assert answer.headers["location"] == "/?done=retry-failed"
    assert showcase.run_of("night/one", RunStatus.QUEUED) and showcase.run_of("night/two", RunStatus.QUEUED)
    assert "night/ok" not in ask("GET", f"{open_url}/runs?status=queued", headers=BROWSER).text
    assert "Retry all failed" not in ask("GET", f"{open_url}/", headers=BROWSER).text


def test_a_reused_name_does_not_inherit_failed_runs(showcase: Showcase, open_url: str) -> None:
    showcase.register("reborn/service")
    ended = showcase.past_run("reborn/service", RunStatus.FAILED, timedelta(minutes=1), 1.0)
    showcase.add_history([{**ended, "repository_id": "00000000-0000-0000-0000-00000000000a"}])

    assert "No repository matches." in ask("GET", f"{open_url}/?name=reborn&show=attention", headers=BROWSER).text
    showcase.end(showcase.begin(showcase.queue("reborn/service")), RunStatus.FAILED)
    assert "reborn/service" in ask("GET", f"{open_url}/?name=reborn&show=attention", headers=BROWSER).text


def test_what_does_not_work_is_on_every_page_and_no_page_of_a_stranger(showcase: Showcase) -> None:
    with showcase.served(f"read:{READER}") as url, logged_in(url, READER) as client:
        showcase.health.report("registry", "degraded", "repositories.yaml:3:7: unknown key `nmae`; <b>")
        for path in ("/", "/runs", "/search", "/workers"):
            page = client.get(path).text
            assert "<b>registry</b>: repositories.yaml:3:7: unknown key <code>nmae</code>; &lt;b&gt;" in page, path
        assert "nmae" not in ask("GET", f"{url}/login", headers=BROWSER).text
        showcase.health.report("registry", "ok")
        assert "nmae" not in client.get("/").text


def requests_on(answer: httpx.Response) -> list[str]:
    """The rows of the table of requests, as text."""
    table = answer.text.partition('class="wide requests"')[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.DOTALL)
    return [" ".join(html.unescape(re.sub("<[^>]+>", " ", row)).split()) for row in rows]


def test_the_page_of_a_cancelled_run_names_requesters_and_canceller(showcase: Showcase, guarded_url: str) -> None:
    showcase.register("cancelled/service")
    run = showcase.queue("cancelled/service", RunTrigger.COMMAND, asked_by="ann@laptop", full=True)
    showcase.queue("cancelled/service", asked_by="token 2")
    with logged_in(guarded_url, OPERATOR) as client:
        before = client.get(f"/runs/{run.id}")
        client.post("/actions/cancel", data={"run": run.id})
        after = client.get(f"/runs/{run.id}")

    assert "Cancel for all 2 requesters" in before.text
    command, http = requests_on(after)
    assert command.startswith("ann@laptop command ") and " full sync" in command
    assert http.startswith("token 2 http ")
    assert "Cancelled by token 1, in a browser." in after.text


def test_of_very_many_requests_the_first_are_shown_and_what_somebody_calls_themselves_is_text(
    showcase: Showcase, open_url: str
) -> None:
    showcase.register("popular/service")
    for number in range(PAGE_REQUESTS + 3):
        run = showcase.queue("popular/service", RunTrigger.COMMAND, asked_by=f"{HOSTILE}{number}@\x1b[2Jhost")

    page = ask("GET", f"{open_url}/runs/{run.id}", headers=BROWSER)
    assert len(requests_on(page)) == PAGE_REQUESTS
    assert "and 3 more" in page.text
    for text in (page.text, ask("GET", f"{open_url}/runs?repository=popular/service", headers=BROWSER).text):
        assert "\x1b" not in text and HOSTILE not in text
        assert html.escape(HOSTILE) in text


def test_a_blocked_run_links_to_the_run_that_waits_for_an_approval_and_a_button_gives_it(
    showcase: Showcase, open_url: str
) -> None:
    showcase.register("stopped/service")
    first = showcase.end(showcase.begin(showcase.queue("stopped/service")), RunStatus.BLOCKED)
    second = showcase.end(
        showcase.begin(showcase.queue("stopped/service", RunTrigger.COMMAND, asked_by="ann@laptop")), RunStatus.BLOCKED
    )

    left = ask("GET", f"{open_url}/runs/{second.id}", headers=BROWSER).text
    taken = requests_on(ask("GET", f"{open_url}/runs/{first.id}?tab=requests", headers=BROWSER))

    assert "waits for a person" in left and f'href="/runs/{first.id}"' in left
    assert [each.split()[0] for each in taken] == ["http", "ann@laptop"]

    approved = ask("POST", f"{open_url}/actions/approve", data={"run": first.id}, headers=BROWSER)
    assert approved.headers["location"] == f"/runs/{first.id}?done=approve"
    assert showcase.run_of("stopped/service", RunStatus.QUEUED).id == first.id


def test_a_run_has_the_button_that_fixes_it(showcase: Showcase, open_url: str, guarded_url: str) -> None:
    name, label = "paused/service", "Resume the repository"
    showcase.register(name)
    run = showcase.queue(name, RunTrigger.SCHEDULE)
    showcase.call(showcase.app.repositories.pause(name, "A migration."))
    page = ask("GET", f"{open_url}/runs/{run.id}", headers=BROWSER).text
    assert label in page and 'href="/help/errors#repository_paused"' in page
    with logged_in(guarded_url, READER) as reader:
        assert label not in reader.get(f"/runs/{run.id}").text

    back = page.partition('name="back" value="')[2].partition('"')[0]
    answer = ask("POST", f"{open_url}/actions/resume", data={"name": name, "back": back}, headers=BROWSER)
    assert answer.headers["location"] == f"/runs/{run.id}?done=resume"
    assert showcase.call(showcase.app.repositories.get(name)).is_active


def test_a_repository_has_its_next_syncs_latest_runs_and_requesters_and_the_locks_name_its_run(
    showcase: Showcase, open_url: str
) -> None:
    page = ask("GET", f"{open_url}/repositories/{LIVE}", headers=BROWSER).text
    assert page.partition("<dt>Next syncs</dt>")[2].partition("</dd>")[0].count("data-relative") == 3
    latest = showcase.call(showcase.app.history.runs(LIVE, limit=20))
    assert len(latest) > 10
    strip = page.partition('class="strip"')[2].partition("</span>")[0]
    assert re.findall(r'href="/runs/([^"]+)"', strip) == [run.id[:13] for run in reversed(latest)]
    assert f"push to {LIVE}, delivery" in page

    locks = ask("GET", f"{open_url}/workers", headers=BROWSER).text
    row = locks.partition("Locks by repository")[2].partition(f">{LIVE}<")[2].partition("</tr>")[0]
    run = showcase.run_of(LIVE, RunStatus.RUNNING)
    assert "database" in row and f'href="/runs/{run.id}"' in row


def test_workers_are_shown_with_what_they_execute_and_the_queue(
    showcase: Showcase, open_url: str, guarded_url: str
) -> None:
    name = f"worked/{showcase.next_number()}"
    showcase.register(name)
    run = showcase.begin(showcase.queue(name))
    showcase.call(showcase.app.workers.beat(WORKER, host="reposync-7d9c5-x2x4k", version="1.2.3"))

    page = ask("GET", f"{open_url}/workers", headers=BROWSER).text
    row = page.partition("Workers, the oldest first")[2].partition("</table>")[0]
    assert "reposync-7d9c5-x2x4k" in row and f'<a href="/runs/{run.id}">{name}</a>' in row
    assert "<dt>Waiting</dt>" in page

    document = ask("GET", f"{open_url}/api/v1/workers").json()
    (worker,) = document["items"]
    assert (worker["name"], worker["version"]) == (WORKER, "1.2.3")
    assert run.id in {each["id"] for each in worker["runs"]} and document["running"] >= 1
    moved = ask("GET", f"{open_url}/locks", headers=BROWSER)
    assert (moved.status_code, moved.headers["location"]) == (308, "/workers")
    showcase.end(run)
    showcase.call(showcase.app.workers.leave(WORKER))


def test_what_costs_is_a_run_and_a_removed_repository_leads_to_its_history(showcase: Showcase, open_url: str) -> None:
    showcase.register("costly/service")
    for action in ("full", "verify"):
        assert f'action="/actions/{action}"' in ask("GET", f"{open_url}/repositories/costly/service").text
        ask("POST", f"{open_url}/actions/{action}", data={"name": "costly/service"}, headers=BROWSER)
    run = showcase.run_of("costly/service", RunStatus.QUEUED)
    assert (run.full, run.repair) == (True, True)

    showcase.add_history([showcase.past_run("removed/one", RunStatus.COMPLETED, timedelta(days=3), 3.0)])
    removed = ask("GET", f"{open_url}/repositories/removed/one", headers=BROWSER)
    assert removed.headers["location"] == "/runs?repository=removed%2Fone"


def test_the_api_is_described_route_by_route(open_url: str) -> None:
    page = html.unescape(ask("GET", f"{open_url}/docs", headers=BROWSER).text)
    document = ask("GET", f"{open_url}/openapi.json").json()
    routes = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    headings = re.findall(r"<h2 id=.*?</h2>", page)
    assert {" ".join(re.sub("<[^>]+>", "", each).split()) for each in headings} == routes
    for words in ("REPOSITORY_NOT_FOUND", "If-Match", "SyncOptions"):
        assert words in page
    listed = page.partition('aria-label="Routes"')[2].partition("</nav>")[0]
    groups = re.findall(r"<p>(\w+)</p>", listed)
    assert (groups[0], groups[-2:]) == ("Search", ["Probes", "Other"]), "the other one is of this test"
    assert groups.index("Repositories") < groups.index("Audit"), "what people come for first"
    ids = re.findall(r'href="#(\w+)"', listed)
    assert ids == re.findall(r'<h2 id="(\w+)"', page)
    assert f'"{open_url}/api/v1/search?q=where+are+expired+sessions+removed"' in page
    assert f'"{open_url}/api/v1/plan?target=TARGET"' in page, "what is required, also without an example"


@pytest.mark.parametrize("name", ["no/such", "hidden/plans"])
def test_a_page_of_what_is_not_there_leads_on(open_url: str, name: str) -> None:
    part = name.replace("/", "%2F")
    runs = ask("GET", f"{open_url}/runs?repository={name}", headers=BROWSER).text
    assert f"No repository &#39;{name}&#39; is registered" in runs
    assert f'href="/repositories/{name}' not in runs and f"/repositories/{part}" not in runs
    assert f'href="/?name={part}"' in runs
    for path in (f"/repositories/{name}", f"/files/{name}/-/src/ledger.py", f"/files/{name}/-/src/"):
        missing = ask("GET", open_url + path, headers=BROWSER)
        assert missing.status_code == 404
        assert f'href="/?name={part}">Repositories with {name} in their name</a>' in missing.text
        assert ('href="/search?q=ledger.py">Search for ledger.py</a>' in missing.text) == path.endswith("ledger.py")
        for there in re.findall(r"<main.*?</main>", missing.text, re.DOTALL):
            for address in re.findall(r'href="([^"]+)"', there):
                assert ask("GET", open_url + html.unescape(address), headers=BROWSER).status_code == 200, address


def test_a_file_that_is_not_there_leads_to_its_repository_and_to_a_search(open_url: str) -> None:
    missing = ask("GET", f"{open_url}/files/{LIVE}/-/src/no-such-ledger.py", headers=BROWSER)
    assert missing.status_code == 404
    assert f'href="/repositories/{LIVE}#files">Files of {LIVE}</a>' in missing.text
    assert 'href="/search?q=no-such-ledger.py"' in missing.text
    run = ask("GET", f"{open_url}/runs/abcdef12", headers=BROWSER)
    assert run.status_code == 404 and 'href="/runs"' in run.text and 'href="/search"' in run.text


def test_a_repository_shows_its_languages_and_the_commit_that_it_is_at(showcase: Showcase, open_url: str) -> None:
    name = "spoken/service"
    showcase.register(name)
    commit = "5e" * 20
    row = showcase.past_run(name, RunStatus.COMPLETED, timedelta(minutes=3), 2.0, commit_after=commit)
    showcase.add_history([row | {"commit_title": f"Say it {HOSTILE}", "commit_author": "Grace Hopper"}])
    identity = row["repository_id"]

    async def synced() -> None:
        at = update(REPOSITORIES).where(REPOSITORIES.c.id == identity).values(last_commit=commit)
        await showcase.app.database.change(at)

    showcase.call(synced())
    sizes = {"python": 6_000, "go": 3_000, "markdown": 990, None: 10}
    files = [
        {
            **showcase.file(name, number),
            "version_id": identity,
            "language": language,
            "size_bytes": size,
            "skip_reason": None,
        }
        for number, (language, size) in enumerate(sizes.items())
    ]
    showcase.add_history([*files, {**files[0], "path": "logo.png", "chunks": 0, "skip_reason": "binary"}], FILES)

    page = ask("GET", f"{open_url}/repositories/{name}", headers=BROWSER).text
    bar = page.partition('aria-label="Languages"')[2].partition("</section>")[0]
    said = " ".join(html.unescape(re.sub("<[^>]+>", " ", bar.partition("<ul>")[2])).split())
    assert said == "python 60.0%, 1 file go 30.0%, 1 file markdown 9.9%, 1 file other 0.1%, 1 file"
    widths = [int(width) for width in re.findall(r'width="(\d+)"', bar)]
    assert widths == [600, 300, 99, 1]
    assert html.escape(f"Say it {HOSTILE}") in page and "Grace Hopper" in page and HOSTILE not in page


def test_pages_without_any_repository_say_how_to_begin(tmp_path: Path) -> None:
    with Showcase(tmp_path, is_empty=True) as nothing, nothing.served() as url:
        for path, words in (
            ("/", "reposync repos add"),
            ("/runs", "There are no runs yet."),
            ("/workers", "Nothing is locked."),
            ("/search?q=x", "Nothing is indexed yet"),
        ):
            assert words in ask("GET", url + path, headers=BROWSER).text
