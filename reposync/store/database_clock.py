"""What the database's clock shows, between two questions to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from reposync.clock import Clock, elapsed_seconds

AHEAD_SECONDS = 5.0
"""A stored moment of the past that lies farther ahead of the database's clock than this is not believed: it was written
by a pod whose clock was wrong, or before the database's clock was set back."""

_TRIES = 3
_QUICK_SECONDS = 0.1


class DatabaseClock:
    """`measure` asks PostgreSQL, and elapsed time is added to its answer, so that nobody who sets this machine's clock
    changes what `now` says. The users of an SQLite file are on one machine: its clock is the database's."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[datetime]] | None = None) -> None:
        self._clock = clock
        self._ask = ask
        self._since: tuple[datetime, float] | None = None

    @property
    def is_measured(self) -> bool:
        """Whether it is another machine's clock."""
        return self._ask is not None

    def now(self) -> datetime:
        """Aware UTC; this machine's time until `measure` had its first answer."""
        if self._since is None:
            return self._clock.now()
        moment, elapsed = self._since
        return moment + timedelta(seconds=elapsed_seconds() - elapsed)

    @property
    def skew_seconds(self) -> float:
        """How far this machine's clock is ahead of the database's; negative: behind."""
        return 0.0 if self._since is None else (self._clock.now() - self.now()).total_seconds()

    async def measure(self) -> None:
        """Ask the database. The answer is taken for the middle of the exchange, the quickest of at most three, and is
        off by half of it at most. Raises StoreUnavailable."""
        if self._ask is None:
            return
        shortest = float("inf")
        for _ in range(_TRIES):
            began = elapsed_seconds()
            answer = await self._ask()
            took = elapsed_seconds() - began
            if took < shortest:
                shortest, moment, middle = took, answer, began + took / 2
            if took <= _QUICK_SECONDS:
                break
        off_seconds = (self.now() - moment).total_seconds() - (elapsed_seconds() - middle)
        if self._since is None or abs(off_seconds) > shortest / 2:
            self._since = moment, middle
