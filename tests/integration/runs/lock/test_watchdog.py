"""The watchdog beside a sync: what it keeps and takes again, when the sync must end, and how trouble is reported."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from reposync.errors import RedisUnavailable
from reposync.runs import redis_locks
from tests.fixtures.redis_server import RedisServer, server_program
from tests.fixtures.supervised import free_port
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import Heard, Log, OpenLocks, foreign_value, key, lost, until, value, watched

TTL_SECONDS = 3.0


async def test_a_lock_is_extended_to_its_full_time_to_live_as_long_as_the_sync_goes_on(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_url: str, server: redis.Redis
) -> None:
    run = await log.running()
    async with watched(open_locks(redis_url, ttl_seconds=1800.0, watchdog_seconds=0.05), run):
        for _ in range(3):
            assert server.pexpire(key(run), 20_000), "the key is always there"
            await until(lambda: server.pttl(key(run)) > 1_700_000, "extended to the full time to live")
    assert heard.reported == []


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
    durable: bool, log: Log, open_locks: OpenLocks
) -> None:
    run = await log.running()
    with RedisServer(durable=durable) as redis_server:
        async with watched(open_locks(redis_server.url), run) as watchdog:
            redis_server.kill()
            redis_server.start()
            with redis_server.client() as server:
                await until(lambda: server.get(key(run)) == value(run), "held again")
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
    assert heard.reported == ["lost: unreachable"]


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


async def test_a_run_that_was_taken_over_leaves_the_lock_to_its_successor(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_url: str, server: redis.Redis
) -> None:
    first = await log.running()
    async with watched(open_locks(redis_url), first) as watchdog:
        second = await log.taken_over(first)
        server.set(key(second), value(second), px=30_000)
        assert "LockLost" in await lost(watchdog)
    assert server.get(key(first)) == value(second)
    assert heard.reported == ["lost: taken"]


async def test_a_sync_that_began_without_redis_takes_its_lock_when_redis_is_back(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    run = await log.running()
    redis_server.stop()
    async with watched(open_locks(redis_server.url), run) as watchdog:
        assert heard.reported == ["began without"]
        redis_server.start()
        with redis_server.client() as server:
            await until(lambda: server.get(key(run)) == value(run), "the lock is seen")
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
    assert heard.reported == ["began without"]


# Redis as it should not be --------------------------------------------------------------------------------------------


SECRET = "geheimnis"


@pytest.fixture(autouse=True)
def nothing_is_written_to_the_log_but_words(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert SECRET not in caplog.text


async def trouble(log: Log, open_locks: OpenLocks, url: str) -> str:
    """What is reported about this Redis. A sync that it guards goes on."""
    locks = open_locks(url)
    async with watched(locks, await log.running()) as watchdog:
        assert not watchdog.done()
    with pytest.raises(RedisUnavailable) as refused:
        await locks.ping()
    reasons = [str(refused.value)]
    try:
        await locks.read(["an-id"])
    except RedisUnavailable as error:  # a read-only replica can be read
        reasons.append(str(error))
    assert SECRET not in "".join(reasons)
    assert reasons[0].isprintable()
    assert reasons[0].startswith("Redis at ") and reasons[0].endswith(".")
    return reasons[0].lower()


async def test_an_address_without_a_server(log: Log, open_locks: OpenLocks, tmp_path: Path) -> None:
    addresses = {
        f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0": "refused",
        f"unix://{tmp_path}/no-socket?password={SECRET}": "no such file",
        f"redis://:{SECRET}@no-such-host.invalid:6379/0": "no-such-host.invalid:6379 cannot be used",
    }
    for url, words in addresses.items():
        assert words in await trouble(log, open_locks, url)


@pytest.mark.parametrize(
    ("setting", "credentials", "words"),
    [
        ("requirepass=another one", "", "authentication required"),
        ("requirepass=another one", f":{SECRET}@", "invalid username-password pair"),
        ("replicaof=127.0.0.1 1", "", "read only replica"),
        ("maxmemory=1", "", "maxmemory"),
        ("cluster-enabled=yes", "", "redis cluster, which is not supported"),
    ],
)
async def test_a_server_that_does_not_do_its_work_says_why(
    setting: str, credentials: str, words: str, log: Log, open_locks: OpenLocks, tmp_path: Path
) -> None:
    with RedisServer(setting, f"dir={tmp_path}") as server:
        url = server.url.replace("://", f"://{credentials}")
        assert words in await trouble(log, open_locks, url)


async def test_a_user_who_may_not_do_what_a_lock_needs_is_reported(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    with redis_server.client() as server:
        server.acl_setuser("limited", enabled=True, passwords=[f"+{SECRET}"], keys="*", commands=["+@all", "-eval"])
    url = redis_server.url.replace("://", f"://limited:{SECRET}@")
    assert "no permissions to run the 'eval' command" in await trouble(log, open_locks, url)


async def test_a_sentinel_is_distinguished_from_the_server_that_it_watches(
    log: Log, open_locks: OpenLocks, tmp_path: Path
) -> None:
    port, configuration = free_port(), tmp_path / "sentinel.conf"
    configuration.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nprotected-mode no\n")
    command = [str(server_program()), str(configuration), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as sentinel, redis.Redis(port=port) as client:
        try:
            await until(lambda: answers(client), "the Sentinel answers")
            reason = await trouble(log, open_locks, f"redis://127.0.0.1:{port}/0")
        finally:
            sentinel.kill()
    assert "it is a sentinel, or eval is disabled; name the redis server itself" in reason


def answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


@contextlib.asynccontextmanager
async def talker(answer: bytes) -> AsyncIterator[int]:
    """A port where everything that is said gets the same answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65_536):
                writer.write(answer)
                await writer.drain()
                if not answer:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="it hangs up"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(b"+OK\r\n", id="always OK"),
        pytest.param(b"*1\r\n" * 5_000, id="lists in lists"),
        pytest.param(b"-ERR \x1b[2Jno\r\n", id="an error that rings the bell"),
        pytest.param(
            b"-ERR unknown command 'AUTH', with args beginning with: 'user' '" + SECRET.encode() + b"' \r\n",
            id="an error that repeats the password",
        ),
    ],
)
async def test_what_answers_there_is_no_redis(
    scheme: str, answer: bytes, log: Log, open_locks: OpenLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_locks, "READ_SECONDS", 0.2)
    async with talker(answer) as port:
        await trouble(log, open_locks, f"{scheme}://user:{SECRET}@127.0.0.1:{port}/0")


async def test_nothing_is_left_open_when_redis_hangs_and_it_is_used_again_when_it_answers(
    open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    with TcpProxy(redis_server.url) as proxy:
        locks = open_locks(proxy.url)
        await locks.ping()
        proxy.down()
        for _ in range(3):
            with pytest.raises(RedisUnavailable):
                await locks.ping()
        proxy.up()
        await locks.ping()
        proxy.stall()
        with pytest.raises(RedisUnavailable, match="does not answer in time"):
            await locks.ping()
        await locks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
