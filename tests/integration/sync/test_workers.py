"""The worker process: killed by a file, it is replaced; killed with its parent, it does not stay behind."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from reposync.app.verification import Verification
from reposync.content.secret_policy import OFF
from reposync.store.run import Run
from reposync.sync.content_pool import ContentPool, RunContent
from reposync.sync.prepare import ContentSettings, RawFile
from tests.fixtures.canaries import PROVIDERS
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.world import World

pytestmark = pytest.mark.full

MANY = 400
SETTINGS = ContentSettings(7000, 1500, 1_000_000)
FILES = [RawFile(f"f{number}.py".encode(), 0o100644, "0" * 40, 9, b"value = 1") for number in range(40)]


def content_workers() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "reposync.sync.content_worker" in each.cmdline():
                found.append(each)
    return found


@pytest.fixture
def pool() -> Iterator[ContentPool]:
    """One worker, so that the order of the files is that of their deaths."""
    pool = ContentPool(1)
    yield pool
    pool.close()


async def test_a_file_with_too_many_steps_is_indexed_without_symbols_and_its_neighbours_with_them(pool: ContentPool):
    code, endless = b"fun f() {\n}\n", b"a." * 495_000
    files = [
        RawFile(b"a.kt", 0o100644, "1" * 40, len(code), code),
        RawFile(b"b.kt", 0o100644, "2" * 40, len(endless), endless, keep_generated=True),
        RawFile(b"c.kt", 0o100644, "3" * 40, len(code), code),
    ]
    content = RunContent(pool, SETTINGS, OFF)
    prepared = await content.prepare(files)
    assert [file.is_over_budget for file in prepared] == [False, True, False]
    assert [bool(file.chunks) for file in prepared] == [True, True, True]
    assert [sum(len(chunk.symbols) for chunk in file.chunks) for file in prepared] == [1, 0, 1]
    assert content.over_budget == ["b.kt"]


async def test_a_file_past_its_seconds_is_indexed_without_symbols(pool: ContentPool):
    """The timer of the worker sends this signal."""
    code = b"def f():\n    pass\n"
    file = replace(FILES[0], content=code)
    content = RunContent(pool, SETTINGS, OFF)
    ended = threading.Event()
    others = set(content_workers())
    killing = asyncio.create_task(asyncio.to_thread(kill_workers, 1, others, ended, signal.SIGPROF))
    (prepared,) = await content.prepare([file])
    ended.set()
    await killing
    assert (prepared.is_over_budget, [chunk.symbols for chunk in prepared.chunks]) == (True, [()])


async def test_a_file_whose_parser_never_ends_costs_its_seconds_once(pool: ContentPool):
    code, endless = b"def f():\n    pass\n", b"(" * 1_000_000
    files = [replace(FILES[0], content=code) for _ in range(3)]
    files[1] = RawFile(b"b.py", 0o100644, "1" * 40, len(endless), endless, keep_generated=True)
    others, workers, ended = set(content_workers()), set[psutil.Process](), threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            workers.update(content_workers())

    watching = asyncio.create_task(asyncio.to_thread(watch))
    prepared = await RunContent(pool, SETTINGS, OFF).prepare(files)
    ended.set()
    await watching
    assert [bool(file.chunks) for file in prepared] == [True, True, True]
    assert [sum(len(chunk.symbols) for chunk in file.chunks) for file in prepared] == [1, 0, 1]
    assert len(workers - others) == 2, "one that the file ended, and the next one"


async def test_the_worker_of_a_cancelled_run_ends_in_the_middle_of_a_file(world: World, pool: ContentPool):
    world.app.content = pool
    world.repository.commit({"a.py": b"def f():\n    pass\n"})
    before = set(content_workers())
    run = asyncio.create_task(world.sync())
    while not (workers := set(content_workers()) - before):
        await asyncio.sleep(0.01)
    (worker,) = workers
    worker.suspend()  # this file takes for ever
    while not pool.busy:
        await asyncio.sleep(0.01)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    _, alive = await asyncio.to_thread(psutil.wait_procs, [worker], timeout=PATIENCE_SECONDS)
    assert alive == []


def kill_workers(
    number: int, others: set[psutil.Process], ended: threading.Event, by: signal.Signals = signal.SIGKILL
) -> None:
    """The first so many content workers that appear beside these `others`."""
    killed: set[psutil.Process] = set()
    while not ended.wait(0.01) and len(killed) < number:
        for each in set(content_workers()) - others - killed:
            if len(killed) < number and is_started(each):
                each.send_signal(by)
                killed.add(each)


def is_started(process: psutil.Process) -> bool:
    """Not only forked, as it still is this program."""
    with contextlib.suppress(psutil.Error):
        return "reposync.sync.content_worker" in process.cmdline()
    return False


async def sync_with_killed_workers(world: World, number: int, others: set[psutil.Process]) -> Run:
    ended = threading.Event()
    killing = asyncio.create_task(asyncio.to_thread(kill_workers, number, others, ended))
    try:
        return await world.sync()
    finally:
        ended.set()
        await killing


async def test_files_whose_workers_are_killed_are_in_the_index_after_later_syncs(
    world: World, pool: ContentPool, monkeypatch
):
    world.app.content, others = pool, set(content_workers())
    world.repository.commit({"first.py": b"value = 0\n"})
    await world.completed()
    world.repository.commit({f"f{n:03}.py": f"value = {n}\n".encode() for n in range(MANY)})
    # The batch, then the first file of it twice.
    monkeypatch.setattr("reposync.sync.pipeline.BATCH_FILES", MANY)
    run = await sync_with_killed_workers(world, 3, others)
    assert (run.status, run.error_code, run.files_failed) == ("completed", "FILES_FAILED", 1)
    problems = await world.app.history.problems(run.id)
    assert [each.path for each in problems] == ["f000.py"]
    assert "ended the worker" in problems[0].detail
    verdict = await Verification(world.app, against_source=False).verify("project")
    assert (verdict.exact, verdict.failed) == (False, 1)

    run = await sync_with_killed_workers(world, 3, others)
    assert (run.error_code, run.files_failed) == ("FILES_FAILED", 1), "it is tried again, and not forgotten"

    run = await world.completed()
    assert (run.files_processed, run.files_failed) == (1, 0)
    assert await world.indexed() == await world.expected()
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert verdict.exact


async def test_a_file_that_is_slow_to_scan_for_secrets_fails_alone_and_the_run_says_why(
    closed_world: World, monkeypatch: pytest.MonkeyPatch
):
    """Loading the rules takes longer than a file may here, and is not counted."""
    monkeypatch.setattr("reposync.sync.content_pool.FILE_SECONDS", 0.2)
    chance, make = random.Random(1), PROVIDERS["gitlab"]
    slow = "".join(f'- "{make(chance)}"\n' for _ in range(20_000))
    plain = make(chance).encode()
    closed_world.repository.commit({"a.txt": plain, "b.txt": slow.encode(), "c.txt": plain})
    closed_world.edit_registry("max_file_bytes: 100000", "max_file_bytes: 1000000")
    async with closed_world.opened() as world:
        run = await world.completed()

        assert (run.error_code, run.files_failed, run.files_processed) == ("FILES_FAILED", 1, 2)
        (problem,) = await world.app.history.problems(run.id)
        assert (problem.path, problem.reason) == ("b.txt", "failed")
        assert "it took too long" in problem.detail
        assert set(await world.indexed()) == {"a.txt", "c.txt"}


NONSENSE = """
import asyncio
import resource
from reposync.content.secret_policy import OFF
from reposync.sync.content_pool import ContentPool, RunContent
from reposync.sync.prepare import RawFile
from tests.integration.sync.test_workers import SETTINGS
languages = "c cpp cs ex go hs java js kt lua php py rb rs scala sh swift ts tsx zig".split()
files = []
for unit in (b"x=>", b"/*"):
    for language in languages:
        content = unit * (7_000 // len(unit))
        name = f"{len(files)}.{language}".encode()
        files.append(RawFile(name, 0o100644, f"{len(files):040}", len(content), content, keep_generated=True))
async def main():
    pool = ContentPool(1)
    prepared = await RunContent(pool, SETTINGS, OFF).prepare(files)
    pool.close()
    print([file.path for file in prepared if not file.chunks])
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000)
asyncio.run(main())
"""


def test_nonsense_in_any_language_is_indexed_by_workers_of_a_bounded_size(tmp_path):
    """C's parser wants 2 GB for 7 kB of it."""
    script = tmp_path / "nonsense.py"
    script.write_text(NONSENSE)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=170, check=True
    )
    failed, largest = ended.stdout.splitlines()
    assert failed == "[]"
    assert int(largest) < 400, "MB"


PARENT = """
import asyncio
from reposync.content.secret_policy import OFF
from reposync.sync.content_pool import ContentPool, RunContent
from tests.integration.sync.test_workers import FILES, SETTINGS
async def main():
    await RunContent(ContentPool(), SETTINGS, OFF).prepare(FILES)
    print("ready", flush=True)
    await asyncio.sleep(3600)
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
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []
