"""The clocks of this machine.

What several processes compare goes by the database's clock instead: `Database.moment` in SQL, `Database.clock` outside.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """The time of day. Passed down from the composition root, so that tests can replace it."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)


def elapsed_seconds() -> float:
    """Seconds since an arbitrary moment, independent of the time of day. On Linux they include the time when the
    machine is suspended: `time.monotonic` does not, and a lease would outlive a night in a closed laptop."""
    return _elapsed()


def _suspended_counts() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


try:
    _suspended_counts()
    _elapsed = _suspended_counts
except (AttributeError, OSError):
    _elapsed = time.monotonic
