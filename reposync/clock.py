"""The clocks of this machine.

What several processes compare goes by the database's clock instead: `Database.moment` in SQL, `Database.clock` outside.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """The time of day. Handed down from where the program is composed, so that it can be another one."""

    def now(self) -> datetime:
        """Aware UTC."""
        return datetime.now(UTC)


def elapsed_seconds() -> float:
    """Seconds since an arbitrary moment, whoever sets the time of day. They go on while the machine is suspended, if
    the system can say so (Linux): `time.monotonic` stands still there, and a lease would outlive a night in a closed
    laptop."""
    return _elapsed()


def _suspended_counts() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


try:
    _suspended_counts()
    _elapsed = _suspended_counts
except (AttributeError, OSError):
    _elapsed = time.monotonic
