"""Which lines of the log are kept with a run, and what is in them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from reposync.telemetry.run_lines import RunLineHandler
from tests.unit.telemetry.conftest import Configure

SECRET = "hunter2-hunter2"
Lines = list[tuple[str, int, str, str]]
RUN = {"run": "run-1", "repository": "payments", "attempt": 2}

standard = logging.getLogger("reposync.sync.sync_run")
structured = structlog.get_logger("reposync.app.worker")


@pytest.fixture
def kept(configure: Configure) -> Lines:
    """What a handler beside that of the log passes on."""
    log, lines = configure("json", SECRET), Lines()
    handler = RunLineHandler(log.secrets, "pod-1", lambda *line: lines.append(line))
    logging.getLogger().addHandler(handler)
    return lines


def test_a_line_of_either_library_is_kept_with_its_fields(kept: Lines) -> None:
    with bound_contextvars(**RUN):
        structured.info("run completed", seconds=1.5, commit="abc")
        standard.warning("%d files have no symbols", 3, extra={"folder": "src"})

    assert kept == [
        ("run-1", 2, "info", "run completed seconds=1.5 commit=abc"),
        ("run-1", 2, "warning", "3 files have no symbols folder=src"),
    ]


def test_lines_about_no_run_are_not_kept(kept: Lines) -> None:
    structured.info("serving")
    standard.info("group discovered", extra={"run": "run-1"})
    with bound_contextvars(run="run-1"):
        standard.info("a run without an attempt")

    assert kept == []


def test_a_line_that_names_a_different_repository_or_run_is_not_kept(kept: Lines) -> None:
    with bound_contextvars(**RUN):
        standard.info("repository paused", extra={"repository": "secret/plans"})
        structured.info("run lets others go first", run="run-2", repository="secret/plans")
        standard.info("its own", extra={"repository": "payments"})

    assert [text for *_, text in kept] == ["its own"]


def test_secrets_are_masked_as_in_the_log(kept: Lines) -> None:
    with bound_contextvars(**RUN):
        standard.warning("refused: %s", f"https://git:{SECRET}@git.example.com", extra={"token": "abc", "url": SECRET})

    ((*_, text),) = kept
    assert SECRET not in text
    assert text == "refused: https://***@git.example.com token=*** url=***"


def test_of_an_exception_only_its_type_is_kept(kept: Lines) -> None:
    """Its message, and the arguments in its traceback, may be about anything that the program has to do with."""
    with bound_contextvars(**RUN):
        try:
            raise KeyError("secret/plans")
        except KeyError as error:
            standard.exception("incident 7: a defect ended the run")
            structured.error("a worker ended by a defect", exc_info=error)

    assert [text for *_, text in kept] == [
        "incident 7: a defect ended the run exception=KeyError",
        "a worker ended by a defect exception=KeyError",
    ]


def test_a_line_of_a_thread_is_kept(kept: Lines) -> None:
    def log() -> None:
        with bound_contextvars(**RUN):
            standard.info("from a thread")

    thread = threading.Thread(target=log)
    thread.start()
    thread.join()

    assert [text for *_, text in kept] == ["from a thread"]


def test_a_line_that_cannot_be_kept_breaks_nothing(configure: Configure) -> None:
    log = configure("json")

    def refuse(*line: object) -> None:
        raise RuntimeError("no")

    keep: Callable[..., None] = refuse
    logging.getLogger().addHandler(RunLineHandler(log.secrets, "pod-1", keep))
    with bound_contextvars(**RUN):
        standard.info("started")

    assert [event["event"] for event in log.events] == ["started"]
