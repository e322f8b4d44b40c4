"""Callbacks about the execution of runs. The daemon counts them as metrics; a command does not."""

from __future__ import annotations

import logging

from reposync.store.run import LostAttempt, Run, RunFigures
from reposync.store.status import LOST

log = logging.getLogger(__name__)


class Observer:
    """Called on the event loop; every method must return at once and raise nothing. Is a `RequestObserver` too.

    `count` and `observe` increase a counter and add a value to a histogram of `telemetry.metrics`, by its name there.
    """

    def count(self, name: str, *labels: str, by: float = 1) -> None: ...

    def observe(self, name: str, seconds: float, *labels: str) -> None: ...

    def store_waited(self, reason: str) -> None:
        """The database cannot be used yet: a different process migrates its schema, or blocks the migration."""
        log.warning(reason)

    def request(self, kind: str) -> None:
        """A request is sent to a source."""

    def rate_limited(self, seconds: float) -> None:
        """A source requested a pause."""

    def lock_unavailable(self, reason: str) -> None:
        """Redis cannot be used; only the database's claim guards. `reason`: a sentence without secrets."""

    def lock_available(self) -> None:
        """Redis works, for the first time or again."""

    def run_started(self, run: Run) -> None:
        """An attempt starts."""

    def run_ended(self, run: Run, outcome: str, seconds: float, figures: RunFigures) -> None:
        """An attempt ended. `run` is its current state; time and figures are those of this attempt."""

    def attempt_lost(self, attempt: LostAttempt) -> None:
        """This process found an attempt whose worker is gone."""
        self.run_ended(attempt.run, LOST, attempt.seconds, attempt.figures)
