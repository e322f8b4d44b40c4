"""Which workers of this machine are alive: each holds a locked file in the state folder as long as its process lives.

A lease tells the same after seconds, and over machines; this tells it at once, after a kill -9 on a laptop.
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

# Any lease is over by then, and the question whether its worker lives is answered by that.
KEPT_SECONDS = 86_400.0


class Presence:
    """This process as a worker. `name` is what a run's row shows: pod, process, and a part that is never used twice."""

    def __init__(self, state_dir: Path, pod: str) -> None:
        self._folder = state_dir / "workers"
        self.name = f"{pod}:{os.getpid()}:{secrets.token_hex(3)}"
        self._path = self._folder / _file_name(self.name)
        self._descriptor: int | None = None

    def __enter__(self) -> Presence:
        """Raises ConfigError where the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The state folder {self._folder.parent} cannot be written: {error.strerror}.",
                remedy="Make it writable, make room, or name another one in REPOSYNC_STATE_DIR.",
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
        """Whether `worker` ran here and its process is gone. False for one of another machine: nothing is known."""
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
        """Remove what killed workers left, once nobody can have a question about them."""
        forgotten = time.time() - KEPT_SECONDS
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.stat().st_mtime < forgotten and self.is_dead(path.name.removesuffix(".lock")):
                    path.unlink(missing_ok=True)


def _file_name(worker: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:-]", "_", worker) + ".lock"
