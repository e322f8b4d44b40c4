"""Structured logs: one event, one line, whoever logged it, and no secret in any."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from reposync.telemetry.lines import ConsoleLine, json_line
from reposync.telemetry.plain import Plain
from reposync.telemetry.redaction import Secrets

NOISY = (
    "alembic",
    "apscheduler",
    "asyncio",
    "filelock",
    "hpack",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "qdrant_client",
    "sqlalchemy",
    "urllib3",
    "uvicorn",
)
"""Libraries that tell at INFO what only their authors want to know."""


def configure_logging(
    log_format: Literal["console", "json"],
    *,
    pod: str,
    secrets: Secrets,
    level: str = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Send what structlog and the standard library log to `stream` (stderr), one line an event.

    Every line has `timestamp` (ISO 8601, UTC), `level`, `logger`, `event` and `pod`, whatever is bound with
    `structlog.contextvars` (run, repository, attempt), and the fields of the call: keyword arguments of structlog,
    `extra` of the standard library. Secrets are masked with what `secrets` knows at that moment. Warnings and
    exceptions that nobody caught in a thread are logged as well. Calling it again replaces what was configured before.
    """
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    everyone: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *everyone],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _Pod(pod),
            Plain(secrets),
            json_line if log_format == "json" else ConsoleLine(colors=_wants_colors(stream)),
        ],
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *everyone,
            _insert_arguments,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Lines(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(threshold)
    for name in NOISY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    logging.captureWarnings(True)
    threading.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable


def _insert_arguments(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """As the standard library does it, but arguments that do not fit cost their place in the text, not the caller."""
    arguments = event.pop("positional_args", ())
    if arguments:
        try:
            event["event"] %= arguments[0] if len(arguments) == 1 and isinstance(arguments[0], dict) else arguments
        except Exception:  # noqa: BLE001 (a value's own code runs here)
            event["arguments"] = arguments
    return event


class _Pod:
    """Processor: names the pod."""

    def __init__(self, pod: str) -> None:
        self._pod = pod

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event.setdefault("pod", self._pod)
        return event


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines. Whatever goes wrong with it, its caller goes on."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            line = super().format(record)
        except Exception as error:  # noqa: BLE001 (a value's own code runs here: its str, its repr, its exception)
            line = super().format(_unformattable(record, error))
        # A terminal or a pipe of a narrower encoding than the line gets escapes, not an exception.
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return line.encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the library's name)
        """Nothing is said: the default prints the message and its arguments, secrets and all, to stderr.

        A reader that is gone does not come back. What is still in the stream's buffer would be tried again when the
        interpreter ends, and make its exit code 120: https://docs.python.org/3/library/signal.html#note-on-sigpipe
        """
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)


def _unformattable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """What can be said about a record that cannot be written, as a wrong number of arguments makes it."""
    template = record.msg.get("event") if isinstance(record.msg, Mapping) else record.msg
    made = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, "%s", (), None)
    try:
        made.args = (str(template),)
    except Exception:  # noqa: BLE001 (see above)
        made.args = (f"an event of type {type(template).__name__}",)
    made.formatting_error = type(error).__name__
    return made


def _wants_colors(stream: TextIO) -> bool:
    # https://no-color.org
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _log_uncaught(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_value is None or isinstance(uncaught.exc_value, SystemExit):
        return
    name = uncaught.thread.name if uncaught.thread else "?"
    logging.getLogger(__name__).error(
        "A thread ended with an exception", extra={"thread_name": name}, exc_info=_info(uncaught.exc_value)
    )


def _log_unraisable(unraisable: Any) -> None:
    logging.getLogger(__name__).error(
        "An exception could not be raised where it occurred",
        extra={"where": unraisable.err_msg or "destructor or callback"},
        exc_info=_info(unraisable.exc_value) if unraisable.exc_value is not None else None,
    )


def _info(error: BaseException) -> tuple[type[BaseException], BaseException, Any]:
    return type(error), error, error.__traceback__
