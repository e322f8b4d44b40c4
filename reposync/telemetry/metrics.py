"""What Prometheus reads. Names are stable: dashboards and alerts hold on to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from reposync.telemetry.figures import Figures
from reposync.telemetry.window import WorstLately

_RUN_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 150, 300, 600, 1200, 1800, 3600, 7200)
_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 900, 3600)
_LOCK_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

LAG_WINDOW_SECONDS = 60.0

MOST_VALUES = 40
"""Of a label whose values the callers choose; further ones count as `other`. Each is a series for ever."""


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """`runs`: how many by status; `oldest_seconds`: how long the longest waiting run that is due has waited; None, none
    waits."""

    runs: Mapping[str, int]
    oldest_seconds: float | None = None


class Metrics:
    """Counts what this pod does. Methods return at once, raise nothing, and may be called from any thread.

    It is a `outgoing.RequestObserver`. What the database knows (queue, freshness, repositories) is set before each
    scrape, whole: what is not in it any more, such as a repository that was removed, disappears.
    """

    def __init__(
        self,
        *,
        version: str,
        run_statuses: Iterable[str] = (),
        run_triggers: Iterable[str] = (),
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run_statuses` and `run_triggers` are exported from the start as zeros: the first failure of all is an
        increase then, and not the birth of a series."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._now = now
        self._values: dict[str, set[str]] = {}
        self._define_runs(tuple(run_statuses), tuple(run_triggers))
        self._define_sources_and_locks()
        self._define_process(version, monotonic)

    def _define_runs(self, statuses: tuple[str, ...], triggers: tuple[str, ...]) -> None:
        self._runs = self._counter(
            "runs",
            "Attempts at runs that ended, by how and by what started them; `lost`: the worker died or froze.",
            "status",
            "trigger",
        )
        self._duration = self._histogram(
            "run_duration_seconds", "From claim to end of an attempt.", _RUN_BUCKETS, "trigger"
        )
        self._queue_wait = self._histogram(
            "queue_wait_seconds", "From the moment a run was due to its start.", _WAIT_BUCKETS
        )
        self._files = self._counter("files", "Files that runs stored, took out of the index, or skipped.", "outcome")
        self._chunks = self._counter(
            "chunks", "Chunks stored: embedded anew, or taken over from known content.", "source"
        )
        self._ticks = self._counter(
            "ticks",
            "Ticks of schedules, by what became of them; of those that passed while no pod ran, the latest.",
            "outcome",
        )
        self._busy = self._gauge("workers_busy", "Runs that this pod executes now.")
        self._slots = self._gauge("workers_slots", "Runs that this pod executes at most at a time.")
        for status in statuses:
            for trigger in triggers:
                self._runs.labels(status, trigger)
        for outcome in ("processed", "deleted", "skipped"):
            self._files.labels(outcome)
        for source in ("embedded", "reused"):
            self._chunks.labels(source)
        for outcome in ("queued", "joined", "handled", "missed", "rejected"):
            self._ticks.labels(outcome)

    def _define_sources_and_locks(self) -> None:
        self._requests = self._counter("source_requests", "Requests to GitLab and git servers.", "kind")
        self._limits = self._counter("rate_limit_waits", "Times a server asked for patience.")
        self._limit_seconds = self._counter("rate_limit_wait_seconds", "Seconds spent in such waits.")
        self._lock_wait = self._histogram("lock_wait_seconds", "To get a repository's Redis lock.", _LOCK_BUCKETS)
        self._lock_losses = self._counter("lock_losses", "Redis locks lost while a sync ran.", "reason")
        self._no_lock = self._counter(
            "lock_unavailable", "Syncs that began guarded by the database alone: Redis did not answer."
        )
        self._reloads = self._counter("registry_reloads", "Times the registry file was read again.", "result")
        self._discoveries = self._counter("group_discoveries", "Listings of the projects of a GitLab group.", "result")
        for result in ("ok", "invalid"):
            self._reloads.labels(result)

    def _define_process(self, version: str, monotonic: Callable[[], float]) -> None:
        self._lag = self._histogram(
            "event_loop_lag_distribution_seconds", "How late the event loop ran a timer.", _LAG_BUCKETS
        )
        self._worst_lag = WorstLately(LAG_WINDOW_SECONDS, monotonic)
        worst = self._gauge("event_loop_lag_seconds", "The worst of the last minute.")
        worst.set_function(self._worst_lag.value)
        self._refresh_failures = self._counter("metrics_refresh_failures", "Scrapes without the database's figures.")
        self._gauge("build_info", "Always 1.", "version").labels(version).set(1)
        self._figures = Figures(self._now)
        self._registry.register(self._figures)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    # Runs and ticks

    def run_started(self, waited_seconds: float) -> None:
        self._queue_wait.observe(max(waited_seconds, 0.0))

    def run_ended(
        self,
        status: str,
        trigger: str,
        duration_seconds: float | None,
        files_processed: int = 0,
        files_deleted: int = 0,
        files_skipped: int = 0,
        chunks_embedded: int = 0,
        chunks_reused: int = 0,
    ) -> None:
        """An attempt is over. `duration_seconds` is None where it never began, as in a run cancelled in the queue."""
        status, trigger = self._value("status", status), self._value("trigger", trigger)
        self._runs.labels(status, trigger).inc()
        if duration_seconds is not None:
            self._duration.labels(trigger).observe(max(duration_seconds, 0.0))
        for outcome, count in (("processed", files_processed), ("deleted", files_deleted), ("skipped", files_skipped)):
            self._files.labels(outcome).inc(max(count, 0))
        for source, count in (("embedded", chunks_embedded), ("reused", chunks_reused)):
            self._chunks.labels(source).inc(max(count, 0))

    def tick(self, outcome: str, count: int = 1) -> None:
        """`outcome`: queued; joined, a run waited already; handled, another pod did it; missed, the grace was over."""
        self._ticks.labels(self._value("outcome", outcome)).inc(max(count, 0))

    def workers(self, busy: int, slots: int) -> None:
        self._busy.set(busy)
        self._slots.set(slots)

    # Sources, locks, registry

    def request(self, kind: str) -> None:
        self._requests.labels(self._value("kind", kind)).inc()

    def rate_limited(self, seconds: float) -> None:
        self._limits.inc()
        self._limit_seconds.inc(max(seconds, 0.0))

    def lock_taken(self, seconds: float) -> None:
        self._lock_wait.observe(max(seconds, 0.0))

    def lock_lost(self, reason: str) -> None:
        self._lock_losses.labels(self._value("reason", reason)).inc()

    def lock_missing(self) -> None:
        self._no_lock.inc()

    def registry_reloaded(self, result: str) -> None:
        """`result`: ok, invalid."""
        self._reloads.labels(self._value("reload", result)).inc()

    def group_discovered(self, result: str) -> None:
        """`result`: ok, or why not in a word."""
        self._discoveries.labels(self._value("discovery", result)).inc()

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)
        self._worst_lag.add(seconds)

    # Before each scrape

    def queue(self, figures: QueueFigures) -> None:
        self._figures.queue = (dict(figures.runs), figures.oldest_seconds)

    def freshness(self, last_sync: Mapping[str, datetime | None]) -> None:
        """`last_sync` of every repository that is to be seen, by name: aware, None for never."""
        self._figures.last_sync = {name: None if at is None else at.timestamp() for name, at in last_sync.items()}

    def repositories(self, states: Mapping[str, int]) -> None:
        """How many are active, paused, inactive."""
        self._figures.repositories = dict(states)

    def workers_alive(self, count: int) -> None:
        """How many daemons, of all pods, execute runs."""
        self._figures.workers = count

    def files_failed(self, counts: Mapping[str, int]) -> None:
        """How many files of the synced commit could not be read, of each repository that has such, by name."""
        self._figures.files_failed = dict(counts)

    def late(self, names: Iterable[str]) -> None:
        """Repositories that were not synced at their last two ticks."""
        self._figures.late = dict.fromkeys(names, 1)

    def indexes(self, versions: Mapping[str, int], changes: Mapping[str, Mapping[str, int]]) -> None:
        """`versions`: how many are building, live, retired. `changes`: collection -> repositories by how far they are
        with the configured model."""
        self._figures.index_versions = dict(versions)
        self._figures.index_changes = {collection: dict(states) for collection, states in changes.items()}

    def dependencies(self, statuses: Mapping[str, str]) -> None:
        """`ok`, `degraded` or `down` of each component, as Health has them."""
        self._figures.dependencies = dict(statuses)

    def clock_skew(self, seconds: float) -> None:
        """How far this pod's clock is ahead of the database's."""
        self._figures.clock_skew_seconds = seconds

    def refresh_failed(self) -> None:
        """The database's figures could not be had: they are left out until they can, rather than shown as they were."""
        self._refresh_failures.inc()
        self._figures.forget_refreshed()

    def render(self) -> tuple[bytes, str]:
        """All of it in Prometheus's text format, and its content type. 1,000 repositories take 10 ms."""
        return b"".join(self.pieces()), CONTENT_TYPE

    def pieces(self) -> Iterator[bytes]:
        """The same, metric by metric, for a caller who has other things to do in between."""
        for metric in self._registry.collect():
            yield generate_latest(_Only(metric))

    def _value(self, label: str, value: str) -> str:
        seen = self._values.setdefault(label, set())
        if value not in seen:
            if len(seen) >= MOST_VALUES:
                return "other"
            seen.add(value)
        return value

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="reposync", registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="reposync", registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="reposync", registry=self._registry, buckets=buckets)


class _Only(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)
