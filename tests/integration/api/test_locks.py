"""Locks over HTTP, with a real Redis-compatible server and without any."""

from __future__ import annotations

from datetime import datetime

import httpx
import pytest

from reposync.runs.redis_locks import RedisLocks
from reposync.store.endings import Fail
from reposync.store.run import RunFigures
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.world import World
from tests.integration.api.serving import code, running, serving

NAME = "platform/api"
BROWSER = {"Accept": "text/html"}


async def test_without_redis_the_runs_at_work_are_shown_and_force_ends_one(world: World, client: httpx.AsyncClient):
    assert (await client.get("/api/v1/locks")).json() == {"items": []}
    assert code(await client.delete(f"/api/v1/locks/{NAME}")) == (404, "LOCK_NOT_FOUND")
    run = await running(world, NAME)

    (shown,) = (await client.get("/api/v1/locks")).json()["items"]
    assert datetime.fromisoformat(shown.pop("lease_until"))
    assert shown == {
        "repository": NAME,
        "repository_id": run.repository_id,
        "state": "database",
        "holder": "pod-2:1:a",
        "pod": "pod-2",
        "run_id": run.id,
        "attempt": 1,
        "ttl_seconds": None,
    }
    held = await client.delete(f"/api/v1/locks/{NAME}")
    assert code(held) == (409, "LOCK_HELD")
    assert not (await world.app.history.get(run.id)).cancel_requested

    done = (await client.delete("/api/v1/locks/platform%2Fapi", params={"force": "true"})).json()
    assert (done["released"], done["cancel_requested"], done["run_id"]) == (False, True, run.id)
    assert (await world.app.history.get(run.id)).cancel_requested


@pytest.mark.parametrize("way", ["API", "page"])
async def test_a_lock_in_redis_is_shown_with_its_end_and_a_stale_one_is_removed(
    world: World, redis_server: RedisServer, way: str
):
    locks = RedisLocks(redis_server.url, world.app.runs)
    world.app.locks = locks
    try:
        async with serving(world.app) as client:
            run = await running(world, NAME)
            async with locks.guard(run):
                (shown,) = (await client.get("/api/v1/locks")).json()["items"]
                assert (shown["state"], shown["repository"], shown["run_id"]) == ("held", NAME, run.id)
                assert shown["ttl_seconds"] > 0
                # Its run ends in the database, as if the worker had died before it gave the lock back.
                await world.app.runs.end(run, Fail("X", "gone"), RunFigures())
                (stale,) = (await client.get("/api/v1/locks")).json()["items"]
                assert stale["state"] == "stale"
                if way == "page":
                    assert 'action="/actions/release"' in (await client.get("/workers", headers=BROWSER)).text
                    form = {"name": NAME, "back": "/workers"}
                    pressed = await client.post("/actions/release", data=form, headers=BROWSER)
                    assert pressed.headers["location"] == "/workers?done=release"
                else:
                    done = (await client.delete(f"/api/v1/locks/{NAME}")).json()
                    assert (done["released"], done["cancel_requested"], done["state"]) == (True, False, "stale")
                assert (await client.get("/api/v1/locks")).json()["items"] == []

            redis_server.stop()
            assert code(await client.get("/api/v1/locks")) == (503, "REDIS_UNAVAILABLE")
            assert code(await client.delete(f"/api/v1/locks/{NAME}")) == (503, "REDIS_UNAVAILABLE")
            page = await client.get("/workers", headers=BROWSER)
            assert (page.status_code, 'class="reason failed"' in page.text) == (200, True)
    finally:
        await locks.close()
