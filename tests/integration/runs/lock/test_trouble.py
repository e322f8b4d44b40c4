"""Redis as it should not be: each trouble is reported in words, none ends a sync, and no secret is in any of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from reposync.errors import RedisUnavailable
from reposync.runs import redis_locks
from tests.fixtures.redis_server import RedisServer, free_port
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.runs.lock.conftest import Heard, Log, OpenLocks, watched

SECRET = "geheimnis"


@pytest.fixture(autouse=True)
def nothing_is_written_to_the_log_but_words(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert SECRET not in caplog.text


async def trouble(log: Log, open_locks: OpenLocks, heard: Heard, url: str) -> str:
    """What is reported when a sync is guarded with this Redis. The sync goes on."""
    locks = open_locks(url)
    async with watched(locks, await log.running()) as watchdog:
        assert not watchdog.done()
    for ask in (locks.ping(), locks.list()):
        with contextlib.suppress(RedisUnavailable):  # a read-only replica can be listed
            await ask
    assert SECRET not in "".join(heard.reasons)
    reason = heard.reasons[0]
    assert reason.isprintable()
    assert reason.startswith("Redis at ") and reason.endswith(".")
    return reason.lower()


async def test_an_address_without_a_server(log: Log, open_locks: OpenLocks, heard: Heard, tmp_path: Path) -> None:
    addresses = {
        f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0": "refused",
        f"unix://{tmp_path}/no-socket?password={SECRET}": "no such file",
        f"redis://:{SECRET}@no-such-host.invalid:6379/0": "no-such-host.invalid:6379 cannot be used",
    }
    for url, words in addresses.items():
        heard.reasons.clear()
        assert words in await trouble(log, open_locks, heard, url)


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
    scheme: str, answer: bytes, log: Log, open_locks: OpenLocks, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_locks, "RELEASE_SECONDS", 0.2)
    monkeypatch.setattr(redis_locks, "SCAN_SECONDS", 0.2)
    async with talker(answer) as port:
        await trouble(log, open_locks, heard, f"{scheme}://user:{SECRET}@127.0.0.1:{port}/0")


async def test_the_same_trouble_is_reported_once_and_nothing_is_left_open_when_redis_hangs(
    open_locks: OpenLocks, heard: Heard, redis_server: RedisServer
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
        await locks.ping()
        proxy.stall()
        with pytest.raises(RedisUnavailable, match="does not answer in time"):
            await locks.ping()
        await locks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert heard.reported == ["available", "unavailable", "unavailable", "available", "unavailable"]
    assert len(set(heard.reasons)) == 3
