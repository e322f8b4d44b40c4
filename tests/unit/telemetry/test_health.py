import logging
from datetime import UTC, datetime, timedelta

import pytest

from reposync.telemetry.health import LONGEST_REASON_CHARS, Health, Trouble
from tests.unit.telemetry.conftest import Configure


class Clock:
    at = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def go(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(now=lambda: clock.at)


def test_it_is_starting_until_the_first_report_on_the_database(health: Health) -> None:
    before = health.snapshot()
    health.report("redis", "ok")
    between = health.snapshot()
    health.report("database", "ok", latency_seconds=0.002)

    assert (before.status, between.status, health.snapshot().status) == ("starting", "starting", "ok")
    assert before.components["database"].reason == "It has not been checked yet."
    assert health.snapshot().components["database"].latency_seconds == 0.002
    assert set(before.components) == {"database"}


@pytest.mark.parametrize(
    ("component", "status", "whole"),
    [("database", "down", "down"), ("database", "degraded", "degraded"), ("redis", "down", "degraded")],
)
def test_only_the_database_makes_the_whole_down(component: str, status: str, whole: str, health: Health) -> None:
    for name in ("database", "redis", "registry"):
        health.report(name, "ok")
    health.report(component, status, "It refuses connections." + "x" * 1_000)  # type: ignore[arg-type]

    found = health.snapshot()
    reason = found.components[component].reason or ""
    assert (found.status, found.components[component].status, len(reason)) == (whole, status, LONGEST_REASON_CHARS)


def test_since_is_the_start_of_the_status_and_not_the_last_report(health: Health, clock: Clock) -> None:
    began = clock.at
    for status, reason, since in (("down", "first", began), ("down", "second", began), ("ok", None, None)):
        health.report("redis", status, reason or "outdated")  # type: ignore[arg-type]
        redis = health.snapshot().components["redis"]
        assert (redis.since, redis.reason) == (since or clock.at, reason)
        clock.go(60)


def test_each_change_is_logged_once(health: Health, clock: Clock, configure: Configure) -> None:
    log = configure()
    for status in ("ok", "ok", "down", "down", "degraded", "ok", "ok"):
        health.report("redis", status, "it does not answer", 0.01)  # type: ignore[arg-type]
        clock.go(10)
    for _ in range(2):
        health.report("database", "down", "no route")

    assert [(event["event"], event["level"]) for event in log.events] == [
        ("redis is ok", "info"),
        ("redis is down", "error"),
        ("redis is degraded", "warning"),
        ("redis is ok", "info"),
        ("database is down", "error"),
    ]
    down, recovered = log.events[1], log.events[3]
    assert (down["component"], down["status"], down["was"]) == ("redis", "down", "ok")
    assert (down["reason"], down["latency_seconds"]) == ("it does not answer", 0.01)
    assert (recovered["was"], recovered["was_for_seconds"]) == ("degraded", 10)


def test_a_component_can_be_removed_but_the_database(health: Health) -> None:
    health.report("database", "ok")
    health.report("gitlab:old", "down")
    for component in ("gitlab:old", "database", "unknown"):
        health.forget(component)

    assert (set(health.snapshot().components), health.snapshot().status) == ({"database"}, "ok")


def test_a_condition_that_lasts_is_logged_when_it_begins_changes_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trouble = Trouble("it is back")
    trouble.over()
    for reason in ("no route to host", *["refused"] * 1_000):
        trouble.met("it is down", reason)
    for _ in range(2):
        trouble.over()
    trouble.met("it is down", "refused")
    for _ in range(3):
        trouble.met("a check failed", "division by zero", defect=ZeroDivisionError("division by zero"))

    assert [(each.levelname, each.message, getattr(each, "reason", None)) for each in caplog.records] == [
        ("WARNING", "it is down", "no route to host"),
        ("WARNING", "it is down", "refused"),
        ("INFO", "it is back", None),
        ("WARNING", "it is down", "refused"),
        ("ERROR", "a check failed", "division by zero"),
    ]
    traceback = caplog.records[-1].exc_info
    assert traceback is not None and traceback[0] is ZeroDivisionError
