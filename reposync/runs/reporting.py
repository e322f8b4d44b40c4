"""What runs report: events to an observer, which the daemon counts as metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reposync.store.run import Run, RunCounts
from reposync.store.status import LOST

if TYPE_CHECKING:
    from reposync.embedding.port import EmbeddingUse
    from reposync.telemetry.health import Health
    from reposync.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass
class Observer:
    """Events as metrics, by their names in `telemetry.metrics`; in a command without. Called on the event loop; every
    method returns at once and raises nothing. Is a `RequestObserver` too."""

    metrics: Metrics | None = None
    health: Health | None = None

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        if self.metrics is not None:
            self.metrics.count(name, *labels, by=by)

    def measure(self, name: str, *labels: str) -> AbstractContextManager[object]:
        """See `Metrics.measure`."""
        return nullcontext() if self.metrics is None else self.metrics.measure(name, *labels)

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        if self.metrics is not None:
            self.metrics.observe(name, seconds, *labels)

    def store_waited(self, reason: str) -> None:
        """The database cannot be used yet: a different process migrates its schema, or blocks the migration."""
        log.warning(reason)
        if self.health is not None:
            self.health.report("database", "down", reason)

    def audit_lost(self, entries: int) -> None:
        """The database did not answer for so long that entries of the audit could not be kept."""
        self.count("audit_entries_lost", by=entries)

    def request(self, kind: str) -> None:
        """A request is sent to a source."""
        self.count("source_requests", kind)

    def rate_limited(self, seconds: float) -> None:
        """A source requested a pause."""
        self.count("rate_limit_waits")
        self.count("rate_limit_wait_seconds", by=seconds)

    def embedded(self, use: EmbeddingUse) -> None:
        """Texts were embedded, or could not be. Called in any thread."""
        labels = (use.provider, use.kind)
        self.observe("embedding_duration_seconds", use.seconds, *labels, "ok" if use.is_ok else "failed")
        if use.is_ok:
            self.count("embedding_characters", *labels, by=use.chars)
        if use.tokens is not None:
            self.count("embedding_tokens", *labels, by=use.tokens)
        # The documents of a run are in its stages.
        if self.metrics is not None and self.metrics.traces is not None and use.kind == "query":
            now = time.monotonic()
            self.metrics.traces.ended("embedding", (now - use.seconds, now), {"provider": use.provider})

    def attempt_ended(self, run: Run, outcome: str, figures: RunCounts) -> None:
        """An attempt ended, and the run with it if it `is_final`. `figures` are those of this attempt."""
        if self.metrics is not None:
            counted = ("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused")
            figures_by_name = {name: getattr(figures, name) for name in counted}
            self.metrics.attempt_ended(outcome, str(run.trigger), **figures_by_name)
            if outcome != LOST and run.error_code is not None:
                self.metrics.count("run_errors", run.error_code)
            for name, seconds in (("run_duration", run.duration_seconds), ("run_elapsed", run.elapsed_seconds)):
                if seconds is not None:
                    self.metrics.observe(f"{name}_seconds", seconds, str(run.trigger))

    def traced(self, run: Run, outcome: str, times: Mapping[str, tuple[float, float]]) -> None:
        """An attempt ended; `times` of its phases and stages."""
        if self.metrics is not None and self.metrics.traces is not None and times:
            whole = (min(began for began, _ in times.values()), time.monotonic())
            attributes = {"run": run.id, "repository": run.repository, "trigger": str(run.trigger), "outcome": outcome}
            attributes |= {} if run.error_code is None else {"code": run.error_code}
            self.metrics.traces.ended("run", whole, attributes, times)

    def attempt_lost(self, run: Run) -> None:
        """This process found that the worker of the latest attempt is gone."""
        self.attempt_ended(run, LOST, run.all_attempts[-1])
