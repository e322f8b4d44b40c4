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
from datetime import date
from itertools import islice
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
_MOST_ITEMS = 100
_DEEPEST = 6

PlainValue = str | int | float | bool | None | list["PlainValue"] | dict[str, "PlainValue"]
_FIRST = ("timestamp", "level", "logger", "event", "pod", "run", "repository", "attempt")
_EVENT_CHARS = 40
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
            Sanitize(secrets, pod),
            json_line if log_format == "json" else ConsoleLine(colors=_wants_colors(stream)),
        ],
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *everyone,
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


class Sanitize:
    """Processor: names the pod; makes every value text, number, boolean, None, or a list or dict of them; masks secrets
    and values under keys that name one; cuts what is long, deep or many."""

    def __init__(self, secrets: Secrets, pod: str) -> None:
        self._secrets = secrets
        self._pod = pod

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event.pop("color_message", None)  # uvicorn repeats the message with terminal colours
        event.setdefault("pod", self._pod)
        plain: dict[str, Any] = {
            self._text(str(key)): self._secrets.redact(value, LONGEST_TRACEBACK_CHARS)
            if key in _TRACEBACKS and isinstance(value, str)
            else self._value(value, str(key))
            for key, value in event.items()
        }
        plain["event"] = str(plain.get("event", "")).rstrip()  # uvicorn ends some messages with a line break
        return plain

    def _value(self, value: object, key: str = "", depth: int = 0) -> PlainValue:
        if value is None or isinstance(value, bool):
            return value
        if names_secret(key):
            return MASK
        if isinstance(value, int | float):
            # A secret may consist of digits.
            text = str(value)
            redacted = self._secrets.redact(text)
            return value if redacted == text and math.isfinite(value) else redacted
        if isinstance(value, bytes):
            return self._text(value[: 2 * LONGEST_VALUE_CHARS].decode("utf-8", "backslashreplace"))
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._text(value.isoformat() if isinstance(value, date) else _as_text(value))
        if depth >= _DEEPEST:
            return f"({type(value).__name__})"
        more = len(value) - _MOST_ITEMS
        if isinstance(value, Mapping):
            names = {_as_text(name): each for name, each in islice(value.items(), _MOST_ITEMS)}
            mapping = {self._text(name): self._value(each, name, depth + 1) for name, each in names.items()}
            return mapping | ({"...": f"{more} more"} if more > 0 else {})
        items = [self._value(each, depth=depth + 1) for each in islice(value, _MOST_ITEMS)]
        return [*items, f"... {more} more"] if more > 0 else items

    def _text(self, text: str) -> str:
        return self._secrets.redact(text, LONGEST_VALUE_CHARS)


def _as_text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 (a value without a text must not cost the line)
        return f"({type(value).__name__} whose text raises {type(error).__name__})"


def json_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One JSON object in ASCII, with escapes for all other characters: lossless, and harmless for a terminal."""
    return json.dumps(_ordered(event), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class ConsoleLine:
    """Processor: time, level, event, logger and fields in one line; a traceback below it, indented, so that none of its
    lines can look like an event."""

    def __init__(self, *, colors: bool) -> None:
        styles = ConsoleRenderer.get_default_column_styles(colors)
        self._levels, self._bright, self._dim, self._reset = (
            ConsoleRenderer.get_default_level_styles(colors),
            styles.bright,
            styles.kv_key,
            styles.reset,
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        below = [event.pop(key) for key in _TRACEBACKS if event.get(key)]
        fields = _ordered(event)
        time, level, name, what = (
            escape_unprintable(str(fields.pop(key, ""))) for key in ("timestamp", "level", "logger", "event")
        )
        line = (
            f"{time} [{self._levels.get(level, '')}{level:<8}{self._reset}] "
            f"{self._bright}{what:<{_EVENT_CHARS}}{self._reset} [{name}]"
        )
        pairs = [f"{self._dim}{escape_unprintable(key)}{self._reset}={_shown(value)}" for key, value in fields.items()]
        indented = (f"    {escape_unprintable(row)}" for text in below for row in str(text).splitlines())
        return "\n".join([" ".join([line, *pairs]), *indented])


def _ordered(event: EventDict) -> dict[str, Any]:
    return {key: event[key] for key in _FIRST if key in event} | dict(event)


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return escape_unprintable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    text = escape_unprintable(value)
    return f'"{text}"' if not text or set(text) & {" ", "=", '"'} else text


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines. An error never reaches the caller."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            line = super().format(record)
        except Exception as error:  # noqa: BLE001 (a value's own code runs here: its str, its repr, its exception)
            template = _as_text(record.msg.get("event") if isinstance(record.msg, Mapping) else record.msg)
            plain = logging.LogRecord(record.name, record.levelno, "", 0, "%s", (template,), None)
            plain.formatting_error = type(error).__name__
            line = super().format(plain)
        # A stream whose encoding lacks a character gets an escape, not an exception.
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return line.encode(encoding, "backslashreplace").decode(encoding)

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
