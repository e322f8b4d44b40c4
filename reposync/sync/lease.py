"""A run's right to write. The database row and the Redis lock of the run extend it; every write checks it."""

from __future__ import annotations

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost


class Lease:
    """Valid until a deadline of `elapsed_seconds`, a clock that also counts while the process is frozen or the machine
    suspended."""

    def __init__(self, seconds: float, *, since: float | None = None) -> None:
        """Valid for `seconds` from `since`, or from now (see `extend`)."""
        self._deadline = (elapsed_seconds() if since is None else since) + seconds
        self._lost: str | None = None

    def extend(self, seconds: float, *, since: float) -> None:
        """Valid for `seconds` from `since` (`elapsed_seconds` before the renewal was requested)."""
        self._deadline = max(self._deadline, since + seconds)

    def lose(self, reason: str) -> None:
        self._lost = reason

    def remaining_seconds(self) -> float:
        return self._deadline - elapsed_seconds()

    def check(self) -> None:
        """Call right before each write. Raises LeaseLost."""
        if self._lost is not None:
            raise LeaseLost(self._lost)
        if elapsed_seconds() >= self._deadline:
            raise LeaseLost(
                "The lease of this run expired before it was renewed; another worker may have taken over the run."
            )
