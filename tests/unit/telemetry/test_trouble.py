"""What lasts is logged when it begins, when it changes and when it is over."""

from __future__ import annotations

import logging

import pytest

from reposync.telemetry.health import Trouble


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str | None]]:
    return [(each.levelname, each.message, getattr(each, "reason", None)) for each in caplog.records]


def test_a_condition_that_lasts_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("it is back")
    for _ in range(1_000):
        trouble.met("it is away", "no route to host")
    for _ in range(1_000):
        trouble.over()

    assert lines(caplog) == [("WARNING", "it is away", "no route to host"), ("INFO", "it is back", None)]


def test_another_reason_is_news_and_so_is_another_time(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("it is back")
    for reason in ("no route to host", "refused", "refused"):
        trouble.met("it is away", reason)
    trouble.over()
    trouble.met("it is away", "refused")

    assert [reason for _, _, reason in lines(caplog)] == ["no route to host", "refused", None, "refused"]


def test_what_never_was_is_not_over(caplog: pytest.LogCaptureFixture) -> None:
    Trouble("it is back").over()

    assert lines(caplog) == []


def test_a_defect_is_an_error_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("it works again")
    for _ in range(3):
        trouble.met("a check failed", "division by zero", defect=ZeroDivisionError("division by zero"))

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError
