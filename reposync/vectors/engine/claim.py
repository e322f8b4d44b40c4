"""An engine's claim on its folder: the lock, the socket, and the record by which clients find it.

Each of them may disappear while the engine runs: the state folder is removed or restored, a cleaner of temporary
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
from pathlib import Path
from typing import Any

import orjson

from reposync.vectors.embedded import LOCK, RECORD, REVISION, SOCKET, machine, read_record

# How long to wait for an engine that is ending.
LOCK_SECONDS = 20.0
# sockaddr_un holds 104 bytes on macOS and 108 on Linux.
LONGEST_SOCKET_PATH_BYTES = 100


class Claim:
    """`identity` describes the running engine, in the record and in the answer to `GET /engine`."""

    def __init__(self, folder: Path, lock: int) -> None:
        """`lock`: see `take_lock`. From now on clients find this engine."""
        self._lock_path, self._record_path, self._lock = folder / LOCK, folder / RECORD, lock
        self.listener, self._address = _listener(folder)
        self.identity: dict[str, Any] = {
            "revision": REVISION,
            "pid": os.getpid(),
            "address": str(self._address),
            "machine": machine(),
            "host": socket.gethostname(),
        }
        draft = self._record_path.with_suffix(".new")
        draft.write_bytes(orjson.dumps(self.identity))
        draft.replace(self._record_path)

    def renew(self) -> None:
        """Tells processes of other machines, which cannot reach the socket, that the folder is in use."""
        with contextlib.suppress(OSError):
            os.utime(self._record_path)

    def folder_is_mine(self) -> bool:
        """Whether the locked file is the one at its path: no other engine serves the folder."""
        return _inode(self._lock) == _inode(self._lock_path)

    def is_whole(self) -> bool:
        """Whether clients that look for the engine of this folder find this one."""
        return self._address.exists() and self._record_path.exists()

    def release(self) -> None:
        """From now on clients do not find this engine. The lock is held until the process ends."""
        if self.folder_is_mine():
            self._address.unlink(missing_ok=True)
            self._record_path.unlink(missing_ok=True)


def take_lock(folder: Path) -> int | None:
    """The folder's lock, held until the process ends, however it ends; None if a different engine serves the folder.
    Raises OSError."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if _is_served(folder) or time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        else:
            if _inode(descriptor) == _inode(folder / LOCK):
                return descriptor
            os.close(descriptor)  # the folder was removed in between: this lock guards nothing


def _inode(file: Path | int) -> tuple[int, int] | None:
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_served(folder: Path) -> bool:
    record = read_record(folder)
    if record is None:
        return False
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(record["address"])
        return True
    return False


def _listener(folder: Path) -> tuple[socket.socket, Path]:
    """In the folder itself, or in a private temporary folder if the path is too long or the file system has no
    sockets. Raises PermissionError if that folder belongs to a different user."""
    inside = folder.resolve() / SOCKET
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH_BYTES:
        with contextlib.suppress(OSError):
            return _bind(inside), inside
    private = Path(tempfile.gettempdir()) / f"reposync-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    found = private.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{private} must be a folder of this user, with mode 0700")
    outside = private / f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]}.sock"
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
