"""A run's right to write. Whoever guards the run (database row, Redis lock) feeds it; the pipeline asks it."""

from __future__ import annotations

import time

from reposync.errors import LeaseLost


class Lease:
    """Valid until a deadline on the monotonic clock. A process that was frozen past it finds out before it writes."""

    def __init__(self, seconds: float, *, since: float | None = None) -> None:
        """Valid for `seconds` from `since`, or from now (see `extend`)."""
        self._deadline = (time.monotonic() if since is None else since) + seconds
        self._lost: str | None = None

    def extend(self, seconds: float, *, since: float) -> None:
        """Valid for `seconds` from `since` (monotonic, taken before the renewal was asked for)."""
        self._deadline = max(self._deadline, since + seconds)

    def lose(self, reason: str) -> None:
        self._lost = reason

    def remaining_seconds(self) -> float:
        return self._deadline - time.monotonic()

    def check(self) -> None:
        """Raises LeaseLost. Ask right before each write."""
        if self._lost is not None:
            raise LeaseLost(self._lost)
        if time.monotonic() >= self._deadline:
            raise LeaseLost(
                "The lease of this run ran out before it was renewed; another worker may have taken it over."
            )
