"""`POST /api/v1/repositories/{name}/sync`: one run however often it is asked for, and waiting for its end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.api.server import serve_http
from reposync.store.database import POOL, Database
from reposync.store.run import IN_ADVANCE
from reposync.store.status import RunStatus
from reposync.store.tables import IDEMPOTENCY_KEYS
from tests.fixtures.databases import database_kind  # noqa: F401
from tests.integration.api.rest import API, Rest, opened
from tests.integration.api.serving import bearer, client_of, log_in, parts_of

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
    second = (await asks(rest, json={})).json()
    await rest.claimed(first["id"])
    third = (await asks(rest)).json()

    assert second["id"] == first["id"]
    assert third["id"] != first["id"] and third["status"] == "queued"


async def test_what_does_not_fit_is_refused(rest: Rest) -> None:
    for body in ('{"ful": true}', '{"full": "yes"}', "[]", "{", "3", "1" * 5000, "[" * 50_000):
        answer = await rest.client.post(API + SYNC, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body[:20]
        assert set(answer.json()["error"]) == {"code", "message", "help", "details"}
    for query in ("wait=-1", "wait=301", "wait=nan", "wait=inf", "wait=x", "wiat=1"):
        assert await rest.refusal("POST", f"{SYNC}?{query}", 422) == "REQUEST_INVALID", query
    for key in ("", "a b", "ä", "x" * 201):
        assert await rest.refusal("POST", SYNC, 422, headers={"Idempotency-Key": key.encode()}) == "REQUEST_INVALID", (
            key
        )
    assert await rest.refusal("POST", "/repositories/nowhere/sync", 404) == "REPOSITORY_NOT_FOUND"
    assert await rest.history.runs() == []


# Idempotency-Key -----------------------------------------------------------------------------------------------------


async def test_the_same_key_gets_the_same_run_also_when_the_run_is_long_over(rest: Rest) -> None:
    key = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
    first = await asks(rest, headers=key, json={"full": True})
    await rest.ended(first.json()["id"])
    again = await asks(rest, headers=key, json={"full": True, "allow_mass_delete": False})
    waited = await asks(rest, headers=key, json={"full": True}, params={"wait": 20})

    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert again.headers["location"] == first.headers["location"]
    assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
    assert (waited.status_code, waited.json()["status"]) == (200, "completed")
    assert len(await rest.history.runs()) == 1


async def test_a_key_is_for_one_request(rest: Rest) -> None:
    key = {"Idempotency-Key": "k"}
    # A failed request does not use up its key.
    assert await rest.refusal("POST", "/repositories/nowhere/sync", 404, headers=key) == "REPOSITORY_NOT_FOUND"
    assert (await asks(rest, headers=key, params={"wait": 0.05})).json()["status"] == "queued"

    assert await rest.refusal("POST", SYNC, 422, headers=key, json={"full": True}) == "IDEMPOTENCY_KEY_REUSED"
    other = await rest.refusal("POST", "/repositories/payments/sync", 422, headers=key)
    assert other == "IDEMPOTENCY_KEY_REUSED"
    assert (await asks(rest, headers={"Idempotency-Key": "l"})).status_code == 202


async def test_a_key_is_of_the_token_or_session_that_sent_it_also_when_tokens_change_places(rest: Rest) -> None:
    first, second = "operate-secret-of-tests-1", "operate-secret-of-tests-2"
    key = {"Idempotency-Key": "1"}

    async def answered(tokens: list[str], headers: dict[str, str], **options: Any) -> httpx.Response:
        parts = replace(parts_of(rest.app), access=Access(tokens))
        async with client_of(parts) as client:
            if "Authorization" not in headers:
                await log_in(client, first)
            return await client.post(API + SYNC, headers=headers | key, **options)

    mine, others = bearer(first), bearer(second)
    answers = [
        await answered([first, second], mine),
        await answered([first, second], others, json={"full": True}),
        # The token that is at the place of the first one now.
        await answered([second], others, json={"allow_mass_delete": True}),
        await answered([first], {}, json={"full": True}),
        await answered([first], {}),
        await answered([first, second], mine),
    ]

    assert [each.status_code for each in answers] == [202] * 6
    assert [each.headers.get("idempotency-replayed") for each in answers] == [None] * 5 + ["true"]


async def test_the_same_key_on_two_pods_at_once_is_one_run(rest: Rest, database_url: str) -> None:
    """Every run that is queued is begun at once by somebody: without the key each request would be another run."""
    async with opened(rest.folder, REPOSYNC_DATABASE_URL=database_url) as app, client_of(parts_of(app)) as second:
        stop = asyncio.Event()

        async def execute() -> None:
            while not stop.is_set():
                if run := await rest.other.claim(rest.worker, 60.0):
                    await rest.ended_claimed(run)
                await asyncio.sleep(0)

        executing = asyncio.create_task(execute())
        answers = [
            client.post(API + SYNC, headers={"Idempotency-Key": f"k{key}"})
            for key in range(3)
            for client in (rest.client, second) * 3
        ]
        found = await asyncio.gather(*answers)
        stop.set()
        await executing

    assert {answer.status_code for answer in found} == {202}
    of_key = [{answer.json()["id"] for answer in found[start : start + 6]} for start in (0, 6, 12)]
    assert [len(each) for each in of_key] == [1, 1, 1]
    assert {run.id for run in await rest.history.runs()} == set().union(*of_key)


async def test_a_key_is_forgotten_after_a_day(rest: Rest, database_url: str) -> None:
    first = (await asks(rest, headers={"Idempotency-Key": "k"})).json()
    await rest.ended(first["id"])
    async with await Database.open(database_url) as database:
        async with database.write() as connection:
            old = datetime.now(UTC) - timedelta(hours=24, seconds=5)
            await connection.execute(update(IDEMPOTENCY_KEYS).values(created_at=old))

        second = (await asks(rest, headers={"Idempotency-Key": "k"}, json={"full": True})).json()

    assert second["id"] != first["id"]


async def test_a_key_whose_run_was_purged_meanwhile_is_free_again(rest: Rest) -> None:
    key = {"Idempotency-Key": "k"}
    first = (await asks(rest, headers=key)).json()
    await rest.ended(first["id"])
    assert await rest.history.purge(datetime.now(UTC) + timedelta(hours=1)) == 1

    again = await asks(rest, headers=key)

    assert (again.status_code, again.headers.get("idempotency-replayed")) == (202, None)
    assert again.json()["id"] != first["id"]


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
    async with httpx.AsyncClient(timeout=30) as client:
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
