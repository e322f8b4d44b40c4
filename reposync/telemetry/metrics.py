"""What Prometheus reads. Names are stable: dashboards and alerts depend on them.

A metric is one line in a table below, and one call of `count`, `observe` or `show` by its name.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from reposync.errors import RepoSyncError

if TYPE_CHECKING:
    from reposync.telemetry.traces import Traces

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
HEALTH_STATUSES = ("ok", "degraded", "down")
LAG_INTERVAL_SECONDS = 0.05
"""A loop that is blocked for 100 ms is seen to be late by at least half of that. Measured: 0.4% of a core."""
LAG_SAMPLES = 1_200
"""One minute of them."""
# A time further in the future than this is not an age: a pod whose clock was ahead wrote it.
_AHEAD = timedelta(seconds=60)

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "audit_entries_lost": ("Entries of the audit that were lost because the database did not answer for long.", ()),
    "runs": (
        "Attempts at runs that ended, by how and by what started them; `lost`: the worker died or froze.",
        ("status", "trigger"),
    ),
    "files": ("Files that runs stored, removed from the index, or skipped.", ("outcome",)),
    "chunks": ("Chunks stored: embedded, or reused from known content.", ("source",)),
    "ticks": ("Ticks of schedules, by outcome; of those that passed while no pod ran, the latest.", ("outcome",)),
    "source_requests": ("Requests to GitLab and git servers.", ("kind",)),
    "rate_limit_waits": ("Waits that a server's rate limit required.", ()),
    "rate_limit_wait_seconds": ("Seconds spent in such waits.", ()),
    "lock_losses": ("Redis locks lost while a sync ran.", ("reason",)),
    "lock_unavailable": ("Syncs that began guarded by the database alone: Redis did not answer.", ()),
    "registry_reloads": ("Times the registry file was read again.", ("result",)),
    "group_discoveries": ("Listings of the projects of a GitLab group.", ("result",)),
    "metrics_refresh_failures": ("Scrapes without the values from the database.", ()),
    "http_requests": (
        "Responses of this pod. `route`: the template of the path, `other` for paths that do not exist.",
        ("route", "method", "status"),
    ),
    "http_errors": ("Errors that this pod answered, by their code.", ("code",)),
    "run_errors": ("Attempts at runs that ended with an error, by its code.", ("code",)),
    "embedding_tokens": (
        "Tokens that embedding servers say they read; a server that does not say it, and the local model, have none.",
        ("provider", "kind"),
    ),
    "embedding_characters": ("Characters that were embedded, of documents and of queries.", ("provider", "kind")),
}
# Exported from the start as zeros: so the first event is an increase, and not a new series.
_FIRST_VALUES = {
    "files": ("processed", "deleted", "skipped"),
    "chunks": ("embedded", "reused"),
    "ticks": ("queued", "joined", "missed", "failed"),
    "registry_reloads": ("ok", "invalid"),
}
_RUN_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 150, 300, 600, 1200, 1800, 3600, 7200)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)
OUTCOMES = ("ok", "refused", "failed", "cancelled")
"""The outcomes that are measured. `refused`: the caller must change something (4xx); `failed`: the server could not
(5xx)."""
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...], tuple[str, ...]]] = {
    "run_duration_seconds": (
        "The attempts of a run that has ended, together.",
        _RUN_BUCKETS,
        ("trigger",),
    ),
    "run_elapsed_seconds": (
        "From the first start of a run to its end.",
        _RUN_BUCKETS,
        ("trigger",),
    ),
    "queue_wait_seconds": (
        "From the time a run was due to its start.",
        (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 900, 3600),
        (),
    ),
    "lock_wait_seconds": (
        "Wait for a repository's Redis lock.",
        (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60),
        (),
    ),
    "http_request_duration_seconds": (
        "From a request's head to the beginning of its response: a stream counts until it begins.",
        _REQUEST_BUCKETS,
        ("route", "method", "outcome"),
    ),
    "search_duration_seconds": (
        "Searches and greps of all front ends, with their wait for a turn.",
        _REQUEST_BUCKETS,
        ("kind", "outcome"),
    ),
    "mcp_call_duration_seconds": (
        "Calls of the tools for agents.",
        _REQUEST_BUCKETS,
        ("tool", "outcome"),
    ),
    "embedding_duration_seconds": (
        "Requests to an embedding server, with their retries, or steps of the local model.",
        _REQUEST_BUCKETS,
        ("provider", "kind", "outcome"),
    ),
    "event_loop_lag_distribution_seconds": (
        "How late the event loop ran a timer.",
        (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
        (),
    ),
}
# Set as a whole with `show`: series of what is gone, such as a removed repository, disappear with it.
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queue_runs": ("Runs in the execution log that are not over, by status.", ("status",)),
    "queue_oldest_seconds": ("How long the run that waits longest has waited.", ()),
    "repositories": ("Registered repositories.", ("state",)),
    "repository_freshness_seconds": (
        "Since the last successful sync; +Inf if none is known, so that an alert on it fires.",
        ("repository",),
    ),
    "repository_last_sync_timestamp_seconds": (
        "When the last successful sync ended, Unix time; 0 if there was none.",
        ("repository",),
    ),
    "workers": ("Daemons with workers, of all pods, that were heard of recently.", ()),
    "files_failed": (
        "Files of the synced commit that could not be read; repositories without any have no series.",
        ("repository",),
    ),
    "secrets_found": (
        "Secrets in the indexed files, masked or only reported; repositories without any have no series.",
        ("repository",),
    ),
    "repository_behind_since_timestamp_seconds": (
        "Since when the index has not held the newest known head of its source, Unix time; repositories whose index "
        "holds it have no series.",
        ("repository",),
    ),
    "repository_late": (
        "1 for a repository that was not synced at its last two ticks; the others have no series.",
        ("repository",),
    ),
    "index_versions": ("Versions of the indexes of all repositories.", ("state",)),
    "index_points": ("Points of a collection, of all versions, as Qdrant reports them.", ("collection",)),
    "index_size_bytes": ("Files of the embedded engine on disk; a Qdrant server has metrics of its own.", ()),
    "index_change_repositories": (
        "Active repositories with an index: done, the configured model is searched; otherwise building, waiting, or "
        "unknown until their next run.",
        ("collection", "state"),
    ),
    "clock_skew_seconds": ("How far this pod's clock is ahead of the database's; negative: behind.", ()),
    "dependency_up": ("1 while it is usable, degraded or not; 0 while it is down or not checked yet.", ("dependency",)),
    "dependency_status": ("1 for the status that it has.", ("dependency", "status")),
    "workers_busy": ("Runs that this pod executes now.", ()),
    "workers_slots": ("Runs that this pod executes at most at a time.", ()),
}
_OF_THIS_POD = ("dependency_up", "dependency_status", "workers_busy", "workers_slots")

Labels = tuple[str, ...]


class Metrics:
    """Counts what this pod does, and shows what the database knows. Methods return at once, raise nothing, and may be
    called from any thread. One per daemon."""

    def __init__(
        self,
        *,
        version: str,
        run_statuses: Iterable[str] = (),
        run_triggers: Iterable[str] = (),
        traces: Traces | None = None,
    ) -> None:
        """`run_statuses` and `run_triggers` are exported from the start as zeros. `traces`: what is measured is traced
        too."""
        self.traces = traces
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._gauges = _Gauges()
        self._lags: deque[float] = deque([0.0], maxlen=LAG_SAMPLES)
        self._counters = {
            name: Counter(name, text, labels, namespace="reposync", registry=registry)
            for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(name, text, labels, namespace="reposync", registry=registry, buckets=buckets)
            for name, (text, buckets, labels) in HISTOGRAMS.items()
        }
        for name, values in _FIRST_VALUES.items():
            for value in values:
                self._counters[name].labels(value)
        triggers = tuple(run_triggers)
        for status in run_statuses:
            for trigger in triggers:
                self._counters["runs"].labels(status, trigger)
        worst = Gauge(
            "event_loop_lag_seconds", "The worst of the last minute.", namespace="reposync", registry=registry
        )
        worst.set_function(lambda: max(tuple(self._lags)))
        Gauge("build_info", "Always 1.", ("version",), namespace="reposync", registry=registry).labels(version).set(1)
        for name in ("workers_busy", "workers_slots"):
            self.show(name, 0)
        registry.register(self._gauges)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Increase a counter. Negative amounts count as 0."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(max(by, 0))

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Add a value to a histogram. Negative ones count as 0."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(max(seconds, 0.0))

    def show(
        self, name: str, values: Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[Labels, float] | float
    ) -> None:
        """Set a gauge as a whole: its values by label, by labels, or the only one."""
        given = values if isinstance(values, Mapping) else {(): values}
        self._gauges.values[name] = {(key,) if isinstance(key, str) else key: value for key, value in given.items()}

    @contextmanager
    def measure(self, name: str, *labels: str) -> Iterator[Measurement]:
        """Add the time in the block to a histogram whose last label is the outcome, and trace it."""
        began, measurement = time.monotonic(), Measurement()
        labelled = dict(zip(HISTOGRAMS[name][2], labels, strict=False))
        traced = self.traces.span(name.removesuffix("_duration_seconds"), labelled) if self.traces else nullcontext()
        try:
            with traced:
                yield measurement
        except RepoSyncError as error:
            measurement.outcome = outcome_of(error.status)
            raise
        except asyncio.CancelledError:
            measurement.outcome = "cancelled"
            raise
        except BaseException:
            measurement.outcome = "failed"
            raise
        finally:
            self.observe(name, time.monotonic() - began, *labels, measurement.outcome)

    def attempt_ended(self, status: str, trigger: str, **figures: int) -> None:
        """`figures`: `files_processed` and the like, by counter and label."""
        self.count("runs", status, trigger)
        for name, count in figures.items():
            counter, _, label = name.partition("_")
            self.count(counter, label, by=count)

    def workers(self, busy: int, slots: int) -> None:
        self.show("workers_busy", busy)
        self.show("workers_slots", slots)

    def loop_lag(self, seconds: float) -> None:
        self.observe("event_loop_lag_distribution_seconds", seconds)
        self._lags.append(seconds)

    def freshness(self, last_sync: Mapping[str, datetime | None], now: datetime) -> None:
        """`last_sync` of every repository that is to be seen, by name: aware, None for never. `now`: of the database's
        clock."""
        ages = {
            name: inf if at is None or at - now > _AHEAD else max((now - at).total_seconds(), 0.0)
            for name, at in last_sync.items()
        }
        self.show("repository_freshness_seconds", ages)
        last = {name: 0.0 if at is None else at.timestamp() for name, at in last_sync.items()}
        self.show("repository_last_sync_timestamp_seconds", last)

    def dependencies(self, statuses: Mapping[str, str]) -> None:
        """`ok`, `degraded` or `down` of each component, as in Health."""
        self.show("dependency_up", {name: float(status in ("ok", "degraded")) for name, status in statuses.items()})
        pairs = ((name, status, each) for name, status in statuses.items() for each in HEALTH_STATUSES)
        self.show("dependency_status", {(name, each): float(each == status) for name, status, each in pairs})

    def refresh_failed(self) -> None:
        """The values from the database could not be read: they are left out until they can be."""
        self.count("metrics_refresh_failures")
        self._gauges.values = {name: each for name, each in self._gauges.values.items() if name in _OF_THIS_POD}

    def render(self) -> tuple[bytes, str]:
        """All of it in Prometheus's text format, and its content type. 1,000 repositories take 10 ms."""
        return generate_latest(self._registry), CONTENT_TYPE


def outcome_of(status: int) -> str:
    """One of OUTCOMES, by an HTTP status."""
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


@dataclass(slots=True)
class Measurement:
    """`outcome`: one of OUTCOMES, for those who know it without an exception."""

    outcome: str = "ok"


class _Gauges(Collector):
    """The values of `Metrics.show`. Each mapping is replaced as a whole: a scrape in another thread sees the old or the
    new one."""

    def __init__(self) -> None:
        self.values: dict[str, Mapping[tuple[str, ...], float]] = {}

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: the registry checks names against this, and there are no values yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, values in dict(self.values).items():
            text, labels = GAUGES[name]
            family = GaugeMetricFamily(f"reposync_{name}", text, labels=labels)
            for key, value in values.items():
                family.add_metric(tuple(map(_encodable, key)), value)
            yield family


def _encodable(text: str) -> str:
    # A lone surrogate in one name, as JSON can contain it, would cost the whole scrape.
    return text.encode("utf-8", "backslashreplace").decode()


async def watch_loop(metrics: Metrics, interval_seconds: float = LAG_INTERVAL_SECONDS) -> None:
    """Report how late the event loop is, which shows blocking calls, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval_seconds
        await asyncio.sleep(interval_seconds)
        metrics.loop_lag(max(loop.time() - due, 0.0))
