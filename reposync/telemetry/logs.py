"""Structured logs: one line per event, from structlog and the standard library, without secrets."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, TextIO

import structlog
from structlog.dev import ConsoleRenderer
from structlog.typing import EventDict, Processor, WrappedLogger

from reposync.telemetry.redaction import MASK, Secrets, names_secret
from reposync.words import escape_unprintable

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
"""Libraries whose INFO lines are noise."""

LONGEST_VALUE_CHARS = 4_000
LONGEST_TRACEBACK_CHARS = 20_000

PlainValue = str | int | float | bool | None | list["PlainValue"] | dict[str, "PlainValue"]
_FIRST = ("timestamp", "level", "logger", "event", "pod", "run", "repository", "attempt")
_TRACEBACKS = ("stack", "exception")


def configure_logging(
    log_format: Literal["console", "json"],
    *,
    pod: str,
    secrets: Secrets,
    level: str = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Send what structlog and the standard library log to `stream` (stderr), one line per event.

    Every line has `timestamp` (ISO 8601, UTC), `level`, `logger`, `event` and `pod`, what is bound with
    `structlog.contextvars` (run, repository, attempt), and the fields of the call: keyword arguments of structlog,
    `extra` of the standard library. Warnings and uncaught exceptions of threads are logged as well. A further call
    replaces the configuration.
    """
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    rendering: list[Processor] = [json_line]
    if log_format == "console":
        rendering = [_printable, ConsoleRenderer(colors=_wants_colors(stream), sort_keys=False)]
    formatter = formatter_of(structlog.processors.format_exc_info, Sanitize(secrets, pod), *rendering)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_EVERY_LINE,
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


_EVERY_LINE: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def formatter_of(*processors: Processor) -> logging.Formatter:
    """A formatter for lines of structlog and of the standard library; the last processor makes the text."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *_EVERY_LINE],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *processors],
    )


class Sanitize:
    """Processor: names the pod; makes every value text, number, boolean, None, or a list or dict of them; masks secrets
    and values under keys that name one; cuts long texts."""

    def __init__(self, secrets: Secrets, pod: str) -> None:
        self._secrets = secrets
        self._pod = pod

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event.pop("color_message", None)  # uvicorn repeats the message with terminal colours
        event.setdefault("pod", self._pod)
        plain = {self._text(key): self._value(value, key) for key, value in event.items()}
        plain["event"] = str(plain.get("event", "")).rstrip()  # uvicorn ends some messages with a line break
        return plain

    def _value(self, value: object, key: str = "") -> PlainValue:
        if value is None or isinstance(value, bool):
            return value
        if names_secret(key):
            return MASK
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, Mapping):
            return {self._text(str(name)): self._value(each, str(name)) for name, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(each) for each in value]
        return self._text(str(value), LONGEST_TRACEBACK_CHARS if key in _TRACEBACKS else LONGEST_VALUE_CHARS)

    def _text(self, text: str, limit: int = LONGEST_VALUE_CHARS) -> str:
        return self._secrets.redact(text, limit)


def json_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One JSON object in ASCII, with escapes for all other characters: lossless, and harmless for a terminal."""
    ordered = {key: event[key] for key in _FIRST if key in event} | dict(event)
    return json.dumps(ordered, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _printable(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Escapes what is not printable, and indents tracebacks: none of their lines can look like an event."""
    shown: EventDict = {}
    for key, value in event.items():
        if key in _TRACEBACKS:
            shown[key] = "\n".join(f"    {escape_unprintable(line)}" for line in str(value).splitlines())
        else:
            shown[key] = escape_unprintable(value) if isinstance(value, str) else value
    return shown


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines. An error never reaches the caller."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the library's name)
        """Silent: the default prints the message and its arguments, with secrets, to stderr.

        After a broken pipe, the rest of the stream's buffer would be written at exit, and make the exit code 120:
        https://docs.python.org/3/library/signal.html#note-on-sigpipe
        """
        if isinstance(sys.exc_info()[1], BrokenPipeError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)


def _wants_colors(stream: TextIO) -> bool:
    # https://no-color.org
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _log_uncaught(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_value is not None and not isinstance(uncaught.exc_value, SystemExit):
        name = uncaught.thread.name if uncaught.thread else "?"
        log = logging.getLogger(__name__)
        log.error("A thread ended with an exception", extra={"thread_name": name}, exc_info=uncaught.exc_value)


def _log_unraisable(unraisable: Any) -> None:
    fields = {"where": unraisable.err_msg or "destructor or callback"}
    log = logging.getLogger(__name__)
    log.error("An exception could not be raised where it occurred", extra=fields, exc_info=unraisable.exc_value)
