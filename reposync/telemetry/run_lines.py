"""The lines of the log that are about a run, for those who read them with the run and not on the pod."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, WrappedLogger

from reposync.telemetry.logs import Sanitize, formatter_of
from reposync.telemetry.redaction import Secrets

_LEFT_OUT = frozenset(("timestamp", "level", "logger", "event", "pod", "run", "repository", "attempt", "stack"))
"""Fields that the run has itself, or that are columns of their own; the traces of calls are for the pod's log."""


class Keep(Protocol):
    """Takes a line about this attempt at a run, in any thread. Must return at once."""

    def __call__(self, run_id: str, attempt: int, level: str, text: str, /) -> None: ...


class RunLineHandler(logging.Handler):
    """Passes on the lines that are logged while `run`, `repository` and `attempt` are bound with structlog.contextvars,
    as the log has them, without secrets. A line that names a different repository in its field is left out: tasks that
    a run starts for all of them have its context. Of an exception there is only its type: its message and traceback may
    be about anything."""

    def __init__(self, secrets: Secrets, pod: str, keep: Keep) -> None:
        super().__init__()
        self._keep = keep
        self.setFormatter(formatter_of(_name_exception, Sanitize(secrets, pod), _text_of))

    def emit(self, record: logging.LogRecord) -> None:
        bound = structlog.contextvars.get_contextvars()
        if not (isinstance(run_id := bound.get("run"), str) and isinstance(attempt := bound.get("attempt"), int)):
            return
        fields: Mapping[str, Any] = record.msg if isinstance(record.msg, dict) else vars(record)
        repository = bound.get("repository")
        if fields.get("repository", repository) != repository or fields.get("run", run_id) != run_id:
            return
        try:
            self._keep(run_id, attempt, record.levelname.lower(), self.format(record))
        except Exception:  # noqa: BLE001 - a line is lost, and not what logs it; the log itself has it
            return


def _name_exception(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    error = event.pop("exc_info", None)
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = type(error).__name__
    return event


def _text_of(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """`run completed seconds=1.2 files_processed=3`"""
    fields = [f"{key}={value}" for key, value in event.items() if key not in _LEFT_OUT]
    return " ".join([str(event["event"]), *fields])
