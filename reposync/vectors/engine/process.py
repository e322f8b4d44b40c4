"""The engine's process: one on a folder, held by a lock for its whole life; it ends when nobody uses it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import uvicorn

from reposync.vectors.engine.app import EngineApp
from reposync.vectors.engine.collections import Collections
from reposync.vectors.engine.files import EXIT_LOCKED, LOCK, LOG, LONGEST_SOCKET_PATH_BYTES, RECORD, REVISION, SOCKET

log = logging.getLogger(__name__)

# How long to wait for another engine that is ending. One that serves is seen at once.
LOCK_SECONDS = 20.0
MAX_LOG_BYTES = 1_000_000
_LOG_KEPT_BYTES = 100_000


def main() -> None:
    arguments = _arguments()
    folder: Path = arguments.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(message)s", stream=sys.stderr
    )
    # A terminal that closes takes its commands with it, not the engine that others may be using.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    lock = _lock(folder)
    if lock is None:
        sys.exit(EXIT_LOCKED)
    _bound_log(folder / LOG)
    with _listening(folder, arguments.port) as (listener, where):
        asyncio.run(_serve(folder, listener, where, idle_seconds=arguments.idle))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="reposync.vectors.engine", description="Qdrant's REST contract on a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--idle", type=float, default=60.0, metavar="SECONDS", help="end after so long without a request; 0: never"
    )
    parser.add_argument("--port", type=int, default=None, help="listen on 127.0.0.1 in place of a Unix socket; 0: any")
    return parser.parse_args()


async def _serve(folder: Path, listener: socket.socket, where: str, *, idle_seconds: float) -> None:
    collections = Collections(folder)
    identity = {"revision": REVISION, "pid": os.getpid(), "address": where}
    app = EngineApp(collections, server=identity)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=120,  # longer than a client keeps one
            timeout_graceful_shutdown=10,
        )
    )

    def end() -> None:
        server.should_exit = True

    app.on_end = end
    # uvicorn raises a signal that it heard once more when it is done: by default that would end the process before
    # the collections are closed.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: end())
    record = folder / RECORD
    _write_record(record, orjson.dumps(identity))
    watch = asyncio.create_task(_end_when_idle(app, collections, folder / LOG, idle_seconds))
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()
        # Nobody is to find this engine any more; under the lock, so that no newer one's record goes.
        record.unlink(missing_ok=True)
        collections.close()


async def _end_when_idle(app: EngineApp, collections: Collections, log_file: Path, idle_seconds: float) -> None:
    while True:
        await asyncio.sleep(min(1.0, idle_seconds / 4) if idle_seconds else 1.0)
        _bound_log(log_file)
        if not idle_seconds or app.active or time.monotonic() - app.last_used < idle_seconds:
            continue
        collections.tidy()
        # A request may have come in while the engine tidied up: it is answered, and the wait begins anew.
        await asyncio.sleep(0.01)
        if not app.active and time.monotonic() - app.last_used >= idle_seconds:
            app.on_end()
            return


def _lock(folder: Path) -> int | None:
    """The folder's lock, held until the process ends; None where another engine serves the folder.

    flock goes with the process, however it ends, so there is never a stale one.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _another_serves(folder) or time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)
        else:
            return descriptor


def _another_serves(folder: Path) -> bool:
    try:
        address = orjson.loads((folder / RECORD).read_bytes())["address"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not address.startswith("/"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _listening(folder: Path, port: int | None) -> Iterator[tuple[socket.socket, str]]:
    if port is not None:
        # asyncio switches Nagle's algorithm off for sockets that say their protocol; an answer takes 40 ms otherwise.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
            yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"
        return
    listener, path = _unix_listener(folder)
    try:
        yield listener, str(path)
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _unix_listener(folder: Path) -> tuple[socket.socket, Path]:
    """In the folder itself, or, where its path is too long or its file system has no sockets, in a private folder
    under the system's temporary one."""
    inside = folder.resolve() / SOCKET
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH_BYTES:
        with contextlib.suppress(OSError):
            return _bind(inside), inside
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
    outside = _private_folder() / f"{name}.sock"
    return _bind(outside), outside


def _bind(path: Path) -> socket.socket:
    """What lies there already was left by an engine that was killed: the lock is ours."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _private_folder() -> Path:
    """Raises PermissionError where somebody else has made a folder of that name."""
    folder = Path(tempfile.gettempdir()) / f"reposync-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} must be a folder of this user alone")
    return folder


def _write_record(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(path)


def _bound_log(path: Path) -> None:
    """Keep the log's tail. Standard error is appended to it, so cutting it short under the writer is safe."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > MAX_LOG_BYTES:
            with path.open("r+b") as file:
                file.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
                tail = file.read()
                file.seek(0)
                file.write(tail)
                file.truncate()
