"""What runs report: events to an observer, which the daemon counts as metrics, and their progress to watchers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reposync.errors import LeaseLost, StoreUnavailable
from reposync.store.run import LostAttempt, Run, RunFigures
from reposync.store.status import LOST, RunStatus
from reposync.supervision import to_the_end
from reposync.sync.progress import RunProgress
from reposync.words import next_attempt

if TYPE_CHECKING:
    from reposync.telemetry.health import Health, HealthStatus
    from reposync.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

# With the heartbeat alone, every 5 s, a run would look as if it hung.
REPORT_SECONDS = 1.0
_LONGEST_REPORT_SECONDS = 2.0

_COUNTS = ("files_total", "files_read", "files_done", "chunks_read", "chunks_embedded", "chunks_done", "bytes_read")
_TEXTS = ("phase", "file", "waiting_for")

Report = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclass
class Observer:
    """Events as metrics, by their names in `telemetry.metrics`, and as the health of what they concern; in a command
    without both. Called on the event loop; every method returns at once and raises nothing. Is a `RequestObserver` too.
    """

    metrics: Metrics | None = None
    health: Health | None = None

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        if self.metrics is not None:
            self.metrics.count(name, *labels, by=by)

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        if self.metrics is not None:
            self.metrics.observe(name, seconds, *labels)

    def _report(self, component: str, status: HealthStatus, reason: str | None = None) -> None:
        if self.health is not None:
            self.health.report(component, status, reason)

    def store_waited(self, reason: str) -> None:
        """The database cannot be used yet: a different process migrates its schema, or blocks the migration."""
        log.warning(reason)
        self._report("database", "down", reason)

    def request(self, kind: str) -> None:
        """A request is sent to a source."""
        self.count("source_requests", kind)

    def rate_limited(self, seconds: float) -> None:
        """A source requested a pause."""
        self.count("rate_limit_waits")
        self.count("rate_limit_wait_seconds", by=seconds)

    def lock_unavailable(self, reason: str) -> None:
        """Redis cannot be used. `reason`: a sentence without secrets."""
        self._report("redis", "degraded", f"{reason} The database's claim guards every sync alone.")

    def lock_available(self) -> None:
        """Redis works, for the first time or again."""
        self._report("redis", "ok")

    def attempt_ended(self, run: Run, outcome: str, figures: RunFigures) -> None:
        """An attempt ended, and the run with it if it `is_final`. `figures` are those of this attempt."""
        if self.metrics is not None:
            counted = ("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused")
            figures_by_name = {name: getattr(figures, name) for name in counted}
            self.metrics.attempt_ended(outcome, str(run.trigger), **figures_by_name)
            for name, seconds in (("run_duration", run.busy_seconds), ("run_elapsed", run.elapsed_seconds)):
                if seconds is not None:
                    self.metrics.observe(f"{name}_seconds", seconds, str(run.trigger))

    def attempt_lost(self, attempt: LostAttempt) -> None:
        """This process found an attempt whose worker is gone."""
        self.attempt_ended(attempt.run, LOST, attempt.figures)


async def report_progress(progress: RunProgress, report: Report, *, seconds: float = REPORT_SECONDS) -> None:
    """Call `report` at most once in `seconds`, and only after a change, until cancelled.

    The run does not depend on it: if the database is unavailable, the next change is reported; reports end if the run
    belongs to a different worker, which the lease detects.
    """
    reported = RunProgress(started=progress.started)
    while True:
        await asyncio.sleep(seconds)
        now = replace(progress)
        if now == reported:
            continue
        try:
            # The last report, which the end of the run cancels, is written all the same.
            await to_the_end(asyncio.wait_for(report(progress.as_json()), _LONGEST_REPORT_SECONDS))
        except (StoreUnavailable, TimeoutError):
            continue
        except LeaseLost:
            return
        reported = now


def current_progress(run: Run) -> Mapping[str, Any] | None:
    """Progress of the running attempt; None if none is running. The row of an ended run keeps its last report, but its
    figures say what was done."""
    return run.progress if run.status is RunStatus.RUNNING else None


def displayed_progress(run: Run) -> RunProgress:
    """The same as a record for displays; its phase is the run's status, with the end of its pause, if no attempt is
    running."""
    reported = current_progress(run)
    if reported is None:
        pause = f", {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        return RunProgress(phase="starting" if run.status is RunStatus.RUNNING else f"{run.status}{pause}")
    # A different version of this program may have written it.
    elapsed = reported.get("elapsed_seconds")
    started = time.monotonic() - (elapsed if isinstance(elapsed, int | float) else 0.0)
    texts = {each: reported[each] for each in _TEXTS if isinstance(reported.get(each), str)}
    return RunProgress(
        started=started, **texts, **{each: reported[each] for each in _COUNTS if isinstance(reported.get(each), int)}
    )
