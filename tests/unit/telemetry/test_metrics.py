import asyncio
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from reposync.telemetry.metrics import LAG_SAMPLES, Metrics, watch_loop

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus would store; a series that is there twice is an error."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((f"reposync_{name}", frozenset(labels.items())))


def series(metrics: Metrics, name: str) -> dict[str, float]:
    """By the value of the only label."""
    return {
        next(iter(dict(labels).values()), ""): value
        for (each, labels), value in samples(metrics).items()
        if each == f"reposync_{name}"
    }


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def test_a_run_is_counted_by_status_and_trigger_with_what_it_did(metrics: Metrics) -> None:
    metrics.observe("queue_wait_seconds", 0.02)
    files = {"files_processed": 5, "files_deleted": 1, "files_skipped": 2}
    metrics.attempt_ended("completed", "schedule", **files, chunks_embedded=40, chunks_reused=7)
    metrics.observe("queue_wait_seconds", 400)
    metrics.attempt_ended("failed", "schedule", files_processed=1)

    assert value(metrics, "runs_total", status="completed", trigger="schedule") == 1
    assert value(metrics, "runs_total", status="failed", trigger="schedule") == 1
    assert series(metrics, "files_total") == {"processed": 6, "deleted": 1, "skipped": 2}
    assert series(metrics, "chunks_total") == {"embedded": 40, "reused": 7}
    assert value(metrics, "queue_wait_seconds_bucket", le="0.025") == 1
    assert value(metrics, "queue_wait_seconds_bucket", le="900.0") == 2


def test_the_first_failure_is_an_increase() -> None:
    metrics = Metrics(version="1", run_statuses=("cancelled", "failed"), run_triggers=("schedule", "http"))
    before = value(metrics, "runs_total", status="cancelled", trigger="http")
    metrics.attempt_ended("cancelled", "http")

    assert (before, value(metrics, "runs_total", status="cancelled", trigger="http")) == (0, 1)


def test_counters_histograms_and_gauges_are_set_by_name(metrics: Metrics) -> None:
    metrics.observe("lock_wait_seconds", 0.002)
    metrics.count("lock_losses", "expired")
    metrics.count("lock_unavailable")
    metrics.count("rate_limit_wait_seconds", by=2.5)
    metrics.count("rate_limit_wait_seconds", by=-1)
    metrics.count("ticks", "missed", by=3)
    metrics.count("registry_reloads", "invalid")
    metrics.workers(busy=2, slots=4)

    assert value(metrics, "lock_wait_seconds_count") == 1
    assert value(metrics, "lock_losses_total", reason="expired") == 1
    assert value(metrics, "lock_unavailable_total") == 1
    assert value(metrics, "rate_limit_wait_seconds_total") == 2.5
    outcomes = {"queued": 0, "joined": 0, "missed": 3, "failed": 0}
    assert series(metrics, "ticks_total") == outcomes
    assert series(metrics, "registry_reloads_total") == {"ok": 0, "invalid": 1}
    assert (value(metrics, "workers_busy"), value(metrics, "workers_slots")) == (2, 4)


def test_freshness_is_the_age_of_the_last_sync_and_a_moment_to_come_has_none(metrics: Metrics) -> None:
    synced = {"api": NOW - timedelta(hours=1), "new": None, "ahead": NOW + timedelta(seconds=2)}
    metrics.freshness(synced | {"of a pod whose clock is ahead": NOW + timedelta(hours=1)}, NOW)

    ages = {"api": 3600, "new": math.inf, "ahead": 0, "of a pod whose clock is ahead": math.inf}
    assert series(metrics, "repository_freshness_seconds") == ages
    last = series(metrics, "repository_last_sync_timestamp_seconds")
    assert (last["api"], last["new"], last["ahead"]) == (NOW.timestamp() - 3600, 0, NOW.timestamp() + 2)


def test_a_repository_that_was_removed_or_renamed_disappears(metrics: Metrics) -> None:
    metrics.freshness({"old-name": NOW, "api": NOW}, NOW)
    metrics.show("queue_runs", {"queued": 3, "running": 1})
    metrics.show("repositories", {"active": 2, "paused": 1})
    samples(metrics)
    metrics.freshness({"new-name": NOW, "api": NOW}, NOW)
    metrics.show("queue_runs", {"running": 1})
    metrics.show("repositories", {"active": 2})

    assert set(series(metrics, "repository_freshness_seconds")) == {"new-name", "api"}
    assert set(series(metrics, "repository_last_sync_timestamp_seconds")) == {"new-name", "api"}
    assert series(metrics, "queue_runs") == {"running": 1}
    assert series(metrics, "repositories") == {"active": 2}
    assert b"old-name" not in metrics.render()[0]


def test_figures_that_could_not_be_refreshed_are_left_out_and_counted(metrics: Metrics) -> None:
    metrics.freshness({"api": NOW}, NOW)
    metrics.show("queue_runs", {"queued": 3})
    metrics.dependencies({"database": "down"})
    metrics.count("ticks", "queued")
    metrics.refresh_failed()

    assert not {name for name, _ in samples(metrics)} & {"reposync_repository_freshness_seconds", "reposync_queue_runs"}
    assert value(metrics, "metrics_refresh_failures_total") == value(metrics, "ticks_total", outcome="queued") == 1
    assert value(metrics, "dependency_up", dependency="database") == 0


def test_a_degraded_dependency_is_up_and_says_that_it_is_degraded(metrics: Metrics) -> None:
    metrics.dependencies({"database": "ok", "redis": "degraded", "qdrant": "down"})

    assert series(metrics, "dependency_up") == {"database": 1, "redis": 1, "qdrant": 0}
    statuses = [(each, labels) for each, labels in samples(metrics) if each == "reposync_dependency_status"]
    assert value(metrics, "dependency_status", dependency="redis", status="degraded") == 1
    assert (sum(samples(metrics)[each] for each in statuses), len(statuses)) == (3, 9)


@given(st.dictionaries(st.text(max_size=20) | st.sampled_from(['a"b', "a\nb", "a\\", "\udc80"]), st.none(), max_size=8))
def test_any_name_of_a_repository_can_be_scraped(last_sync: Mapping[str, datetime | None]) -> None:
    metrics = Metrics(version="1")
    metrics.freshness(last_sync, NOW)

    names = {name.encode("utf-8", "backslashreplace").decode() for name in last_sync}
    assert set(series(metrics, "repository_freshness_seconds")) == names


def test_version_and_process_are_described(metrics: Metrics) -> None:
    names = {name for name, _ in samples(metrics)}

    assert value(metrics, "build_info", version="1.2.3") == 1
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= names
    assert not [name for name in names if name.endswith("_created")]


def test_the_worst_lag_is_of_the_last_minute(metrics: Metrics) -> None:
    assert value(metrics, "event_loop_lag_seconds") == 0
    for lag in (0.4, *[0.1] * (LAG_SAMPLES - 1)):
        metrics.loop_lag(lag)
    assert value(metrics, "event_loop_lag_seconds") == 0.4
    metrics.loop_lag(0.001)

    assert value(metrics, "event_loop_lag_seconds") == 0.1
    assert value(metrics, "event_loop_lag_distribution_seconds_count") == LAG_SAMPLES + 1


async def test_a_call_that_blocks_the_event_loop_shows_as_lag(metrics: Metrics) -> None:
    async def samples_taken(count: float) -> None:
        while (value(metrics, "event_loop_lag_distribution_seconds_count") or 0) < count:
            await asyncio.sleep(0.01)

    watch = asyncio.create_task(watch_loop(metrics, interval_seconds=0.01))
    await samples_taken(1)
    time.sleep(0.3)
    await samples_taken(2)
    watch.cancel()

    assert (value(metrics, "event_loop_lag_seconds") or 0) > 0.2
