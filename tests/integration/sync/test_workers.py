"""The worker process: killed by a file, it is replaced; killed with its parent, it does not stay behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from reposync.sync.prepare import ContentSettings, RawFile
from reposync.sync.workers import PROCESS_FROM_FILES, ContentWorkers

SETTINGS = ContentSettings(7000, 1500, 1_000_000)
FILES = [RawFile(f"f{number}.py".encode(), 0o100644, "0" * 40, 9, b"value = 1") for number in range(40)]


def content_workers() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "resource_tracker" not in " ".join(each.cmdline())]


async def test_a_killed_worker_is_replaced_and_no_file_is_lost():
    async with ContentWorkers(PROCESS_FROM_FILES, SETTINGS) as workers:
        before = set(content_workers())
        assert len(await workers.prepare(FILES)) == len(FILES)
        (worker,) = set(content_workers()) - before or set(content_workers())
        worker.kill()
        await asyncio.to_thread(worker.wait)
        prepared = await workers.prepare(FILES)
    assert [file.path for file in prepared] == [file.path.decode() for file in FILES]
    assert all(file.chunks for file in prepared)


async def test_a_small_run_starts_no_process():
    before = set(content_workers())
    async with ContentWorkers(3, SETTINGS) as workers:
        assert len(await workers.prepare(FILES[:3])) == 3
        assert set(content_workers()) == before


PARENT = """
import asyncio, os, sys
from reposync.sync.workers import ContentWorkers, PROCESS_FROM_FILES
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
