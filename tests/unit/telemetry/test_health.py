import logging
from datetime import UTC, datetime, timedelta

import pytest

from reposync.telemetry.health import LONGEST_REASON_CHARS, Health, Trouble
from tests.unit.telemetry.conftest import Configure


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 5, 4, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def go(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(now=clock, monotonic=clock.monotonic)


def test_it_is_starting_until_the_first_report_on_the_database(health: Health) -> None:
    before = health.snapshot()
    health.report("redis", "ok")
    between = health.snapshot()
    health.report("database", "ok", latency_seconds=0.002)

    assert (before.status, between.status, health.snapshot().status) == ("starting", "starting", "ok")
    assert before.components["database"].reason == "It has not been checked yet."
    assert health.snapshot().components["database"].latency_seconds == 0.002


def test_redis_down_is_degraded_with_the_reason(health: Health) -> None:
    health.report("database", "ok")
    health.report("redis", "down", "Redis at cache:6379 refuses connections.")

    found = health.snapshot()
    assert found.status == "degraded"
    assert found.components["redis"].status == "down"
    assert found.components["redis"].reason == "Redis at cache:6379 refuses connections."


def test_a_required_component_decides_alone_whether_it_is_down(health: Health) -> None:
    for component in ("database", "redis", "registry"):
        health.report(component, "ok")
    health.report("database", "down", "no route")
    down = health.snapshot().status
    health.report("database", "degraded", "slow")

    assert (down, health.snapshot().status) == ("down", "degraded")


def test_since_is_the_start_of_the_status_and_not_the_last_report(health: Health, clock: Clock) -> None:
    health.report("redis", "down", "first reason")
    began = clock.at
    clock.go(60)
    health.report("redis", "down", "second reason")

    redis = health.snapshot().components["redis"]
    assert redis.since == began
    assert redis.reason == "second reason"

    clock.go(60)
    health.report("redis", "ok", "a reason that is none any more")
    redis = health.snapshot().components["redis"]
    assert redis.since == clock.at
    assert redis.reason is None


def test_a_snapshot_does_not_change_afterwards(health: Health) -> None:
    health.report("database", "ok")
    before = health.snapshot()
    health.report("database", "down")
    health.report("redis", "ok")

    assert before.status == "ok"
    assert set(before.components) == {"database"}


def test_each_change_is_logged_once(health: Health, clock: Clock, configure: Configure) -> None:
    log = configure()
    for status in ("ok", "ok", "down", "down", "degraded", "ok", "ok"):
        health.report("redis", status, "it does not answer", 0.01)
        clock.go(10)

    assert [(event["event"], event["level"]) for event in log.events] == [
        ("redis is ok", "info"),
        ("redis is down", "error"),
        ("redis is degraded", "warning"),
        ("redis is ok", "info"),
    ]
    down, recovered = log.events[1], log.events[3]
    assert (down["component"], down["status"], down["was"]) == ("redis", "down", "ok")
    assert (down["reason"], down["latency_seconds"]) == ("it does not answer", 0.01)
    assert (recovered["was"], recovered["was_for_seconds"]) == ("degraded", 10)


def test_the_first_report_on_a_required_component_is_logged(health: Health, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        health.report("database", "down", "no route")
        health.report("database", "down", "no route")

    assert [record.getMessage() for record in caplog.records] == ["database is down"]


def test_a_component_without_a_recent_report_is_degraded(health: Health, clock: Clock) -> None:
    health.report("database", "ok")
    health.report("scheduler", "ok", valid_seconds=30)
    clock.go(29)
    assert health.snapshot().status == "ok"
    clock.go(13)

    found = health.snapshot()
    assert found.status == "degraded"
    assert found.components["scheduler"].reason == "Its check is 12 s late."

    health.report("scheduler", "ok", valid_seconds=30)
    assert health.snapshot().status == "ok"


def test_a_required_component_without_a_recent_report_is_down(health: Health, clock: Clock) -> None:
    health.report("database", "ok", valid_seconds=30)
    clock.go(31)

    assert health.snapshot().status == "down"


def test_a_component_can_be_removed_unless_it_is_required(health: Health) -> None:
    health.report("database", "ok")
    health.report("gitlab:old", "down")
    health.forget("gitlab:old")
    health.forget("database")
    health.forget("never heard of")

    assert set(health.snapshot().components) == {"database"}
    assert health.snapshot().status == "ok"


def test_a_long_reason_is_cut(health: Health) -> None:
    health.report("database", "down", "x" * 10_000)

    assert len(health.snapshot().components["database"].reason or "") == LONGEST_REASON_CHARS


def test_with_nothing_required_and_no_reports_it_is_ok() -> None:
    assert Health(required=()).snapshot().status == "ok"


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str | None]]:
    return [(each.levelname, each.message, getattr(each, "reason", None)) for each in caplog.records]


def test_a_condition_that_lasts_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trouble = Trouble("it is back")
    trouble.over()
    for _ in range(1_000):
        trouble.met("it is down", "no route to host")
    for _ in range(1_000):
        trouble.over()

    assert logged(caplog) == [("WARNING", "it is down", "no route to host"), ("INFO", "it is back", None)]


def test_a_different_reason_is_logged_and_so_is_a_further_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trouble = Trouble("it is back")
    for reason in ("no route to host", "refused", "refused"):
        trouble.met("it is down", reason)
    trouble.over()
    trouble.met("it is down", "refused")

    assert [reason for _, _, reason in logged(caplog)] == ["no route to host", "refused", None, "refused"]


def test_a_defect_is_logged_once_as_an_error_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("it works again")
    for _ in range(3):
        trouble.met("a check failed", "division by zero", defect=ZeroDivisionError("division by zero"))

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
