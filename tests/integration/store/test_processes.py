"""Several processes on one database, and what a kill -9 leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.integration.store.conftest import Store

Process = subprocess.Popen[str]
Start = Callable[[str, str], Process]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def start_process(url: str, work: str) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.store.store_process", url, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        process.kill()
        process.communicate()


def line(process: Process) -> str:
    said = process.stdout.readline().strip()
    assert said, process.communicate()[1]
    return said


def go(*processes: Process) -> None:
    for process in processes:
        assert line(process) == "ready"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def rest(process: Process) -> list[str]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out.split()


async def test_two_processes_share_the_queue_without_a_repetition(
    store: Store, database_url: str, start: Start
) -> None:
    queued = {(await store.queued(f"repository-{number}")).id for number in range(20)}

    processes = [start(database_url, "claim") for _ in range(2)]
    go(*processes)
    claimed = [run_id for process in processes for run_id in rest(process)]

    assert sorted(claimed) == sorted(queued)


async def test_a_process_that_was_frozen_past_its_lease_writes_nothing_when_it_wakes(
    store: Store, database_url: str, start: Start
) -> None:
    run = await store.queued()
    process = start(database_url, "freeze")
    go(process)
    assert line(process) == run.id
    process.send_signal(signal.SIGSTOP)
    await store.taken_over(await store.runs.get(run.id))

    process.send_signal(signal.SIGCONT)
    process.stdin.write("wake\n")

    assert rest(process) == ["LeaseLost"]
    assert await store.manifests.load(run.repository_id) == {}
