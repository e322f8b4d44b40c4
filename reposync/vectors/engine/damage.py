"""Damaged files of the index: how they are recognised, and how they are set aside so that the next syncs rebuild them.

Errors of the engine are bare exceptions and panics: their text alone says what they are about.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from pathlib import Path

DAMAGED = "damaged"
# What is damaged again so soon has a cause that a rebuild does not remove: a disk, another program.
AGAIN_SECONDS = 86_400.0
KEPT_SECONDS = 7 * 86_400.0
_MAX_REASON_CHARS = 200

_OS_ERROR = re.compile(r"os error (\d+)")
_OUT_OF_MEMORY = re.compile(r"(?:out of|not enough|cannot allocate) memory", re.IGNORECASE)
# Files that are missing, shorter than recorded or changed give no error of the system, or one of these.
_CONTENT_ERRORS = (errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)


def is_panic(error: BaseException) -> bool:
    """Whether a defect of the engine, or of the files that it read, ended a call. A panic is not an Exception and has
    no public type."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this process may have no more memory, threads or open files."""
    lacking = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error))) or _os_error(error) in lacking


def is_damage(error: BaseException) -> bool:
    """Whether it is about the content of the files, and not about permission to read them."""
    return not is_out_of_memory(error) and _os_error(error) in (None, *_CONTENT_ERRORS)


def _os_error(error: BaseException) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


class Quarantine:
    """`damaged/` in the folder of the index. The files of the last time are kept for a week, for diagnosis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DAMAGED
        self._is_new = True
        try:
            age_seconds = time.time() - self._folder.stat().st_mtime
        except OSError:
            age_seconds = KEPT_SECONDS
        # A clock that was set back leaves a date in the future: that counts as damage of today.
        self.is_closed = age_seconds < AGAIN_SECONDS
        if age_seconds > KEPT_SECONDS:
            shutil.rmtree(self._folder, ignore_errors=True)

    def take(self, *paths: Path) -> None:
        """Move these files or folders here. Raises OSError."""
        if self._is_new:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._is_new = False
        for path in paths:
            path.rename(self._folder / path.name)

    def lost_reason(self, reason: str) -> str:
        """Why something is not there any more, in a sentence."""
        return f"Its files were damaged ({_short(reason)}) and are set aside in {self._folder}."

    def refusal_reason(self, reason: str) -> str:
        """Why nothing is set aside."""
        return f"it was damaged again within a day ({_short(reason)}): look at the disk"


def remedy(folder: Path) -> str:
    """What a person can do about an index that cannot be opened."""
    return f"Remove the folder {folder} and sync: everything in it is made again from the repositories."


def _short(reason: str) -> str:
    line, half = " ".join(reason.split()), _MAX_REASON_CHARS // 2
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[:half]} ... {line[-half:]}"
