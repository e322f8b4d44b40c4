"""What a loop meets at every turn, as a line of the log when it begins, when it changes and when it is over."""

from __future__ import annotations

import logging

# Not structlog: see `telemetry.health`.
log = logging.getLogger(__name__)


class Trouble:
    """One lasting condition. A daemon whose database is away for a night is to say so twice and not 5,000 times."""

    def __init__(self, over: str) -> None:
        """`over`: the line when it has passed."""
        self._over = over
        self._met: tuple[str, str] | None = None

    def met(self, event: str, reason: str, *, defect: Exception | None = None, **fields: object) -> None:
        """A repetition of the same event for the same reason is not logged. `defect`: logged with its traceback."""
        if self._met != (event, reason):
            self._met = event, reason
            level = logging.WARNING if defect is None else logging.ERROR
            log.log(level, event, extra={"reason": reason, **fields}, exc_info=defect)

    def over(self, **fields: object) -> None:
        if self._met is not None:
            self._met = None
            log.info(self._over, extra=fields)
