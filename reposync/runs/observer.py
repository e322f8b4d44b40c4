"""What happens while runs are executed, for whoever counts it. A command counts nothing."""

from __future__ import annotations

import logging

from reposync.store.attempts import LOST, LostAttempt
from reposync.store.run import Run, RunFigures

log = logging.getLogger(__name__)


class Observer:
    """Called on the event loop; every method must return at once and raise nothing. Also a `RequestObserver` of sources
    and a `LockObserver` of locks."""

    def store_waited(self, reason: str) -> None:
        """The database cannot be used yet: another process changes its schema, or stands in the way of that."""
        log.warning(reason)

    def request(self, kind: str) -> None:
        """A request went out to a source."""

    def rate_limited(self, seconds: float) -> None:
        """A source asked for patience."""

    def lock_taken(self, seconds: float) -> None:
        """A sync got its repository's lock in Redis after so long."""

    def lock_missing(self) -> None:
        """A sync begins without its lock in Redis, which does not do its work."""

    def lock_lost(self, reason: str) -> None:
        """A repository's lock could not be kept."""

    def lock_unavailable(self, reason: str) -> None:
        """Redis did not answer as it should; the database's claim guards alone."""

    def lock_available(self) -> None:
        """Redis answers."""

    def run_started(self, run: Run) -> None:
        """An attempt begins."""

    def run_ended(self, run: Run, outcome: str, seconds: float, figures: RunFigures) -> None:
        """An attempt ended so: `run` as it is now; time and figures are of this attempt alone."""

    def attempt_lost(self, attempt: LostAttempt) -> None:
        """An attempt of a worker that is gone ended when this process found it."""
        self.run_ended(attempt.run, LOST, attempt.seconds, attempt.figures)
