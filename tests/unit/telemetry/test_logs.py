import contextvars
import json
import logging
import subprocess
import sys
import threading
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.telemetry.conftest import Configure

FORMATS = ("console", "json")


def test_a_line_names_time_level_logger_event_pod_and_its_fields(configure: Configure) -> None:
    log = configure()
    structlog.get_logger("reposync.app.worker").info("run ended", files=3, seconds=1.5, retried=False)

    (event,) = log.events
    moment = datetime.fromisoformat(event.pop("timestamp"))
    assert moment.tzinfo == UTC
    assert datetime.now(UTC) - moment < timedelta(minutes=1)
    always = {"level": "info", "logger": "reposync.app.worker", "event": "run ended", "pod": "pod-1"}
    assert event == always | {"files": 3, "seconds": 1.5, "retried": False}


def test_every_line_of_a_run_names_it_also_lines_of_libraries_and_threads(configure: Configure) -> None:
    log = configure()
    bound = {"run": "01J", "repository": "payments-api", "attempt": 2}
    with structlog.contextvars.bound_contextvars(**bound):
        structlog.get_logger("reposync.sync.sync_run").info("planned")
        logging.getLogger("reposync.sources.gitlab").warning("slow %s", "answer", extra={"seconds": 4})
        logging.getLogger("apscheduler.executors").error("a job was missed")
        thread = threading.Thread(
            target=contextvars.copy_context().run, args=(logging.getLogger("reposync.content").warning, "odd")
        )
        thread.start()
        thread.join()
    logging.getLogger("reposync.daemon").info("idle")

    *events, last = log.events
    assert [{key: event[key] for key in bound} for event in events] == [bound] * 4
    assert (events[1]["event"], events[1]["seconds"]) == ("slow answer", 4)
    assert events[2]["logger"] == "apscheduler.executors"
    assert "run" not in last


@pytest.mark.parametrize("library", ["httpx", "httpcore.http11", "apscheduler.scheduler", "urllib3", "uvicorn.error"])
def test_libraries_are_heard_from_warnings_on(configure: Configure, library: str) -> None:
    log = configure(level="DEBUG")
    logging.getLogger(library).info("HTTP Request: GET https://...")
    logging.getLogger(library).warning("retrying")
    for logger in (logging.getLogger("reposync.x"), structlog.get_logger("reposync.x")):
        logger.debug("ours")

    assert [event["event"] for event in log.events] == ["retrying", "ours", "ours"]
    log = configure(level="WARNING")
    for logger in (logging.getLogger("reposync.x"), structlog.get_logger("reposync.x")):
        logger.info("no")
    assert log.text == ""


def log_failure(message: str) -> None:
    try:
        raise ValueError(message)
    except ValueError:
        structlog.get_logger("x").exception("failed", file="a.py")
        logging.getLogger("y").exception("failed too")


def test_a_traceback_is_inside_the_json_line(configure: Configure) -> None:
    log = configure()
    log_failure("first\nsecond")

    for event in log.events:
        assert event["exception"].startswith("Traceback (most recent call last):\n")
        assert event["exception"].endswith("ValueError: first\nsecond")
    assert log.events[0]["file"] == "a.py"


def test_no_line_of_a_message_in_a_traceback_can_pass_for_an_event(configure: Configure) -> None:
    log = configure("console")
    log_failure("oops\n2026-01-01T00:00:00Z [info     ] all is well")

    heads = [line for line in log.lines if not line.startswith("    ")]
    assert ["failed" in heads[0], "failed too" in heads[1]] == [True, True]
    assert len(heads) == 2 < len(log.lines)


@given(
    value=st.text() | st.sampled_from(["a\nb", "\x1b[2J", "\r", "\x85", "\u2028", "\u202e", "\udc80", "\x00", "\x9b1m"])
)
@pytest.mark.parametrize("log_format", FORMATS)
def test_a_file_name_never_starts_a_line_nor_moves_the_cursor(
    configure: Configure, log_format: str, value: str
) -> None:
    log = configure(log_format)
    structlog.get_logger("x").info(value, path=value, nested={value: [value]})
    logging.getLogger("y").info("%s", value, extra={"path": value})

    assert len(log.lines) == 2
    assert all(line.isprintable() for line in log.lines)
    if log_format == "json" and value.strip():
        assert [event["path"] for event in log.events] == [value] * 2, "and nothing of it is lost"


@pytest.mark.parametrize("secret", ["hunter22", "p@ss/w%rd+", "é\"quote'd", "back\\slash", "a b\tc d"])
@pytest.mark.parametrize("log_format", FORMATS)
def test_a_known_secret_is_in_no_line(configure: Configure, log_format: str, secret: str) -> None:
    log = configure(log_format)
    log.secrets.know([secret])  # as of a registry that was read again
    logger = structlog.get_logger("x")
    logger.info(f"cloning with {secret}", url=f"https://u:{secret}@h/p", nested=[{"a": (secret, {secret: 0})}])
    logger.info(secret, raw=secret.encode(), path=Path(secret))
    logging.getLogger("y").error("a %s b", [secret], extra={"field": secret})
    with structlog.contextvars.bound_contextvars(repository=secret):
        try:
            raise ValueError(f"refused {secret!r}") from OSError(secret)
        except ValueError:
            logger.exception("failed")

    assert len(log.lines) >= 4
    assert secret not in log.text
    assert json.dumps(secret)[1:-1] not in log.text
    if log_format == "json":
        assert secret not in str(log.events)


def test_values_under_the_name_of_a_secret_are_masked_whatever_they_are(configure: Configure) -> None:
    log = configure()
    structlog.get_logger("x").info(
        "registered",
        token="a",
        api_key="b",
        tokens=512,
        headers={"PRIVATE-TOKEN": "c", "Authorization": "Basic d", "Accept": "*/*"},
        settings={"password": {"value": "e"}, "has": True, "secret": None},
    )

    (event,) = log.events
    assert event["token"] == event["api_key"] == "***"
    assert event["tokens"] == 512
    assert event["headers"] == {"PRIVATE-TOKEN": "***", "Authorization": "***", "Accept": "*/*"}
    assert event["settings"] == {"password": "***", "has": True, "secret": None}


def test_a_huge_text_makes_a_line_of_bounded_length(configure: Configure) -> None:
    log = configure()
    structlog.get_logger("x").info("y" * 10**6, text="x" * 10**6)

    assert len(log.text) < 20_000


def test_python_warnings_and_dying_threads_are_events_too(configure: Configure) -> None:
    log = configure("json", "hunter22")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("careful with hunter22", stacklevel=1)
    thread = threading.Thread(target=lambda: int("hunter22"), name="fetch")
    thread.start()
    thread.join()

    warning, death = log.events
    assert warning["logger"] == "py.warnings"
    assert death["event"] == "A thread ended with an exception"
    assert death["thread_name"] == "fetch"
    assert "ValueError" in death["exception"]
    assert "hunter22" not in log.text


PROGRAM = """
import logging, sys
from reposync.telemetry.logs import configure_logging
from reposync.telemetry.redaction import Secrets
configure_logging(sys.argv[1], pod="p", secrets=Secrets())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    logging.getLogger("x").error("is anybody there?" + "." * 10_000)
print("still here", flush=True)
"""


def test_a_process_whose_stderr_is_gone_goes_on_and_ends_well() -> None:
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "json"], text=True, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        assert process.stdout.readline() == "ready\n"
        process.stderr.close()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still here\n"
        process.stdin.close()
        assert process.wait(30) == 0
