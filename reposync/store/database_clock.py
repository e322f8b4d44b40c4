"""The database's clock, which all programs that share it go by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from reposync.clock import Clock, elapsed_seconds

AHEAD_SECONDS = 5.0
"""A stored time of the past that is farther ahead of the database's clock is not believed: it was written by a pod
whose clock was wrong, or before the database's clock was set back."""
_MEASUREMENTS = 3
_FAST_SECONDS = 0.1


class DatabaseClock:
    """The database's clock between measurements. `measure` asks PostgreSQL, and elapsed time is added to its answer, so
    that changes of this machine's clock do not matter. All users of an SQLite file are on one machine, which has its
    clock."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]] | None = None) -> None:
        self._clock = clock
        self._ask = ask
        self._since: tuple[datetime, float] | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the clock may be that of a different machine."""
        return self._ask is not None

    def now(self) -> datetime:
        """Aware UTC; this machine's time until the first `measure`."""
        if self._since is None:
            return self._clock.now()
        moment, elapsed = self._since
        return moment + timedelta(seconds=elapsed_seconds() - elapsed)

    @property
    def skew_seconds(self) -> float:
        """How far this machine's clock is ahead of the database's; negative: behind."""
        return 0.0 if self._since is None else (self._clock.now() - self.now()).total_seconds()

    async def measure(self) -> None:
        """Ask the database, again if that was slow. Its answer counts for the midpoint of the exchange, so the error is
        half of its duration at most: what is known already stays if it is within that. Raises StoreUnavailable."""
        if self._ask is None:
            return
        for _ in range(_MEASUREMENTS):
            began = elapsed_seconds()
            moment = await self._ask()
            half = (elapsed_seconds() - began) / 2
            if half <= _FAST_SECONDS:
                break
        off_seconds = (self.now() - moment).total_seconds() - half
        if self._since is None or abs(off_seconds) > half:
            self._since = moment, began + half
