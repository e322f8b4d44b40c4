"""The worker process: killed by a file, it is replaced; killed with its parent, it does not stay behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from reposync.app.verification import Verification
from reposync.content.model import Skip, Skipped
from reposync.store.run import Run
from reposync.sync.prepare import MOST_DEATHS, PROCESS_FROM_FILES, ContentSettings, ContentWorkers, RawFile, death_of
from tests.fixtures.world import World

pytestmark = pytest.mark.full

SETTINGS = ContentSettings(7000, 1500, 1_000_000)
FILES = [RawFile(f"f{number}.py".encode(), 0o100644, "0" * 40, 9, b"value = 1") for number in range(40)]


def content_workers() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "resource_tracker" not in " ".join(each.cmdline()):
                found.append(each)
    return found


async def test_a_file_whose_workers_died_before_is_tried_in_a_process_and_at_last_only_reported():
    suspect, lethal = (death_of(file.path, file.sha) for file in FILES[:2])
    before = set(content_workers())
    async with ContentWorkers(3, SETTINGS, {suspect: MOST_DEATHS - 1, lethal: MOST_DEATHS}) as workers:
        (reported,) = await workers.prepare(FILES[1:2])
        assert set(content_workers()) <= before, "it is not tried"
        prepared = await workers.prepare(FILES[:3])
        assert not set(content_workers()) <= before, "not in this process"
    assert reported.skipped == Skipped(Skip.FAILED, lethal[1])
    assert [bool(file.chunks) for file in prepared] == [True, False, True]


def kill_workers(number: int, others: set[psutil.Process], ended: threading.Event) -> None:
    """The first so many content workers that appear beside these `others`."""
    killed: set[psutil.Process] = set()
    while not ended.wait(0.01) and len(killed) < number:
        for each in set(content_workers()) - others - killed:
            if len(killed) < number and is_started(each):
                each.kill()
                killed.add(each)


def is_started(process: psutil.Process) -> bool:
    """Not only forked, as it still is this program."""
    with contextlib.suppress(psutil.Error):
        return any("spawn_main" in word for word in process.cmdline())
    return False


async def sync_with_killed_workers(world: World, number: int) -> Run:
    ended = threading.Event()
    killing = asyncio.create_task(asyncio.to_thread(kill_workers, number, set(content_workers()), ended))
    try:
        return await world.sync()
    finally:
        ended.set()
        await killing


async def test_files_whose_workers_are_killed_are_in_the_index_after_later_syncs(world: World, monkeypatch):
    world.repository.commit({"first.py": b"value = 0\n"})
    await world.completed()
    world.repository.commit({f"f{n:03}.py": f"value = {n}\n".encode() for n in range(PROCESS_FROM_FILES)})
    # The batch, then the first file of it twice.
    monkeypatch.setattr("reposync.sync.pipeline.BATCH_FILES", PROCESS_FROM_FILES)
    run = await sync_with_killed_workers(world, 3)
    assert (run.status, run.error_code, run.files_failed) == ("completed", "FILES_FAILED", 1)
    problems = await world.app.runs.problems(run.id)
    assert [each.path for each in problems] == ["f000.py"]
    assert "ended the worker" in problems[0].detail
    verdict = await Verification(world.app, against_source=False, report=lambda _: None).verify("project")
    assert (verdict.exact, verdict.failed) == (False, 1)

    # Tried alone, twice more, and in a process although it is one file.
    run = await sync_with_killed_workers(world, 2)
    assert (run.error_code, run.files_failed) == ("FILES_FAILED", 1)

    monkeypatch.setattr("reposync.sync.prepare.MOST_DEATHS", 2)
    before = set(content_workers())
    run = await world.sync()
    assert (run.error_code, run.files_failed) == ("FILES_FAILED", 1), "it is not tried any more, and not forgotten"
    assert set(content_workers()) <= before
    monkeypatch.undo()

    run = await world.completed()
    assert (run.files_processed, run.files_failed) == (1, 0)
    assert await world.indexed() == await world.expected()
    verdict = await Verification(world.app, against_source=True, report=lambda _: None).verify("project")
    assert verdict.exact


async def test_a_first_sync_reads_what_killed_its_worker_once_more_in_a_worker(world: World, monkeypatch):
    world.repository.commit({f"f{n:03}.py": f"value = {n}\n".encode() for n in range(PROCESS_FROM_FILES)})
    monkeypatch.setattr("reposync.sync.pipeline.BATCH_FILES", PROCESS_FROM_FILES)
    monkeypatch.setattr("reposync.sync.prepare.ThreadPoolExecutor", None)  # only a worker may read it
    # While words are indexed: the batch, and the first file of it twice.
    run = await sync_with_killed_workers(world, 3)
    assert (run.status, run.error_code, run.files_failed) == ("completed", None, 0)
    assert await world.indexed() == await world.expected()


PARENT = """
import asyncio, os, sys
from reposync.sync.prepare import ContentWorkers, PROCESS_FROM_FILES
from tests.integration.sync.test_workers import FILES, SETTINGS
async def main():
    async with ContentWorkers(PROCESS_FROM_FILES, SETTINGS) as workers:
        await workers.prepare(FILES)
        print("ready", flush=True)
        await asyncio.sleep(3600)
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_worker_ends_with_its_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    children = psutil.Process(parent.pid).children()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
