"""A pod's folder as a volume of its own, which can be full or read-only. Takes a root user, who may mount."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SIZE_BYTES = 64 * 1024 * 1024
PAGE_BYTES = 4096


class Volume:
    """A file system in memory, until `close`. Raises OSError if it may not be mounted."""

    def __init__(self, folder: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(folder))
        self._ballast = folder / "ballast"

    def fill(self, leave_bytes: int = 0) -> None:
        """Until not one page is left, or so many bytes."""
        with self._ballast.open("wb", buffering=0) as stream:
            while True:
                try:
                    os.posix_fallocate(stream.fileno(), stream.seek(0, os.SEEK_END), PAGE_BYTES)
                except OSError:
                    break
            stream.truncate(max(0, stream.tell() - leave_bytes))

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def protect(self) -> None:
        """Read-only from now on, also for files that are open. Raises OSError while one is open for writing."""
        self._run("mount", "-o", "remount,ro", str(self.folder))

    def release(self) -> None:
        self._run("mount", "-o", "remount,rw", str(self.folder))

    def close(self) -> None:
        self._run("umount", "-l", str(self.folder))

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command[:1])}: {done.stderr.strip()}")
