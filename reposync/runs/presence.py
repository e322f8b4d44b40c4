"""Liveness of workers on this machine: each holds a locked file in the state folder while its process lives.

A lease shows the same after some seconds and across machines; this shows it at once after a kill -9 on a laptop.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reposync.errors import ConfigError

# Every lease has expired by then.
KEPT_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Presence:
    """This process as a worker. `name` is in the run's row: pod, process, and a unique part."""

    name: str
    folder: Path

    def is_dead(self, worker: str) -> bool:
        """Whether `worker` ran on this machine and its process is gone. False for a worker of a different machine."""
        with contextlib.suppress(OSError), self.file_of(worker).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def file_of(self, worker: str) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9._:-]', '_', worker)}.lock"

    def sweep(self) -> None:
        """Remove old files of killed workers."""
        forgotten = time.time() - KEPT_SECONDS
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.stat().st_mtime < forgotten and self.is_dead(path.stem):
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def present(state_dir: Path, pod: str) -> Iterator[Presence]:
    """This process is a worker. Raises ConfigError if the folder cannot be written."""
    me = Presence(f"{pod}:{os.getpid()}:{secrets.token_hex(3)}", state_dir / "workers")
    path = me.file_of(me.name)
    try:
        me.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"The state folder {state_dir} cannot be written: {error.strerror}.",
            remedy="Make it writable, free disk space, or set REPOSYNC_STATE_DIR to a different folder.",
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        me.sweep()
        yield me
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
