"""The lock of a repository on a real server: who gets it, what operators see of it, and how it is given back."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
import redis

from reposync.config.database_url import sqlite_url
from reposync.errors import LockHeld
from reposync.runs.locks import LockHolder, lock_overviews, release_lock
from reposync.runs.redis_locks import RedisLocks
from reposync.store.database import Database
from reposync.store.endings import Finish
from reposync.store.history import RunHistory
from reposync.store.run import RunFigures
from tests.fixtures.clocks import DatabaseTime, ShiftedClock, database_time  # noqa: F401
from tests.fixtures.databases import database_kind, database_url, postgresql  # noqa: F401
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import Log, OpenLocks, foreign_value, key, until, value, watched


async def test_a_lock_shows_its_pod_and_run_for_half_an_hour_and_is_gone_after_the_sync(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running(worker="pod-7:42:a1b2c3")
    locks = open_locks(redis_url, ttl_seconds=1800.0, watchdog_seconds=None)
    async with watched(locks, run):
        assert server.get(key(run)) == f"pod-7:42:a1b2c3 {run.id}:1"
        assert 1_790_000 < server.pttl(key(run)) <= 1_800_000
        shown = (await locks.read([run.repository_id]))[run.repository_id]
        holder = LockHolder.parse(shown.value)
        assert holder == LockHolder("pod-7:42:a1b2c3", run.id, 1)
        assert holder.pod == "pod-7"
        assert shown.ttl_seconds is not None
    assert not server.exists(key(run))


async def test_a_lock_is_held_over_a_unix_socket(log: Log, open_locks: OpenLocks, tmp_path: Path) -> None:
    with RedisServer(f"unixsocket={tmp_path / 'redis.sock'}") as redis_server, redis_server.client() as server:
        run = await log.running()
        async with watched(open_locks(f"unix://{tmp_path / 'redis.sock'}"), run):
            assert server.get(key(run)) == value(run)
        assert not server.exists(key(run))


async def test_a_call_that_is_cancelled_at_any_moment_is_cancelled(open_locks: OpenLocks, redis_url: str) -> None:
    """A watchdog that went on after it would be awaited for ever."""
    locks = open_locks(redis_url)
    cancelled = 0
    for is_connected in (True, False):
        for moment in range(60):
            await (locks.ping() if is_connected else locks.close())
            call = asyncio.create_task(locks.ping())
            for _ in range(moment):
                await asyncio.sleep(0)
            if call.cancel():
                cancelled += 1
                await asyncio.wait({call})
                assert call.cancelled(), f"cancelled after {moment} turns, and it went on"
    assert cancelled > 4, "with a connection and without, whatever a call takes on this machine"


async def test_a_lock_of_a_live_holder_is_respected_and_named(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    other = foreign_value()
    server.set(key(run), other, px=90_000)
    with pytest.raises(LockHeld, match="elsewhere:9:ffffff") as refused:
        async with open_locks(redis_url).guard(run):
            pytest.fail("entered")
    assert "reposync locks list" in (refused.value.remedy or "")
    assert server.get(key(run)) == other
    assert server.pttl(key(run)) <= 90_000


@pytest.mark.parametrize("other", ["", "\x1b[2J"])
async def test_a_value_that_no_reposync_wrote_is_respected_and_shown_without_harm(
    other: str, log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    server.set(key(run), other)
    locks = open_locks(redis_url)
    with pytest.raises(LockHeld, match="waits for its Redis lock") as refused:
        async with locks.guard(run):
            pytest.fail("entered")
    assert str(refused.value).isprintable()
    shown = (await locks.read([run.repository_id]))[run.repository_id]
    assert (LockHolder.parse(shown.value), shown.ttl_seconds) == (None, None)
    assert not await locks.release(run.repository_id, "another value")
    assert await locks.release(run.repository_id, shown.value)
    assert not server.exists(key(run))


async def test_the_lock_of_a_run_that_ended_is_replaced_at_once(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    first = await log.running()
    server.set(key(first), value(first), px=1_800_000)
    await log.runs.end(first, Finish(), RunFigures())
    second = await log.running(first.repository)
    async with watched(open_locks(redis_url), second):
        assert server.get(key(second)) == value(second)


async def test_without_an_answer_from_the_database_a_holder_counts(
    log: Log, redis_url: str, server: redis.Redis, tmp_path: Path
) -> None:
    run = await log.running()
    another = value(run.model_copy(update={"id": str(uuid.uuid4())}))
    server.set(key(run), another, px=60_000)
    async with await Database.open(sqlite_url(tmp_path / "without-tables.db")) as broken:
        locks = RedisLocks(redis_url, RunHistory(broken))
        with pytest.raises(LockHeld):
            async with locks.guard(run):
                pytest.fail("entered")
        await locks.close()
    assert server.get(key(run)) == another


async def test_a_living_workers_lock_is_left_alone_by_a_machine_whose_clock_is_a_day_ahead(
    database_time: DatabaseTime,  # noqa: F811
    redis_url: str,
) -> None:
    async with await database_time.open(ShiftedClock(86_400.0)) as database:
        log = Log(database)
        run = await log.running("payments")
        locks = RedisLocks(redis_url, log.history)
        async with locks.guard(run):
            await log.runs.heartbeat(run, 15.0)
            with pytest.raises(LockHeld, match="works on"):
                await release_lock("payments", locks, log.repositories, log.history, log.runs)

            await log.runs.expire(run)
            shown = await lock_overviews(locks, log.repositories, log.history)
            assert [each.state for each in shown if each.run_id == run.id] == ["stale"]
            assert (await release_lock("payments", locks, log.repositories, log.history, log.runs)).released
        await locks.close()


async def test_cancelled_again_while_it_gives_the_lock_back_it_still_does(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    run = await log.running()
    with TcpProxy(redis_server.url) as proxy, redis_server.client() as server:
        locks = open_locks(proxy.url)
        inside = asyncio.Event()

        async def sync() -> None:
            async with locks.guard(run):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(sync())
        await inside.wait()
        proxy.stall()
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
            task.cancel()
        proxy.resume()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not server.exists(key(run))
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelled_while_it_waits_for_the_lock_it_leaves_none_behind(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    run = await log.running()
    with TcpProxy(redis_server.url) as proxy, redis_server.client() as server:
        locks = open_locks(proxy.url)
        await locks.ping()
        proxy.delay(0.04)

        async def sync() -> None:
            async with locks.guard(run):
                pytest.fail("entered, so the test shows nothing")

        task = asyncio.create_task(sync())
        await until(lambda: bool(server.exists(key(run))), "the lock is taken, the answer is on its way")
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not server.exists(key(run))
