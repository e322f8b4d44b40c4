"""The embedded engine as a process: one on a folder, found by all clients, started again if it died."""

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import orjson
import psutil
import pytest

from reposync.errors import IndexUnavailable, VectorIndexError
from reposync.vectors.connection import EmbeddedTransport
from reposync.vectors.embedded import IDLE_VARIABLE, LOG, RECORD, REVISION, SOCKET
from reposync.vectors.engine.claim import LONGEST_SOCKET_PATH_BYTES
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.engine import Engine
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPARSE_ALONE, SPEC, file, scope
from tests.integration.vectors.conftest import index_in

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 60.0


@pytest.fixture
def state_dir() -> Generator[Path, None, None]:
    """What a killed process has written is there in memory as on a disk."""
    with quick_folder() as folder:
        yield folder
        Engine(folder).stop()


@pytest.fixture
def engine(state_dir: Path) -> Engine:
    return Engine(state_dir, idle_seconds=0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def pid_of(engine: Engine) -> int:
    pid = json.loads((engine.folder / RECORD).read_bytes())["pid"]
    assert isinstance(pid, int)
    return pid


def is_alive(pid: int) -> bool:
    """A zombie is as dead as one that is gone."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def engines_on(folder: Path) -> list[int]:
    """Every process of the machine that was started for this folder."""
    started = {"reposync.vectors.engine", str(folder)}
    processes = psutil.process_iter(["cmdline"])
    return [each.pid for each in processes if started <= set(each.info["cmdline"] or ()) and is_alive(each.pid)]


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | environment)


def output_of(process: subprocess.Popen[bytes]) -> str:
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    return out.decode().strip()


FIND = """
import sys
from pathlib import Path
from reposync.vectors.embedded import exchange
from tests.fixtures.engine import Engine
engine = Engine(Path(sys.argv[1]))
print(exchange(engine.find(), "GET /engine")["pid"])
"""


def test_an_engine_is_started_once_and_is_private(engine: Engine) -> None:
    engine.ensure_started()
    address = engine.find()
    pid = pid_of(engine)
    engine.ensure_started()
    assert engine.find() == address
    assert engines_on(engine.folder) == [pid]
    assert Path(address).stat().st_mode & 0o077 == 0
    assert engine.folder.stat().st_mode & 0o777 == 0o700
    assert (engine.folder / LOG).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("attempt", range(2))
def test_processes_that_start_at_once_end_with_one_engine(engine: Engine, attempt: int) -> None:
    if attempt % 2:  # what an engine that was killed leaves behind must not confuse them
        engine.find()
        kill(pid_of(engine))
    starters = [python(FIND, str(engine.folder.parent)) for _ in range(4)]
    found = {output_of(each) for each in starters}
    assert len(found) == 1
    wait_until(lambda: len(engines_on(engine.folder)) == 1)
    assert engines_on(engine.folder) == [int(found.pop())]


def test_the_engine_ends_when_it_is_idle_and_the_next_has_its_points(state_dir: Path) -> None:
    engine = Engine(state_dir, idle_seconds=0.3)

    async def store_and_count() -> int:
        transport = EmbeddedTransport(engine)
        index = QdrantIndex(IndexSettings(collection="code", state_dir=state_dir), transport=transport)
        await index.ensure(SPEC)
        await index.replace_files(scope(), [file("a.py", "one")])
        pid = pid_of(engine)
        # A client that stays open keeps no engine alive, and does not notice that it went.
        await asyncio.to_thread(wait_until, lambda: not is_alive(pid))
        assert not (engine.folder / RECORD).exists()
        count = await index.count()
        assert pid_of(engine) != pid
        await index.close()
        return count

    assert asyncio.run(store_and_count()) == 1


def test_the_idle_time_is_read_from_the_environment(state_dir: Path) -> None:
    pid = int(output_of(python(FIND, str(state_dir), **{IDLE_VARIABLE: "0.1"})))
    wait_until(lambda: not is_alive(pid))


async def test_a_killed_engine_is_started_again_and_the_request_is_answered(engine: Engine, state_dir: Path) -> None:
    async with index_in(state_dir) as index:
        await index.ensure(SPEC)
        for number in range(3):
            await index.replace_files(scope(), [file(f"{number}.py", "text")])
            await asyncio.to_thread(kill, pid_of(engine))
            assert await index.count() == number + 1
    assert len(engines_on(engine.folder)) == 1


WRITE = """
import asyncio, sys
from pathlib import Path
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings
from tests.fixtures.folders import quick_folder
from tests.fixtures.points import SPEC, file, scope

async def main():
    index = QdrantIndex(IndexSettings(collection="code", state_dir=Path(sys.argv[1])))
    await index.ensure(SPEC)
    for number in range(100_000):
        await index.replace_files(scope(), [file(f"{number}.py", *(f"{number} {each}" for each in range(20)))])
        print(number, flush=True)

asyncio.run(main())
"""


async def test_points_that_were_acknowledged_survive_the_death_of_engine_and_writer(
    engine: Engine, state_dir: Path
) -> None:
    writer = python(WRITE, str(state_dir))
    assert writer.stdout is not None
    acknowledged = -1
    for deaths in range(3):
        for _ in range(5):
            acknowledged = int(await asyncio.to_thread(writer.stdout.readline))
        if deaths < 2:
            kill(pid_of(engine))  # the writer goes on with the next engine
    writer.send_signal(signal.SIGKILL)
    kill(pid_of(engine))
    writer.wait()
    # What was acknowledged but not read from the pipe counts too.
    acknowledged = max([acknowledged, *(int(line) for line in writer.stdout.read().split(b"\n")[:-1])])
    writer.stdout.close()
    async with index_in(state_dir) as index:
        stored = {each async for page in index.point_ids(scope().version_id) for each in page}
        for number in range(acknowledged + 1):
            await index.replace_files(scope(), [file(f"{number}.py", *(f"{number} {each}" for each in range(20)))])
        again = {each async for page in index.point_ids(scope().version_id) for each in page}
    assert len(again) - len(stored) == 0, "writing what was acknowledged once more adds nothing"
    assert len(stored) in range((acknowledged + 1) * 20, (acknowledged + 2) * 20 + 1)


def test_a_folder_of_a_later_version_is_refused_with_a_remedy(engine: Engine) -> None:
    engine.folder.mkdir(mode=0o700)
    (engine.folder / "catalogue.json").write_text('{"revision": 999}')
    with pytest.raises(VectorIndexError, match=r"catalogue\.json was not written by this version") as raised:
        engine.find()
    assert f"Remove the folder {engine.folder} and sync" in str(raised.value)
    assert (engine.folder / "catalogue.json").read_text() == '{"revision": 999}', "it is not damaged"


def stopped(engine: Engine) -> int:
    """The pid of an engine that was started and does not react."""
    engine.find()
    pid = pid_of(engine)
    os.kill(pid, signal.SIGSTOP)
    return pid


async def test_an_engine_whose_folder_was_removed_ends_and_leaves_the_next_one_alone(state_dir: Path) -> None:
    older, newer = Engine(state_dir, idle_seconds=0), Engine(state_dir, idle_seconds=0)
    first = await asyncio.to_thread(stopped, older)
    shutil.rmtree(older.folder)
    async with index_in(state_dir) as index:
        await newer.address()
        await index.ensure(SPEC)
        await index.replace_files(scope(), [file("a.py", "one")])
        second = pid_of(newer)
        os.kill(first, signal.SIGCONT)
        await asyncio.to_thread(wait_until, lambda: not is_alive(first))
        assert pid_of(newer) == second
        assert Path(await newer.address()).is_socket()
        assert await index.count() == 1
    assert engines_on(newer.folder) == [second]


@pytest.mark.parametrize("lost", [SOCKET, RECORD])
def test_an_engine_that_clients_cannot_find_is_replaced(engine: Engine, lost: str) -> None:
    engine.find()
    pid = pid_of(engine)
    (engine.folder / lost).unlink()
    assert Engine(engine.folder.parent, idle_seconds=0).find()
    wait_until(lambda: not is_alive(pid))
    assert engines_on(engine.folder) == [pid_of(engine)]


async def test_an_engine_that_does_not_answer_is_waited_for_within_a_bound(
    engine: Engine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.ping()
    assert engines_on(engine.folder) == [], "a probe starts none"
    pid = await asyncio.to_thread(stopped, engine)
    with pytest.raises(IndexUnavailable, match="did not answer within"):
        await engine.address(timeout_seconds=0.1)
    monkeypatch.setattr("reposync.vectors.embedded._PING_SECONDS", 0.1)
    with pytest.raises(IndexUnavailable, match="does not answer: timed out"):
        await engine.ping()
    monkeypatch.setattr("reposync.vectors.connection.START_SECONDS", 1.0)
    async with index_in(state_dir) as index:
        with pytest.raises(IndexUnavailable, match=r"count points failed: no answer within 1 s.*engine\.log"):
            await index.count()
    assert engines_on(engine.folder) == [pid], "no second engine is started"
    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("host", "is_renewed", "starts"),
    [("node-2", True, False), ("node-2", False, True), (socket.gethostname(), False, True)],
    ids=["served elsewhere", "that machine is gone", "before a reboot"],
)
def test_the_engine_of_a_different_machine_is_left_alone_as_long_as_it_lives(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, host: str, is_renewed: bool, starts: bool
) -> None:
    monkeypatch.setattr("reposync.vectors.embedded._SILENT_SECONDS", 60 if is_renewed else 0.5)
    engine.folder.mkdir(mode=0o700)
    record = engine.folder / RECORD
    record.write_bytes(orjson.dumps({"address": "/nowhere/engine.sock", "machine": "another", "host": host}))
    os.utime(record, (1_000_000_000, 1_000_000_000))
    renewing = threading.Timer(1.0, lambda: os.utime(record))
    if is_renewed:
        renewing.start()
    if starts:
        assert engine.find()
        return
    with pytest.raises(IndexUnavailable, match=r"runs on another machine \(node-2\).*QDRANT_URL"):
        engine.find()
    renewing.join()
    assert engines_on(engine.folder) == []


def test_the_path_of_the_state_folder_may_be_longer_than_a_socket_allows(state_dir: Path) -> None:
    deep = state_dir / ("d" * 120) / ("e" * 120)
    engine = Engine(deep, idle_seconds=0)
    address = Path(engine.find())
    assert len(os.fsencode(address)) <= LONGEST_SOCKET_PATH_BYTES
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert output_of(python(FIND, str(deep))) == str(pid_of(engine))
    engine.stop()
    assert not address.exists()


def test_ctrl_c_and_a_closed_terminal_do_not_end_the_engine(state_dir: Path) -> None:
    code = FIND + "import time, sys; sys.stdout.flush(); time.sleep(60)"
    command = [sys.executable, "-c", code, str(state_dir)]
    starter = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    os.killpg(starter.pid, signal.SIGINT)  # what a terminal does at Ctrl-C: to all processes of the group
    starter.wait(DEADLINE_SECONDS)
    starter.stdout.close()
    os.kill(pid, signal.SIGHUP)
    engine = Engine(state_dir)
    assert engine.find()
    assert pid_of(engine) == pid
    assert os.getsid(pid) == pid


def test_an_engine_of_an_older_version_is_replaced(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.find()
    older = pid_of(engine)
    # The engine that runs is of this revision; what looks for one is newer.
    monkeypatch.setattr("reposync.vectors.embedded.REVISION", REVISION + 1)
    engine.ensure_started()
    wait_until(lambda: not is_alive(older))
    monkeypatch.undo()
    assert engine.find()
    assert pid_of(engine) != older


def test_an_engine_of_a_newer_version_is_left_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.find()
    monkeypatch.setattr("reposync.vectors.embedded.REVISION", REVISION - 1)
    with pytest.raises(IndexUnavailable, match="started by a newer version"):
        engine.find()
    assert is_alive(pid_of(engine))


def test_secrets_of_the_command_are_not_handed_to_the_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", "glpat-secret")
    engine.find()
    assert b"glpat-secret" not in Path(f"/proc/{pid_of(engine)}/environ").read_bytes()


async def test_an_engine_that_is_killed_while_it_tidies_up_loses_nothing(engine: Engine, state_dir: Path) -> None:
    texts = [f"text {number}" for number in range(3_000)]
    async with index_in(state_dir) as index:
        await index.ensure(SPARSE_ALONE)
        await index.replace_files(scope(), [file("a.py", *texts, spec=SPARSE_ALONE)])
        await index.replace_files(scope(epoch=2), [file("a.py", *texts[:1_000], spec=SPARSE_ALONE)])
    await asyncio.to_thread(engine.stop)
    (folder,) = engine.folder.glob("collection-*")
    half_made = folder / "temp_segments" / "half-made"  # by an optimization that was killed
    half_made.mkdir(parents=True)
    (half_made / "rubbish").write_bytes(b"\0" * 100)
    impatient = Engine(state_dir, idle_seconds=0.05)
    await impatient.address()
    assert not half_made.exists()
    pid = pid_of(impatient)
    await asyncio.to_thread(wait_until, lambda: (folder / "temp_segments").exists() or not is_alive(pid))
    if is_alive(pid):
        kill(pid)
    async with index_in(state_dir) as index:
        assert await index.count() == 1_000


HURRIED_ENGINE = """
import faulthandler, runpy
end_later = faulthandler.dump_traceback_later
faulthandler.dump_traceback_later = lambda seconds, exit: end_later(seconds / 40, exit=exit)
runpy.run_module("reposync.vectors.engine", run_name="__main__")
"""


async def test_an_engine_without_memory_ends_and_the_next_one_answers(engine: Engine, state_dir: Path) -> None:
    """It ends by itself also if it hangs: after 3 s here, and not after 120."""
    process = python(HURRIED_ENGINE, str(engine.folder), "--idle", "0")
    await asyncio.to_thread(wait_until, (engine.folder / RECORD).exists)
    texts = [f"text {number} " * 300 for number in range(300)]
    async with index_in(state_dir) as index:
        await index.ensure(SPARSE_ALONE)
        used = psutil.Process(process.pid).memory_info().vms + 10_000_000
        resource.prlimit(process.pid, resource.RLIMIT_AS, (used, used))
        number = 0
        while process.poll() is None:
            # Allocations that fail end a call, or stop the whole process in the middle of one.
            await index.replace_files(scope(), [file(f"{number}.py", *texts, spec=SPARSE_ALONE)])
            number += 1
            assert number < 200, "it never ran out of memory"
        assert await index.count() == number * len(texts)
        assert pid_of(engine) != process.pid
    process.communicate()


def test_the_log_of_an_engine_does_not_grow_for_ever(engine: Engine) -> None:
    engine.folder.mkdir(mode=0o700)
    log = engine.folder / LOG
    log.write_bytes(b"old line\n" * 300_000)
    engine.find()
    assert log.stat().st_size < 200_000
    with log.open("ab") as still_written_to:
        still_written_to.write(b"newer line\n" * 300_000)
    wait_until(lambda: log.stat().st_size < 200_000)


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(IndexUnavailable, match="cannot be started: Not a directory"):
        Engine(tmp_path / "file").find()
