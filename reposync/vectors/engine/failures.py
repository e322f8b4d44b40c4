"""What errors of the engine are about: they are bare exceptions and panics, and their text alone tells."""

from __future__ import annotations

import errno
import re

_OS_ERROR = re.compile(r"os error (\d+)")
_OUT_OF_MEMORY = re.compile(r"(?:out of|not enough|cannot allocate) memory", re.IGNORECASE)
# Files that are missing, shorter than they say or no longer what they were give no error of the system, or these.
_OF_THE_CONTENT = (errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.EISDIR)


def is_panic(error: BaseException) -> bool:
    """Whether a defect of the engine, or what it met in its files, ended a call. No Exception, and no public type."""
    return type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this process may have no more memory, threads or open files."""
    lacking = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error))) or _os_error(error) in lacking


def is_damage(error: BaseException) -> bool:
    """Whether it is about what the files hold, and not about the system's leave to read them."""
    return not is_out_of_memory(error) and _os_error(error) in (None, *_OF_THE_CONTENT)


def _os_error(error: BaseException) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None
