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
from pathlib import Path
from types import TracebackType

from reposync.errors import ConfigError

# Every lease has expired by then.
KEPT_SECONDS = 86_400.0


class Presence:
    """This process as a worker. `name` is in the run's row: pod, process, and a unique part."""

    def __init__(self, state_dir: Path, pod: str) -> None:
        self._folder = state_dir / "workers"
        self.name = f"{pod}:{os.getpid()}:{secrets.token_hex(3)}"
        self._path = self._folder / _file_name(self.name)
        self._descriptor: int | None = None

    def __enter__(self) -> Presence:
        """Raises ConfigError if the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The state folder {self._folder.parent} cannot be written: {error.strerror}.",
                remedy="Make it writable, free disk space, or set REPOSYNC_STATE_DIR to a different folder.",
            ) from None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._sweep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)

    def is_dead(self, worker: str) -> bool:
        """Whether `worker` ran on this machine and its process is gone. False for a worker of a different machine."""
        path = self._folder / _file_name(worker)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove old files of killed workers."""
        forgotten = time.time() - KEPT_SECONDS
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.stat().st_mtime < forgotten and self.is_dead(path.name.removesuffix(".lock")):
                    path.unlink(missing_ok=True)


def _file_name(worker: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:-]", "_", worker) + ".lock"
