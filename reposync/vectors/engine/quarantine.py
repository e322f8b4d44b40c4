"""Damaged files of the index are set aside, once, and made again from the repositories by the next syncs."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

log = logging.getLogger(__name__)

DAMAGED = "damaged"
# What is damaged again so soon has a cause that making it again does not take away: a disk, another program.
AGAIN_SECONDS = 86_400.0
KEPT_SECONDS = 7 * 86_400.0
_MAX_REASON_CHARS = 200


class Quarantine:
    """`damaged/` in the folder of the index. The files of the last time are kept for a week, to find out why."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DAMAGED
        self._is_new = True
        since = self._seconds_since()
        # A clock that was set back leaves a date in the future: damage of today, for what is known.
        self.is_closed = since is not None and since < AGAIN_SECONDS
        if since is not None and since > KEPT_SECONDS:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _seconds_since(self) -> float | None:
        try:
            return time.time() - self._folder.stat().st_mtime
        except OSError:
            return None

    def take(self, *paths: Path) -> None:
        """Move these files or folders here. Raises OSError."""
        if self._is_new:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._is_new = False
        for path in paths:
            path.rename(self._folder / path.name)

    def told(self, reason: str) -> str:
        """In a sentence, why something is not there any more."""
        return f"Its files were damaged ({_short(reason)}) and are set aside in {self._folder}."

    def refused(self, reason: str) -> str:
        """Why nothing is set aside."""
        return f"it was damaged again within a day ({_short(reason)}): look at the disk"


def cure(folder: Path) -> str:
    """What a person can do about an index that cannot be opened."""
    return f"Remove the folder {folder} and sync: everything in it is made again from the repositories."


def _short(reason: str) -> str:
    line, half = " ".join(reason.split()), _MAX_REASON_CHARS // 2
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[:half]} ... {line[-half:]}"
