"""An engine's claim on its folder: the lock, the socket, and the record by which clients find it.

Each of them may disappear while the engine runs: somebody removes or restores the state folder, a cleaner of temporary
folders removes the socket, a second engine starts at the same path. So an engine checks regularly whether they are
still its own, ends if not, and never unlinks those of a different engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import stat
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from reposync.vectors.engine.files import LOCK, LONGEST_SOCKET_PATH_BYTES, RECORD, REVISION, SOCKET, limits, machine

# How long to wait for an engine that is ending.
LOCK_SECONDS = 20.0


class Claim:
    """`identity` describes the running engine, in the record and in the answer to `GET /engine`."""

    def __init__(self, folder: Path, lock: int, port: int | None) -> None:
        self._folder = folder
        self._lock = lock
        self._socket: Path | None = None
        if port is None:
            self.listener, self._socket = _unix_listener(folder)
            address = str(self._socket)
        else:
            self.listener, address = _tcp_listener(port)
        self._socket_inode = _inode(self._socket) if self._socket else None
        self.identity: dict[str, Any] = {
            "revision": REVISION,
            "pid": os.getpid(),
            "address": address,
            "machine": machine(),
            "host": socket.gethostname(),
            "limits": limits(),
            # Two containers with one volume may have the same pid.
            "id": uuid.uuid4().hex,
        }
        self._record = orjson.dumps(self.identity)

    @classmethod
    def take(cls, folder: Path, port: int | None) -> Claim | None:
        """None if a different engine serves the folder. Raises OSError."""
        lock = _lock(folder)
        return None if lock is None else cls(folder, lock, port)

    def publish(self) -> None:
        """From now on clients find this engine."""
        draft = (self._folder / RECORD).with_suffix(".new")
        draft.write_bytes(self._record)
        draft.replace(self._folder / RECORD)

    def renew(self) -> None:
        """Tells processes of other machines, which cannot reach the socket, that the folder is in use."""
        with contextlib.suppress(OSError):
            os.utime(self._folder / RECORD)

    @property
    def folder_is_mine(self) -> bool:
        """Whether the locked file is the one at its path: no other engine serves the folder."""
        return _inode(self._folder / LOCK) == _inode(self._lock)

    @property
    def is_whole(self) -> bool:
        """Whether clients that look for the engine of this folder find this one."""
        return self.folder_is_mine and self._socket_is_mine and self._record_is_mine

    @property
    def _socket_is_mine(self) -> bool:
        # The inode is not reused while the listener is open.
        return self._socket is None or _inode(self._socket) == self._socket_inode

    @property
    def _record_is_mine(self) -> bool:
        try:
            return (self._folder / RECORD).read_bytes() == self._record
        except OSError:
            return False

    def release(self) -> None:
        """From now on clients do not find this engine. The lock is held until the process ends."""
        if self._record_is_mine:
            (self._folder / RECORD).unlink(missing_ok=True)
        if self._socket is not None and self._socket_is_mine:
            self._socket.unlink(missing_ok=True)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self.listener.close()


def _inode(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lock(folder: Path) -> int | None:
    """The folder's lock, held until the process ends, however it ends; None if a different engine serves the folder."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if _another_serves(folder) or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        else:
            if _inode(descriptor) == _inode(folder / LOCK):
                return descriptor
            os.close(descriptor)  # the folder was removed in between: this lock guards nothing


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


def _tcp_listener(port: int) -> tuple[socket.socket, str]:
    # With its protocol given, asyncio switches Nagle's algorithm off; an answer takes 40 ms otherwise.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def _unix_listener(folder: Path) -> tuple[socket.socket, Path]:
    """In the folder itself, or in a private temporary folder if the path is too long or the file system has no
    sockets."""
    inside = folder.resolve() / SOCKET
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH_BYTES:
        with contextlib.suppress(OSError):
            return _bind(inside), inside
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
    outside = _private_folder() / f"{name}.sock"
    return _bind(outside), outside


def _bind(path: Path) -> socket.socket:
    """An existing socket was left by a killed engine: the lock is ours."""
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
    """Raises PermissionError if the folder belongs to a different user."""
    folder = Path(tempfile.gettempdir()) / f"reposync-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} must be a folder of this user, with mode 0700")
    return folder
