"""The lock of a repository on a real server: who gets it, what operators see of it, and how it is given back."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from pathlib import Path

import pytest
import redis

from reposync.config.database_url import sqlite_url
from reposync.errors import LockHeld
from reposync.runs.locks import LockHolder, stale_by
from reposync.runs.redis_locks import RedisLocks
from reposync.store.database import Database
from reposync.store.run import RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunStatus
from tests.fixtures.gitlab_server.tls import Certificate
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import (
    Heard,
    Log,
    OpenLocks,
    foreign_value,
    key,
    until,
    value,
    watched,
)


async def test_a_lock_shows_its_pod_and_run_for_half_an_hour_and_is_gone_after_the_sync(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running(worker="pod-7:42:a1b2c3")
    locks = open_locks(redis_url, ttl_seconds=1800.0, watchdog_seconds=None)
    async with watched(locks, run):
        assert server.get(key(run)) == f"pod-7:42:a1b2c3 {run.id}:1"
        assert 1_790_000 < server.pttl(key(run)) <= 1_800_000
        shown = {each.repository_id: each for each in await locks.list()}[run.repository_id]
        assert shown.holder == LockHolder("pod-7:42:a1b2c3", run.id, 1)
        assert shown.holder.pod == "pod-7"
        assert shown.ttl_seconds is not None
    assert not server.exists(key(run))


async def test_a_lock_of_a_live_holder_is_respected_and_named(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    other = foreign_value()
    server.set(key(run), other, px=90_000)
    with pytest.raises(LockHeld) as refused:
        async with open_locks(redis_url).guard(run):
            pytest.fail("entered")
    assert "elsewhere:9:ffffff" in str(refused.value)
    assert "s more" in str(refused.value)
    assert "reposync locks list" in (refused.value.remedy or "")
    assert server.get(key(run)) == other
    assert server.pttl(key(run)) <= 90_000


@pytest.mark.parametrize("other", ["", "somebody's own", "\x1b[2J", b"\xff\xfe", ["a key of a different type"]])
async def test_a_value_that_no_reposync_wrote_is_respected_and_shown_without_harm(
    other: str | bytes | list[str], log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    if isinstance(other, list):
        server.rpush(key(run), *other)
    else:
        server.set(key(run), other)
    locks = open_locks(redis_url)
    with pytest.raises(LockHeld, match="did not write") as refused:
        async with locks.guard(run):
            pytest.fail("entered")
    assert str(refused.value).isprintable()
    assert "without an expiry" in str(refused.value)
    (shown,) = [each for each in await locks.list() if each.repository_id == run.repository_id]
    assert (shown.holder, shown.ttl_seconds) == (None, None)
    assert not await locks.release(run.repository_id, "another value")
    assert await locks.release(run.repository_id, shown.value)
    assert not server.exists(key(run))


async def test_the_lock_of_a_run_that_ended_is_replaced_at_once(
    log: Log, open_locks: OpenLocks, redis_url: str, server: redis.Redis
) -> None:
    first = await log.running()
    server.set(key(first), value(first), px=1_800_000)
    await log.runs.finish(first, RunStatus.COMPLETED, RunFigures())
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
        locks = RedisLocks(redis_url, is_stale=stale_by(Runs(broken)))
        with pytest.raises(LockHeld):
            async with locks.guard(run):
                pytest.fail("entered")
        await locks.close()
    assert server.get(key(run)) == another


async def test_an_earlier_attempt_of_the_same_run_is_over_without_asking_the_database(
    log: Log, redis_url: str, server: redis.Redis, tmp_path: Path
) -> None:
    first = await log.running()
    server.set(key(first), value(first), px=60_000)
    second = await log.taken_over(first)
    async with await Database.open(sqlite_url(tmp_path / "without-tables.db")) as broken:
        locks = RedisLocks(redis_url, is_stale=stale_by(Runs(broken)))
        async with locks.guard(second):
            assert server.get(key(second)) == value(second)
        await locks.close()


async def test_a_run_id_in_a_lock_is_not_taken_for_the_beginning_of_another(log: Log) -> None:
    run = await log.running()
    assert not await log.is_stale(LockHolder("pod-1:1:aaaaaa", run.id[:8], 2))
    assert await log.is_stale(LockHolder("pod-1:1:aaaaaa", run.id, 2))
    assert await log.is_stale(LockHolder("pod-2:1:aaaaaa", run.id, 1))
    assert not await log.is_stale(LockHolder("pod-1:1:aaaaaa", run.id, 1))


@pytest.mark.parametrize("scheme", ["redis", "unix", "rediss"])
async def test_locks_work_over_tcp_a_unix_socket_and_tls(
    scheme: str, log: Log, open_locks: OpenLocks, redis_server: RedisServer, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        url = {"redis": redis_server.url, "unix": redis_server.socket_url}.get(scheme)
        if url is None:
            certificate = Certificate.make(tmp_path)
            if certificate is None:
                pytest.skip("this machine has no openssl command")
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(certificate.certificate, certificate.key)
            proxy = stack.enter_context(TcpProxy(redis_server.url, tls=tls))
            url = f"{proxy.url}?ssl_ca_certs={certificate.certificate}"
        locks = open_locks(url)
        run = await log.running()
        server = stack.enter_context(redis_server.client())
        async with watched(locks, run):
            assert server.get(key(run)) == value(run)
            assert any(each["name"].startswith("reposync:") for each in server.client_list())
            assert await locks.ping() > 0
        assert not server.exists(key(run))
        await locks.close()


async def test_an_answer_that_was_lost_does_not_lose_the_lock(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    run = await log.running()
    with TcpProxy(redis_server.url) as proxy, redis_server.client() as server:
        locks = open_locks(proxy.url)
        await locks.ping()
        proxy.stall("answers")
        async with watched(locks, run):
            assert server.get(key(run)) == value(run), "the server did what it was asked"
            proxy.cut()
            proxy.resume()
            await until(lambda: heard.reported == ["available", "unavailable", "available"], "our own value is found")
            elsewhere = run.model_copy(update={"id": str(uuid.uuid4()), "worker": "elsewhere:1:aaaaaa"})
            with pytest.raises(LockHeld):
                async with locks.guard(elsewhere):
                    pytest.fail("entered")
        assert not server.exists(key(run))


@pytest.mark.usefixtures("silent_server")
async def test_leaving_raises_nothing_when_redis_does_not_answer(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    run = await log.running()
    async with watched(open_locks(redis_server.url), run):
        redis_server.freeze()
    redis_server.thaw()


async def test_cancelled_again_while_it_gives_the_lock_back_it_still_does(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    run = await log.running()
    with TcpProxy(redis_server.url) as proxy, redis_server.client() as server:
        locks = open_locks(proxy.url)
        inside, leave = asyncio.Event(), asyncio.Event()

        async def sync() -> None:
            async with locks.guard(run):
                inside.set()
                await leave.wait()

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


async def test_a_call_that_is_cancelled_at_any_moment_is_cancelled(open_locks: OpenLocks, redis_url: str) -> None:
    """A watchdog that went on after that would be waited for without an end."""
    locks = open_locks(redis_url)
    cancelled = 0
    for connected in (True, False):
        for moment in range(60):
            if connected:
                await locks.ping()
            else:
                await locks.close()
            call = asyncio.create_task(locks.ping())
            for _ in range(moment):
                await asyncio.sleep(0)
            if call.cancel():
                cancelled += 1
                await asyncio.wait({call})
                assert call.cancelled(), f"cancelled after {moment} turns, and it went on"
    # How many turns a call takes is the machine's affair; some were caught on the way, with a connection and without.
    assert cancelled > 4


async def test_two_thousand_locks_are_listed_among_other_keys(open_locks: OpenLocks, redis_server: RedisServer) -> None:
    with redis_server.client() as server, server.pipeline(transaction=False) as pipeline:
        for number in range(2_000):
            pipeline.set(f"reposync:lock:repository:{number:04}", foreign_value(), px=60_000)
            pipeline.set(f"else:{number}", "x")
        pipeline.execute()
    found = await open_locks(redis_server.url).list()
    assert [each.repository_id for each in found] == [f"{number:04}" for number in range(2_000)]
