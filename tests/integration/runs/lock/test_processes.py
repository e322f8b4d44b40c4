"""Workers in processes of their own: one is killed, one is frozen and wakes up late."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.integration.runs.lock.conftest import Log, key

Process = subprocess.Popen[str]
Start = Callable[[str], Process]


@pytest.fixture
def start(redis_url: str, log: Log) -> Iterator[Start]:
    processes: list[Process] = []

    def start_worker(worker: str) -> Process:
        module = "tests.integration.runs.lock.worker_process"
        process = subprocess.Popen(
            [sys.executable, "-m", module, redis_url, log.url, worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert line(process) == "ready"
        return process

    yield start_worker
    for process in processes:
        process.kill()
        process.communicate()


def line(process: Process) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, process.communicate()[1]
    return said


def tell(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


async def test_the_lock_of_a_killed_process_is_taken_by_the_next_one_at_once(
    log: Log, start: Start, server: redis.Redis
) -> None:
    run = await log.queued()
    first, second = start("pod-1:1:aaaaaa"), start("pod-2:2:bbbbbb")
    tell(first)
    assert line(first) == "locked"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert server.pttl(key(run)) > 30_000, "what it left would last for long"

    await log.runs.expire(await log.runs.get(run.id))
    tell(second)
    assert line(second) == "locked"
    assert server.get(key(run)) == f"pod-2:2:bbbbbb {run.id}:2"
    tell(second)
    assert line(second) == "left"
    assert not server.exists(key(run))


async def test_a_frozen_process_that_wakes_leaves_its_successors_lock_alone(
    log: Log, start: Start, server: redis.Redis
) -> None:
    run = await log.queued()
    first, second = start("pod-1:1:aaaaaa"), start("pod-2:2:bbbbbb")
    tell(first)
    assert line(first) == "locked"
    first.send_signal(signal.SIGSTOP)
    await log.runs.expire(await log.runs.get(run.id))
    tell(second)
    assert line(second) == "locked"

    first.send_signal(signal.SIGCONT)
    assert line(first) == "LockLost"
    tell(first)
    assert line(first) == "left"
    assert server.get(key(run)) == f"pod-2:2:bbbbbb {run.id}:2"
    tell(second)
    assert line(second) == "left"


async def test_a_process_that_was_frozen_until_its_successor_had_ended_makes_no_new_lock(
    log: Log, start: Start, server: redis.Redis
) -> None:
    run = await log.queued()
    first, second = start("pod-1:1:aaaaaa"), start("pod-2:2:bbbbbb")
    tell(first)
    assert line(first) == "locked"
    first.send_signal(signal.SIGSTOP)
    await log.runs.expire(await log.runs.get(run.id))
    for said in ("locked", "left"):
        tell(second)
        assert line(second) == said

    first.send_signal(signal.SIGCONT)
    assert line(first) == "LockLost"
    assert not server.exists(key(run))
