"""Gauges that are set whole before a scrape, so that series of what is gone disappear with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_AHEAD_SECONDS = 60.0

HEALTH_STATUSES = ("ok", "degraded", "down")


class Figures(Collector):
    """Each attribute is replaced at once by an own copy: a scrape in another thread sees the old or the new one.
    None: not known, and left out. `last_sync`: Unix seconds of each repository's last sync, None for never."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.queue: tuple[Mapping[str, int], float | None] | None = None
        self.last_sync: Mapping[str, float | None] | None = None
        self.repositories: Mapping[str, int] | None = None
        self.workers: int | None = None
        self.dependencies: Mapping[str, str] | None = None
        self.files_failed: Mapping[str, int] | None = None
        self.late: Mapping[str, int] | None = None
        self.index_versions: Mapping[str, int] | None = None
        self.index_changes: Mapping[str, Mapping[str, int]] | None = None
        self.clock_skew_seconds: float | None = None

    def forget_refreshed(self) -> None:
        self.queue = self.last_sync = self.repositories = self.workers = None
        self.late = self.files_failed = self.index_versions = self.index_changes = self.clock_skew_seconds = None

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: names are checked against this when the registry registers it, and there are no values yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if (queue := self.queue) is not None:
            runs, oldest = queue
            yield _gauge("queue_runs", "Runs in the execution log that are not over, by status.", "status", runs)
            yield _gauge(
                "queue_oldest_seconds", "How long the run that waits longest has waited.", None, {"": oldest or 0}
            )
        if (last_sync := self.last_sync) is not None:
            yield from self._freshness(last_sync)
        if (repositories := self.repositories) is not None:
            yield _gauge("repositories", "Registered repositories.", "state", repositories)
        if (workers := self.workers) is not None:
            text = "Daemons with workers, of all pods, that were heard of lately."
            yield _gauge("workers", text, None, {"": workers})
        if (failed := self.files_failed) is not None:
            text = "Files of the synced commit that could not be read; repositories without any have no series."
            yield _gauge("files_failed", text, "repository", failed)
        if (late := self.late) is not None:
            text = "1 for a repository that was not synced at its last two ticks; the others have no series."
            yield _gauge("repository_late", text, "repository", late)
        if (versions := self.index_versions) is not None:
            yield _gauge("index_versions", "Versions of the indexes of all repositories.", "state", versions)
        if (changes := self.index_changes) is not None:
            yield _index_changes(changes)
        if (skew := self.clock_skew_seconds) is not None:
            text = "How far this pod's clock is ahead of the database's; negative: behind."
            yield _gauge("clock_skew_seconds", text, None, {"": skew})
        if (dependencies := self.dependencies) is not None:
            yield from _dependencies(dependencies)

    def _freshness(self, last_sync: Mapping[str, float | None]) -> Iterator[GaugeMetricFamily]:
        now = self._now() - (self.clock_skew_seconds or 0.0)
        # A moment to come says nothing of when it was: a pod of an earlier version wrote it by a clock that was ahead.
        ages = {
            name: float("inf") if at is None or at > now + _AHEAD_SECONDS else max(now - at, 0.0)
            for name, at in last_sync.items()
        }
        yield _gauge(
            "repository_freshness_seconds",
            "Since the last successful sync; +Inf if there was none that is known, so that an alert on it fires.",
            "repository",
            ages,
        )
        yield _gauge(
            "repository_last_sync_timestamp_seconds",
            "When the last successful sync ended, Unix time; 0 where there was none.",
            "repository",
            {name: at or 0.0 for name, at in last_sync.items()},
        )


def _dependencies(statuses: Mapping[str, str]) -> Iterator[GaugeMetricFamily]:
    yield _gauge(
        "dependency_up",
        "1 while it can be used, degraded or not; 0 while it is down, or was not asked yet.",
        "dependency",
        {name: 0 if status in ("down", "starting") else 1 for name, status in statuses.items()},
    )
    family = GaugeMetricFamily(
        "reposync_dependency_status", "1 for the status that it has.", labels=("dependency", "status")
    )
    for name, status in statuses.items():
        for each in HEALTH_STATUSES:
            family.add_metric((_encodable(name), each), float(each == status))
    yield family


def _index_changes(changes: Mapping[str, Mapping[str, int]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "reposync_index_change_repositories",
        "Active repositories with an index: done, the configured model is searched; otherwise building, waiting, held "
        "by a person, or unknown until their next run.",
        labels=("collection", "state"),
    )
    for collection, states in changes.items():
        for state, count in states.items():
            family.add_metric((_encodable(collection), state), count)
    return family


def _gauge(name: str, text: str, label: str | None, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"reposync_{name}", text, labels=(label,) if label else ())
    for key, value in values.items():
        family.add_metric((_encodable(key),) if label else (), value)
    return family


def _encodable(text: str) -> str:
    # Half a surrogate in one name, as JSON can bring it, would cost the whole scrape.
    return text.encode("utf-8", "backslashreplace").decode()
