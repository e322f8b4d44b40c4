"""The watchdog beside a sync: what it keeps, what it takes again, and when it says that the sync must end."""

from __future__ import annotations

import asyncio

import pytest
import redis

from reposync.runs.locks import LockHolder
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import (
    Heard,
    Log,
    OpenLocks,
    foreign_value,
    key,
    lost,
    until,
    value,
    watched,
)

TTL_SECONDS = 3.0


async def test_a_lock_is_extended_to_its_full_time_to_live_as_long_as_the_sync_goes_on(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    async with watched(open_locks(redis_url, ttl_seconds=1800.0, watchdog_seconds=0.05), run):
        for _ in range(3):
            assert server.pexpire(key(run), 20_000), "the key is always there"
            await until(lambda: server.pttl(key(run)) > 1_700_000, "extended to the full time to live")
    assert heard.reported == ["available"]


@pytest.mark.parametrize("how", ["flushed", "removed"])
async def test_a_lock_that_vanished_while_the_claim_stands_is_taken_again(
    how: str, log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    run = await log.running()
    locks = open_locks(redis_server.url)
    with redis_server.client() as server:
        async with watched(locks, run) as watchdog:
            if how == "flushed":
                server.flushall()
            else:
                assert await locks.release(run.repository_id, value(run))
            await until(lambda: server.get(key(run)) == value(run), "taken again")
            assert server.pttl(key(run)) > 50_000
            assert not watchdog.done()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_restart_of_redis_is_survived_whether_it_comes_back_empty_or_not(
    durable: bool, log: Log, open_locks: OpenLocks, heard: Heard
) -> None:
    run = await log.running()
    with RedisServer(durable=durable) as redis_server:
        async with watched(open_locks(redis_server.url), run) as watchdog:
            redis_server.kill()
            await until(lambda: "unavailable" in heard.reported, "noticed")
            redis_server.start()
            with redis_server.client() as server:
                await until(lambda: heard.reported[-1] == "available" and bool(server.exists(key(run))), "held again")
                assert server.get(key(run)) == value(run)
            assert not watchdog.done()


async def test_the_sync_must_end_before_the_lock_does_when_redis_does_not_answer(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    run = await log.running()
    async with watched(open_locks(redis_server.url, ttl_seconds=TTL_SECONDS), run) as watchdog:
        redis_server.freeze()
        reported = await lost(watchdog)
        redis_server.thaw()
        with redis_server.client() as server:
            assert server.get(key(run)) == value(run), "the lock was still ours when the sync was reported to end"
    assert reported.startswith("LockLost: ")
    assert run.repository in reported
    assert heard.reported == ["available", "unavailable", "lost: unreachable", "available"]


async def test_a_living_thief_ends_the_sync_and_keeps_the_lock(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    thief = foreign_value()
    async with watched(open_locks(redis_url), run) as watchdog:
        server.set(key(run), thief, px=30_000)
        assert "elsewhere:9:ffffff" in await lost(watchdog)
    assert server.get(key(run)) == thief
    assert server.pttl(key(run)) <= 30_000
    assert heard.reported[-1] == "lost: taken"


@pytest.mark.parametrize("left", ["nothing", "the successor's lock", "the lock of a dead successor"])
async def test_a_run_that_was_taken_over_touches_the_lock_no_more(
    left: str, log: Log, open_locks: OpenLocks, heard: Heard, redis_url: str, server: redis.Redis
) -> None:
    first = await log.running()
    async with watched(open_locks(redis_url), first) as watchdog:
        second = await log.taken_over(first)
        if left == "nothing":
            server.delete(key(first))
        elif left == "the successor's lock":
            server.set(key(second), value(second), px=30_000)
        else:
            server.set(key(second), LockHolder("pod-3:3:cccccc", first.id, 7).value, px=30_000)
        before = server.get(key(first))
        assert "LockLost" in await lost(watchdog)
    assert server.get(key(first)) == before
    assert heard.reported[-1] == "lost: superseded"


async def test_a_sync_that_began_without_redis_takes_its_lock_when_redis_is_back(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    run = await log.running()
    redis_server.stop()
    async with watched(open_locks(redis_server.url), run) as watchdog:
        assert heard.reported == ["unavailable"]
        redis_server.start()
        with redis_server.client() as server:
            await until(lambda: server.get(key(run)) == value(run), "the lock is seen")
        await until(lambda: heard.reported == ["unavailable", "available"], "reported")
        assert not watchdog.done()
    with redis_server.client() as server:
        assert not server.exists(key(run))


async def test_a_sync_that_never_had_its_lock_is_not_ended_by_an_outage(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    run = await log.running()
    with TcpProxy(redis_server.url) as proxy:
        proxy.refuse()
        locks = open_locks(proxy.url, ttl_seconds=0.2, watchdog_seconds=None)
        async with watched(locks, run) as watchdog:
            tried = asyncio.get_running_loop().time() + 0.4  # twice the time to live
            await until(lambda: asyncio.get_running_loop().time() > tried, "time passes")
            assert not watchdog.done()
    assert heard.reported == ["unavailable"]
