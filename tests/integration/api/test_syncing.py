"""`POST /api/v1/repositories/{name}/sync`: one run however often it is asked for, and waiting for its end."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from reposync.api.app import create_app
from reposync.api.server import serve_http
from reposync.store.database import POOL
from reposync.store.run import IN_ADVANCE
from reposync.store.status import RunStatus
from tests.fixtures.databases import database_kind  # noqa: F401
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.api.rest import API, Rest
from tests.integration.api.serving import parts_of

SYNC = "/repositories/platform/api/sync"


async def asks(rest: Rest, **options: object) -> httpx.Response:
    return await rest.client.post(API + SYNC, **options)  # type: ignore[arg-type]


async def test_a_sync_is_answered_at_once_with_its_run(rest: Rest) -> None:
    answer = await asks(rest, json={"full": True, "allow_mass_delete": True})

    assert answer.status_code == 202
    run = (await rest.client.get(answer.headers["location"])).json()
    assert (run["status"], run["trigger"], run["repository"]) == ("queued", "http", "platform/api")
    row = await rest.history.get(run["id"])
    assert (row.full, row.approval, row.max_attempts) == (True, IN_ADVANCE, 3)


async def test_one_that_waits_is_returned_and_one_under_way_is_followed_by_another(rest: Rest) -> None:
    first = (await asks(rest)).json()
    second = (await asks(rest, json={}, headers={"Idempotency-Key": "deploy-4711"})).json()
    of_null = (await asks(rest, content="null", headers={"Content-Type": "application/json"})).json()
    await rest.claimed(first["id"])
    third = (await asks(rest)).json()

    assert second["id"] == of_null["id"] == first["id"]
    assert third["id"] != first["id"] and third["status"] == "queued"


async def test_what_does_not_fit_is_refused(rest: Rest) -> None:
    for body in ('{"ful": true}', '{"full": "yes"}', "[]", "{", "3", "1" * 5000, "[" * 50_000):
        answer = await rest.client.post(API + SYNC, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body[:20]
        assert set(answer.json()["error"]) == {"code", "message", "help", "details", "next"}
    for query in ("wait=-1", "wait=301", "wait=nan", "wait=inf", "wait=x", "wiat=1"):
        assert await rest.refusal("POST", f"{SYNC}?{query}", 422) == "REQUEST_INVALID", query
    assert await rest.refusal("POST", "/repositories/nowhere/sync", 404) == "REPOSITORY_NOT_FOUND"
    assert await rest.history.runs() == []


# Waiting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.BLOCKED])
async def test_waiting_ends_with_the_run_that_another_pod_executes(rest: Rest, status: RunStatus) -> None:
    waiting = asyncio.create_task(asks(rest, params={"wait": 30}))
    while not (runs := await rest.history.runs()):
        await asyncio.sleep(0.01)
    await rest.ended(runs[0].id, status)
    answer = await waiting

    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["files_processed"]) == (status, 3)
    assert answer.headers["location"].endswith(runs[0].id)


async def test_whoever_cancels_a_running_run_can_wait_for_its_end(rest: Rest) -> None:
    run = await rest.claimed((await rest.run("platform/api")).id)
    waiting = asyncio.create_task(rest.client.post(f"{API}/runs/{run.id}/cancel", params={"wait": 30}))
    while not (await rest.history.get(run.id)).cancel_requested:
        await asyncio.sleep(0.01)
    await rest.ended_claimed(run, RunStatus.CANCELLED)
    answer = await waiting

    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert [attempt["outcome"] for attempt in answer.json()["attempts"]] == ["cancelled"]


async def test_waiting_ends_when_the_client_disconnects(rest: Rest) -> None:
    waiting = asyncio.create_task(asks(rest, params={"wait": 300}))
    while not await rest.history.runs():
        await asyncio.sleep(0.01)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting

    while [task for task in asyncio.all_tasks() if "RequestResponseCycle" in repr(task.get_coro())]:
        await asyncio.sleep(0.01)


async def test_a_pod_that_shuts_down_responds_to_waiting_clients_with_the_queued_run(rest: Rest) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        async with serve_http(create_app(parts_of(rest.app)), "127.0.0.1", 0) as address:
            waiting = asyncio.create_task(client.post(f"{address.url}{API}{SYNC}?wait=300"))
            while not await rest.history.runs():
                await asyncio.sleep(0.01)
        answer = await waiting

    assert (answer.status_code, answer.json()["status"]) == (202, "queued")


@pytest.fixture
def patient_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine requests wait for a connection for longer than a client would."""
    monkeypatch.setitem(POOL, "pool_timeout", 150.0)


async def test_a_storm_of_requests_is_one_run_with_all_their_options(patient_pool: None, rest: Rest) -> None:
    answers = await asyncio.gather(*(asks(rest, json={"full": number % 10 == 0}) for number in range(60)))

    assert {answer.status_code for answer in answers} == {202}
    (run,) = await rest.history.runs()
    assert {answer.json()["id"] for answer in answers} == {run.id}
    assert run.full is True
