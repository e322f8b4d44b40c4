"""What a person reads and does on the page of the history and on the page of a run, over HTTP."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import CHANGES, LOG_LINES, PROBLEMS
from tests.fixtures.showcase import BLOCKED, HOSTILE, LIVE, Showcase
from tests.integration.api.test_pages_over_http import BROWSER, OPERATOR, READER, ask, logged_in


@pytest.fixture(scope="module")
def showcase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    folder: Path = tmp_path_factory.mktemp("showcase")
    with Showcase(folder, runs=12, is_searchable=False) as showcase:
        yield showcase


@pytest.fixture(scope="module")
def url(showcase: Showcase) -> Iterator[str]:
    with showcase.served() as url:
        yield url


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())


def shown(url: str, path: str) -> str:
    answer = ask("GET", f"{url}{path}", headers=BROWSER)
    assert answer.status_code == 200, answer.text
    return answer.text


# The history ---------------------------------------------------------------------------------------------------------


def test_one_field_filters_by_repository_trigger_code_commit_and_worker(showcase: Showcase, url: str) -> None:
    name = "found/service"
    showcase.register(name)
    row = showcase.past_run(name, RunStatus.FAILED, timedelta(minutes=3), 2.0, commit_after="abcdef12" * 5)
    row |= {"error_code": "SOURCE_GONE", "worker": "pod-of-found", "trigger": "webhook"}
    showcase.add_history([row])
    for words in (
        *("repo:found/service", "found/service", "code:SOURCE_GONE", "commit:abcdef12", "abcdef1", "worker:pod-of-f"),
        "repo:found/service trigger:webhook code:SOURCE_GONE",
    ):
        page = shown(url, f"/runs?q={words}")
        assert (page.count('class="id"'), row["id"] in page) == (1, True), words
    assert row["id"] not in shown(url, "/runs?q=repo:found/service trigger:command")
    assert "There is no filter <code>colour</code>." in shown(url, "/runs?q=colour:red")
    assert "<code>no</code> is no trigger." in shown(url, "/runs?q=trigger:no")
    # Addresses of before.
    assert row["id"] in shown(url, f"/runs?repository={name}&trigger=webhook&status=failed&since=2020-01-01")


def test_equal_errors_are_one_card_and_its_button_retries_only_those(showcase: Showcase, url: str) -> None:
    for number in range(3):
        name = f"broken/{number}"
        showcase.register(name)
        run = showcase.end(showcase.begin(showcase.queue(name)), RunStatus.FAILED)
        assert run.error_code == "SOURCE_GONE"
    other = "broken/otherwise"
    showcase.register(other)
    denied = showcase.past_run(other, RunStatus.FAILED, timedelta(seconds=1), 1.0, error_code="SOURCE_DENIED")
    showcase.add_history([denied | {"error_message": "401"}])

    page = shown(url, "/runs")

    assert "SOURCE_GONE × 4 in 4 repositories" in text_of(page) or "SOURCE_GONE × 3 in 3 repositories" in text_of(page)
    answer = ask("POST", f"{url}/actions/retry-failed", data={"code": "SOURCE_GONE", "back": "/runs"}, headers=BROWSER)
    assert answer.headers["location"] == "/runs?done=retry-failed"
    assert showcase.run_of("broken/0", RunStatus.QUEUED) and showcase.run_of("broken/2", RunStatus.QUEUED)
    assert showcase.run_of(other, RunStatus.FAILED).id == denied["id"]


def test_chosen_runs_are_retried_or_cancelled_together_and_others_stay(showcase: Showcase) -> None:
    runs = []
    for number in range(3):
        name = f"chosen/{number}"
        showcase.register(name)
        runs.append(showcase.end(showcase.begin(showcase.queue(name)), RunStatus.FAILED))
    with showcase.served(OPERATOR, f"read:{READER}") as url:
        with logged_in(url, READER) as reader:
            assert 'type="checkbox"' not in reader.get("/runs?q=repo:chosen/0").text
            refused = reader.post("/actions/retry-runs", data={"run": [runs[0].id]})
            assert refused.status_code == 403
        with logged_in(url, OPERATOR) as operator:
            page = operator.get("/runs?q=repo:chosen/0").text
            assert f'value="{runs[0].id}" form="chosen"' in page
            sent = {"run": [runs[0].id, runs[1].id, "no-such-run"], "back": "/runs?status=failed"}
            answer = operator.post("/actions/retry-runs", data=sent)
            assert answer.headers["location"] == "/runs?status=failed&done=retry-runs"
            assert [showcase.run_of(f"chosen/{number}", RunStatus.QUEUED).id for number in (0, 1)] == [
                runs[0].id,
                runs[1].id,
            ]
            assert showcase.run_of("chosen/2", RunStatus.FAILED).id == runs[2].id
            operator.post("/actions/cancel-runs", data={"run": [run.id for run in runs]})
    assert showcase.run_of("chosen/0", RunStatus.CANCELLED).id == runs[0].id
    assert showcase.run_of("chosen/2", RunStatus.FAILED).id == runs[2].id, "it is over"


def test_the_filtered_history_is_a_file_in_which_no_cell_is_a_formula(showcase: Showcase, url: str) -> None:
    name = "exported/service"
    showcase.register(name)
    rows = [
        showcase.past_run(name, RunStatus.FAILED, timedelta(minutes=number), 1.0, error_message="=HYPERLINK(1)")
        for number in range(230)
    ]
    showcase.add_history(rows)

    answer = httpx.get(f"{url}/runs.csv?repository={name}&status=failed", headers=BROWSER)
    document = httpx.get(f"{url}/runs.json?repository={name}&status=failed", headers=BROWSER)

    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    assert {row["error_message"] for row in found} == {"'=HYPERLINK(1)"}
    assert [run["id"] for run in document.json()["items"]] == [row["id"] for row in rows]
    assert json.loads(httpx.get(f"{url}/runs.json?repository=none/such", headers=BROWSER).text) == {"items": []}


def test_a_row_says_what_changed_and_a_chart_leads_to_the_runs_of_its_time(showcase: Showcase, url: str) -> None:
    name = "charted/service"
    showcase.register(name)
    run = showcase.begin(showcase.queue(name))
    figures = {"files_processed": 109, "files_added": 97, "files_changed": 12, "files_deleted": 3}
    showcase.end(run, commit_after="d" * 40, commit_title="Split the ledger", commit_author="Ann", **figures)

    page = shown(url, f"/runs?repository={name}")

    assert "+97 −3 ~12" in text_of(page)
    assert "Split the ledger" in page
    bar = re.search(r'<a href="([^"]*since[^"]*)" tabindex="-1"', page)
    assert bar is not None
    assert run.id in shown(url, html.unescape(bar[1]))


# One run ---------------------------------------------------------------------------------------------------------


def test_a_blocked_run_shows_what_would_go_and_offers_both_ways_alike(showcase: Showcase, url: str) -> None:
    blocked = showcase.run_of(BLOCKED, RunStatus.BLOCKED)
    page = shown(url, f"/runs/{blocked.id}")
    words = text_of(page)

    assert "With this commit 1,182 of 1,204 files would leave the index. Nothing was removed yet." in words
    assert "1,180 deleted in the commit, 2 too large now" in words
    assert "billing/ 1,140" in words
    assert "The first 641 files are listed" in words
    assert HOSTILE not in page
    buttons = re.findall(r"<button([^>]*)>(Remove 1,182 files from the index|Keep the index as it is)</button>", page)
    assert buttons == [("", "Remove 1,182 files from the index"), ("", "Keep the index as it is")]
    assert f"reposync runs approve {blocked.id[:8]}" in words


def test_the_changes_of_a_run_are_listed_by_kind_and_page(showcase: Showcase, url: str) -> None:
    name = "changed/service"
    showcase.register(name)
    run = showcase.begin(showcase.queue(name))
    paths = [f"src/{HOSTILE}{number:03}.py" for number in range(230)]
    rows = [{"run_id": run.id, "path": path, "change": "added"} for path in paths]
    showcase.add_history([*rows, {"run_id": run.id, "path": "gone.py", "change": "removed"}], CHANGES)
    showcase.end(run, files_processed=230, files_added=230, files_deleted=1, commit_after="d" * 40)

    page = shown(url, f"/runs/{run.id}")
    assert "Changes 231" in text_of(page) and "230 added" in text_of(page)
    assert "gone.py" in page and HOSTILE not in page
    onward = re.search(r'rel="next" href="([^"]*)#parts"', page)
    assert onward is not None
    assert f"{html.escape(HOSTILE)}229.py" in shown(url, html.unescape(onward[1]))
    removed = shown(url, f"/runs/{run.id}?tab=changes&change=removed")
    assert "gone.py" in removed and "000.py" not in removed
    # As the API lists them.
    listed = httpx.get(f"{url}/api/v1/runs/{run.id}/changes", params={"change": "removed"}).json()
    assert listed == {"items": [{"path": "gone.py", "change": "removed"}], "next_cursor": None}


def test_the_log_of_a_run_is_read_page_by_page_on_its_page_and_over_http(showcase: Showcase, url: str) -> None:
    name = "logged/service"
    showcase.register(name)
    run = showcase.begin(showcase.queue(name))
    empty = text_of(shown(url, f"/runs/{run.id}?tab=log"))
    assert "No daemon has logged anything about this run yet." in empty
    text = f"parsing takes too long: src/{HOSTILE}.py"
    first, *others = showcase.log_of(run.id)
    rows = [{**others[0], "number": number, "text": f"line {number}"} for number in range(2, 230)]
    showcase.add_history([first, *rows, {**first, "number": 230, "level": "warning", "text": text}], LOG_LINES)
    showcase.end(run)

    page = shown(url, f"/runs/{run.id}")
    assert 'tab=log#parts">Log</a>' in page
    page = shown(url, f"/runs/{run.id}?tab=log")
    assert "info run started trigger=schedule full=False waited_seconds=0.41" in text_of(page)
    assert "line 200" in page and "line 201" not in page
    onward = re.search(r'rel="next" href="([^"]*)#parts">Later lines', page)
    assert onward is not None
    last = shown(url, html.unescape(onward[1]))
    assert f"warning parsing takes too long: src/{HOSTILE}.py" in text_of(last)
    assert HOSTILE not in last and 'rel="next"' not in last

    api = f"{url}/api/v1/runs/{run.id}/log"
    listed = httpx.get(api, params={"limit": 1}).json()
    line = {"attempt": 1, "level": "info", "text": first["text"]}
    assert [{**each, "at": ""} for each in listed["items"]] == [line | {"at": ""}]
    after = httpx.get(api, params={"limit": 1, "cursor": listed["next_cursor"]}).json()
    assert after["items"][0]["text"] == "line 2"
    for cursor in ("x", "bm8", "OTk5OTk5OTk5OTk5OTk5OTk5OTkuMQ", "MS4xCg", "4pGg4pGhLjE"):
        assert httpx.get(api, params={"cursor": cursor}).status_code == 422, cursor


def test_the_steps_of_a_running_run_and_its_commit_are_seen(showcase: Showcase, url: str) -> None:
    live = showcase.run_of(LIVE, RunStatus.RUNNING)
    page = shown(url, f"/runs/{live.id}")
    states = re.findall(r'<li class="(\w+)" data-phases="[^"]*"[^>]*>\s*<b>(\w+)</b>', page)

    assert states == [("done", "List"), ("now", "Index"), ("next", "Check"), ("next", "Done")]
    assert "Round invoices to cents" in page and "Grace Hopper" in page
    assert "so far" in page


def test_a_button_is_named_as_the_trigger_and_what_yielded_is_explained(showcase: Showcase, url: str) -> None:
    showcase.register("pressed/again")
    ask("POST", f"{url}/actions/sync", data={"name": "pressed/again"}, headers=BROWSER)
    run = showcase.run_of("pressed/again", RunStatus.QUEUED)
    assert "Button on a page" in shown(url, f"/runs/{run.id}")
    assert run.trigger == RunTrigger.HTTP

    name = "yielding/service"
    showcase.register(name)
    past = showcase.past_run(name, RunStatus.COMPLETED, timedelta(minutes=9), 3.0, attempt=2)
    past["attempts"][0]["outcome"] = "yielded"
    showcase.add_history([past])
    assert "let waiting runs go first" in shown(url, f"/runs/{past['id']}?tab=attempts")


def test_a_run_of_several_attempts_says_how_long_all_took_and_counts_what_it_skipped(
    showcase: Showcase, url: str
) -> None:
    name = "twice/service"
    showcase.register(name)
    past = showcase.past_run(name, RunStatus.COMPLETED, timedelta(minutes=9), 308.0, attempt=2, commit_before=None)
    past |= {"handed_back": 1, "max_attempts": 4}
    showcase.add_history([past])
    skipped = [{"run_id": past["id"], "path": f"{number}.png", "reason": "binary", "detail": ""} for number in range(6)]
    showcase.add_history(skipped, PROBLEMS)

    words = text_of(shown(url, f"/runs/{past['id']}"))

    assert "5 min 8 s in 2 attempts" in words
    assert "6 skipped" in words and "0 skipped" not in words
    assert "Attempt 1 of 3, and 1 handed back" in words
    assert "unchanged" not in words, "it is the first run"
