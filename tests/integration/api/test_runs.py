"""`/api/v1/runs` as its clients see it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest

from reposync.catalog.overview import Overview
from reposync.operations.runs import Run as RunDocument
from reposync.store.run import RUN_KEYS, Ask, RunProblem
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import RUNS
from tests.fixtures.newer_rows import newer
from tests.integration.api.rest import API, Rest


async def ids(rest: Rest, **query: object) -> list[str]:
    return [run["id"] for run in (await rest.get("/runs", **query))["items"]]


async def test_a_run_is_shown_as_commands_show_it(rest: Rest) -> None:
    run = await rest.run("payments", status=RunStatus.FAILED)

    (shown,) = (await rest.get("/runs"))["items"]

    assert set(shown) == {*RUN_KEYS, "asked_by", "removal", "brake", "progress"} == set(RunDocument.model_fields)
    assert shown["id"] == run.id and shown["queued_at"].endswith("Z")
    assert (shown["error_code"], shown["error_message"]) == ("SOURCE_ERROR", "It did not answer.")
    (overview,) = (await rest.get("/repositories", name="payments"))["items"]
    assert list(overview) == list(Overview.__dataclass_fields__)


async def test_pages_follow_each_other_while_runs_are_added(rest: Rest) -> None:
    runs = [await rest.run("payments", status=RunStatus.COMPLETED) for _ in range(5)]

    page = await rest.get("/runs", limit=2)
    seen = [run["id"] for run in page["items"]]
    await rest.run("platform/api")
    while page["next_cursor"]:
        page = await rest.get("/runs", limit=2, cursor=page["next_cursor"])
        seen += [run["id"] for run in page["items"]]

    assert seen == [run.id for run in reversed(runs)]


async def test_filters_narrow_each_other(rest: Rest) -> None:
    first = await rest.run("payments", RunTrigger.COMMAND, RunStatus.COMPLETED)
    second = await rest.run("payments", RunTrigger.HTTP, RunStatus.FAILED)
    third = await rest.run("platform/api", RunTrigger.HTTP, RunStatus.CANCELLED)
    fourth = await rest.run("platform/api", RunTrigger.WEBHOOK)

    assert await ids(rest, repository="payments") == [second.id, first.id]
    assert await ids(rest, repository="platform/api", status="queued") == [fourth.id]
    assert await ids(rest, status=["failed", "cancelled"]) == [third.id, second.id]
    assert await ids(rest, trigger="http") == [third.id, second.id]
    assert await ids(rest, trigger="http", status=["failed", "queued"], repository="payments") == [second.id]
    assert await ids(rest, since=second.queued_at.isoformat(), until=fourth.queued_at.isoformat()) == [
        third.id,
        second.id,
    ]
    assert await ids(rest, until=first.queued_at.isoformat()) == []
    assert await ids(rest, since=(fourth.queued_at - timedelta(days=1)).isoformat(), trigger="webhook") == [fourth.id]


async def test_invalid_filters_are_refused(rest: Rest) -> None:
    for query in (
        "status=done",
        "status=failed&statuss=failed",
        "limit=201",
        "since=2026-03-01T00:00:00",
        "since=0001-01-01T00:00:00%2B14:00",
        "repository=%00",
        "cursor=20260301T120000.000000Z_%00",
    ):
        assert await rest.refusal("GET", f"/runs?{query}", 422) in ("REQUEST_INVALID", "USAGE"), query
    assert await rest.refusal("GET", "/runs?repository=" + "a" * 9000, 414) == "QUERY_TOO_LONG"
    assert await rest.refusal("GET", "/runs?repository=%ed%a0%80", 404) == "REPOSITORY_NOT_FOUND"


async def test_one_run_is_shown_with_attempts_problems_and_progress(rest: Rest) -> None:
    waiting = await rest.run("payments")
    running = await rest.claimed(waiting.id)
    await rest.other.heartbeat(running, 60.0, {"phase": "indexing", "files_done": 3, "files_total": 9})
    problems = [
        RunProblem(f"{number:03d}.bin", "binary" if number % 2 else "too_large", "why") for number in range(130)
    ]
    await rest.other.add_problems(running, problems)

    shown = await rest.get(f"/runs/{waiting.id[:13]}")

    assert (shown["status"], shown["progress"]["files_done"], shown["worker"]) == ("running", 3, rest.worker)
    assert [(each["attempt"], each["outcome"]) for each in shown["attempts"]] == [(1, None)]
    assert shown["problem_counts"] == {"binary": 65, "too_large": 65}
    assert shown["problems"] == [asdict(each) for each in problems[:100]]
    rest_of_them = await rest.get(f"/runs/{waiting.id}/problems", cursor=shown["problems_cursor"], limit=20)
    assert rest_of_them["items"] == [asdict(each) for each in problems[100:120]]
    last = await rest.get(f"/runs/{waiting.id}/problems", cursor=rest_of_them["next_cursor"])
    assert (last["items"], last["next_cursor"]) == ([asdict(each) for each in problems[120:]], None)
    first = await rest.get(f"/runs/{waiting.id}/problems", limit=20)
    assert first["items"] == [asdict(each) for each in problems[:20]]
    assert await rest.refusal("GET", f"/runs/{waiting.id}/problems?cursor=%21", 422) == "USAGE"


async def test_a_run_names_its_requesters_and_who_cancelled_it(rest: Rest) -> None:
    await rest.other.enqueue("payments", Ask(RunTrigger.WEBHOOK, asked_by="push to group/payments, delivery 7"))
    await rest.other.enqueue("payments", Ask(RunTrigger.COMMAND, asked_by="zoe@laptop", full=True))

    (listed,) = (await rest.get("/runs"))["items"]
    shown = await rest.get(f"/runs/{listed['id']}")

    assert listed["asked_by"] == shown["asked_by"] == ["push to group/payments, delivery 7", "zoe@laptop"]
    assert [(each["asked_by"], each["full"]) for each in shown["requests"]] == [
        ("push to group/payments, delivery 7", False),
        ("zoe@laptop", True),
    ]
    for number in range(6):
        await rest.other.enqueue("payments", Ask(RunTrigger.WEBHOOK, asked_by=f"delivery {number}"))
    (listed,) = (await rest.get("/runs"))["items"]
    assert listed["asked_by"][5:] == ["3 more"]
    cancelled = (await rest.client.post(f"{API}/runs/{listed['id']}/cancel")).json()
    assert cancelled["error_message"] == "Cancelled by anonymous."


async def test_files_of_any_name_are_paged_and_a_blocked_run_has_the_counts_of_its_brake(rest: Rest) -> None:
    run = await rest.run("payments")
    names = ["a b", "ä", "日本語", "\udce9", "<script>", "x" * 700, "z\0", "%", "A"]
    await rest.ended(run.id, RunStatus.BLOCKED, [RunProblem(name, "failed", "why") for name in names])
    brake = {"commit": "c" * 40, "planned": {"vanished": 43}, "losses": {"vanished": 43}, "indexed": 43}
    await newer(rest.app.database, RUNS.c.id, run.id, brake=brake)

    page = await rest.get(f"/runs/{run.id}/problems", limit=1)
    seen = [each["path"] for each in page["items"]]
    while page["next_cursor"] and len(seen) < 20:
        page = await rest.get(f"/runs/{run.id}/problems", limit=1, cursor=page["next_cursor"])
        seen += [each["path"] for each in page["items"]]

    assert len(set(seen)) == len(seen) == len(names)
    assert (await rest.get(f"/runs/{run.id}"))["brake"] == brake | {"folders": {}}


async def test_an_unknown_run_is_not_found(rest: Rest) -> None:
    run = await rest.run("payments")
    unknown = "00000000-0000-4000-8000-000000000000"

    for path in (f"/runs/{unknown}", "/runs/x", "/runs/%20", "/runs/%25", f"/runs/{unknown}/problems"):
        assert await rest.refusal("GET", path, 404) == "RUN_NOT_FOUND", path
    for action in ("cancel", "approve", "retry"):
        assert await rest.refusal("POST", f"/runs/{unknown}/{action}", 404) == "RUN_NOT_FOUND"
        # The beginning of an id is not enough to act on.
        assert await rest.refusal("POST", f"/runs/{run.id[:12]}/{action}", 404) == "RUN_NOT_FOUND"
    assert await rest.refusal("GET", "/runs/%00", 422) == "REQUEST_INVALID"
    assert await rest.refusal("GET", "/runs/" + "a" * 37, 422) == "REQUEST_INVALID"


async def test_cancelling_ends_a_waiting_run_at_once_and_a_running_one_later(rest: Rest) -> None:
    waiting = await rest.run("payments")
    cancelled = await rest.answers("POST", f"/runs/{waiting.id}/cancel", 200)
    running = await rest.run("platform/api")
    await rest.claimed(running.id)
    asked = await rest.answers("POST", f"/runs/{running.id}/cancel", 202)
    done = await rest.run("payments", status=RunStatus.COMPLETED)

    assert cancelled["status"] == "cancelled"
    assert (asked["status"], asked["cancel_requested"]) == ("running", True)
    assert (await rest.answers("POST", f"/runs/{done.id}/cancel", 200))["status"] == "completed"


@pytest.mark.parametrize(("action", "fitting"), [("approve", RunStatus.BLOCKED), ("retry", RunStatus.FAILED)])
async def test_a_run_goes_back_into_the_queue_from_where_that_makes_sense(
    rest: Rest, action: str, fitting: RunStatus
) -> None:
    done = await rest.run("payments", status=RunStatus.COMPLETED)
    run = await rest.run("payments", status=fitting)

    answer = await rest.client.post(f"{API}/runs/{run.id}/{action}")

    assert answer.status_code == 202
    assert answer.headers["location"] == f"{API}/runs/{run.id}"
    assert (answer.json()["status"], answer.json()["error_code"]) == ("queued", None)
    assert answer.json()["requests"][-1]["asked_by"] == "anonymous"
    assert await rest.refusal("POST", f"/runs/{done.id}/{action}", 409) == "RUN_STATE_CONFLICT"
    assert await rest.refusal("POST", f"/runs/{run.id}/{action}", 409) == "RUN_STATE_CONFLICT"
