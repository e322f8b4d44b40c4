"""Redis as it should not be: each trouble is reported in words, none ends a sync, and no secret is in any of them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from reposync.errors import RedisUnavailable
from tests.fixtures.gitlab_server.tls import Certificate
from tests.fixtures.redis_server import RedisServer, free_port, server_program
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import Heard, Log, OpenLocks, until, watched

SECRET = "geheimnis"


async def trouble(log: Log, open_locks: OpenLocks, heard: Heard, url: str) -> str:
    """What is reported when a sync is guarded with this Redis. The sync goes on."""
    run = await log.running()
    locks = open_locks(url)
    async with watched(locks, run) as sync:
        assert not sync.watchdog.done()
    for ask in (locks.ping(), locks.list(), locks.release(run.repository_id, "value")):
        with pytest.raises(RedisUnavailable) as reported:
            await ask
        assert SECRET not in str(reported.value)
    reason = heard.reasons[0]
    assert reason.isprintable()
    assert reason.startswith("Redis at ")
    assert reason.endswith(".")
    assert SECRET not in "".join(heard.reasons)
    assert "available" not in heard.reported
    return reason


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    made = Certificate.make(tmp_path)
    if made is None:
        pytest.skip("this machine has no openssl command")
    return made


@pytest.mark.parametrize(
    ("setting", "credentials", "words"),
    [
        ("requirepass=another one", "", "requires a password"),
        ("requirepass=another one", f":{SECRET}@", "rejects the user name or the password"),
        ("replicaof=127.0.0.1 1", "", "read-only replica"),
        ("maxmemory=1", "", "memory is full"),
        ("min-replicas-to-write=1", "", "NOREPLICAS"),
    ],
)
async def test_a_server_that_does_not_do_its_work_says_why(
    setting: str, credentials: str, words: str, log: Log, open_locks: OpenLocks, heard: Heard
) -> None:
    with RedisServer(setting) as server:
        url = server.url.replace("://", f"://{credentials}")
        run = await log.running()
        async with watched(open_locks(url), run) as sync:
            assert not sync.watchdog.done()
        assert words in heard.reasons[0]
        assert SECRET not in "".join(heard.reasons)


@pytest.mark.parametrize("rights", ["~* +@all -eval", "~else:* +@all"])
async def test_a_user_who_may_not_do_what_a_lock_needs(
    rights: str, log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    with redis_server.client() as server:
        server.execute_command("ACL", "SETUSER", "limited", "on", f">{SECRET}", *rights.split())
    run = await log.running()
    locks = open_locks(redis_server.url.replace("://", f"://limited:{SECRET}@"))
    async with watched(locks, run) as sync:
        assert not sync.watchdog.done()
    with pytest.raises(RedisUnavailable, match="may not use these commands or keys"):
        await locks.ping()
    assert "may not use these commands or keys" in heard.reasons[0]


async def test_a_sentinel_is_distinguished_from_the_server_that_it_watches(
    log: Log, open_locks: OpenLocks, heard: Heard, tmp_path: Path
) -> None:
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nprotected-mode no\n")
    command = [str(server_program()), str(tmp_path / "sentinel.conf"), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as sentinel, redis.Redis(port=port) as client:
        try:
            await until(lambda: _answers(client), "the Sentinel answers")
            reason = await trouble(log, open_locks, heard, f"redis://127.0.0.1:{port}/0")
        finally:
            sentinel.kill()
    assert "it is a Sentinel" in reason
    assert "name the Redis server itself" in reason


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


async def test_an_address_without_a_server(log: Log, open_locks: OpenLocks, heard: Heard, tmp_path: Path) -> None:
    addresses = {
        f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0": "connection refused",
        f"unix://{tmp_path}/no-socket?password={SECRET}": "no such file",
        f"redis://:{SECRET}@no-such-host.invalid:6379/0": "no-such-host.invalid:6379 cannot be used: its name",
    }
    for url, words in addresses.items():
        heard.reasons.clear()
        assert words in await trouble(log, open_locks, heard, url)


async def test_a_certificate_of_an_unknown_authority(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer, certificate: Certificate
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    with TcpProxy(redis_server.url, tls=tls) as proxy:
        assert "certificate is not accepted" in await trouble(log, open_locks, heard, proxy.url)


async def test_tls_is_expected_and_not_spoken(log: Log, open_locks: OpenLocks, heard: Heard) -> None:
    async with talker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        reason = await trouble(log, open_locks, heard, f"rediss://:{SECRET}@127.0.0.1:{port}")
    assert "TLS fails" in reason


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


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="it hangs up"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(b":twelve\r\n", id="a number that is none"),
        pytest.param(b"+OK\r\n", id="always OK"),
        pytest.param(b"\x00\xff\r\n" * 5_000, id="noise"),
        pytest.param(b"*1\r\n" * 5_000, id="lists in lists"),
        pytest.param(b"-ERR \x1b[2Jno\r\n", id="an error that rings the bell"),
        pytest.param(
            b"-ERR unknown command 'AUTH', with args beginning with: 'user' '" + SECRET.encode() + b"' \r\n",
            id="an error that repeats the password",
        ),
    ],
)
@pytest.mark.usefixtures("silent_server")
async def test_what_answers_there_is_no_redis(answer: bytes, log: Log, open_locks: OpenLocks, heard: Heard) -> None:
    async with talker(answer) as port:
        await trouble(log, open_locks, heard, f"redis://user:{SECRET}@127.0.0.1:{port}/0")


async def test_the_same_trouble_is_reported_once_and_a_different_one_again(
    log: Log, open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
) -> None:
    with TcpProxy(redis_server.url) as proxy:
        locks = open_locks(proxy.url)
        for _ in range(2):
            await locks.ping()
        proxy.down()
        for _ in range(3):
            with pytest.raises(RedisUnavailable):
                await locks.ping()
        proxy.up()
        with redis_server.client() as server:
            server.config_set("min-replicas-to-write", "1")
            with pytest.raises(RedisUnavailable, match="NOREPLICAS"):
                await locks.ping()
            server.config_set("min-replicas-to-write", "0")
        await locks.ping()
    reported = [heard.reasons.pop(0) if each == "unavailable" else each for each in heard.reported]
    assert [first for first, second in pairwise(reported) if first == second] == []
    assert (reported[0], reported[-1]) == ("available", "available")
    assert "NOREPLICAS" in reported[-2]
    assert "connection refused" in reported[-3]


async def test_nothing_is_left_open_when_redis_hangs(
    log: Log, open_locks: OpenLocks, redis_server: RedisServer
) -> None:
    with TcpProxy(redis_server.url) as proxy:
        locks = open_locks(proxy.url)
        await locks.ping()
        proxy.stall()
        with pytest.raises(RedisUnavailable, match="does not answer in time"):
            await locks.ping()
        await locks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture(autouse=True)
def nothing_is_written_to_the_log_but_words(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert SECRET not in caplog.text
