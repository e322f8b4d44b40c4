"""Structured logs: one line per event, from structlog and the standard library, without secrets."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, Literal, TextIO

import structlog
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, LogLevelColumnFormatter
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
            _Pod(pod),
            Sanitize(secrets),
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
    """Format like the standard library; arguments that do not fit become a field, and not an exception."""
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


class Sanitize:
    """Processor: makes every value text, number, boolean, None, or a list or dict of them; masks secrets and values
    under keys that name one; cuts what is long, deep or many."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        # uvicorn repeats the message with terminal colours.
        event.pop("color_message", None)
        return {self._text(str(key)): self._field(str(key), value) for key, value in event.items()}

    def _field(self, key: str, value: object) -> PlainValue:
        if key in ("exception", "stack") and isinstance(value, str):
            return self._secrets.redact(value, LONGEST_TRACEBACK_CHARS)
        plain = self._value(value, key, depth=0)
        # uvicorn ends some messages with a line break.
        return plain.rstrip() if key == "event" and isinstance(plain, str) else plain

    def _value(self, value: object, key: str | None, depth: int) -> PlainValue:
        if value is None or isinstance(value, bool):
            return value
        if key is not None and names_secret(key):
            return MASK
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float):
            # A secret may consist of digits.
            text = str(value)
            redacted = self._secrets.redact(text)
            if redacted != text or not math.isfinite(value):
                return redacted
            return int(value) if isinstance(value, int) else float(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return self._text(bytes(value[: 2 * LONGEST_VALUE_CHARS]).decode("utf-8", "backslashreplace"))
        if depth >= _DEEPEST:
            return f"({type(value).__name__})"
        if isinstance(value, Mapping):
            pairs = list(value.items())
            plain = {
                self._text(_as_text(name)): self._value(each, _as_text(name), depth + 1)
                for name, each in pairs[:_MOST_ITEMS]
            }
            if len(pairs) > _MOST_ITEMS:
                plain["..."] = f"{len(pairs) - _MOST_ITEMS} more"
            return plain
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(value, depth)
        if isinstance(value, date):
            return value.isoformat()
        return self._text(_as_text(value))

    def _items(self, values: Iterable[object], depth: int) -> PlainValue:
        several = list(values)
        plain = [self._value(each, None, depth + 1) for each in several[:_MOST_ITEMS]]
        return plain if len(several) <= _MOST_ITEMS else [*plain, f"... {len(several) - _MOST_ITEMS} more"]

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

        def plain(style: str, *, width: int = 0, prefix: str = "", postfix: str = "") -> KeyValueColumnFormatter:
            return KeyValueColumnFormatter(None, style, styles.reset, _text, width, prefix, postfix)

        self._render = ConsoleRenderer(
            columns=[
                Column("timestamp", plain(styles.timestamp)),
                Column(
                    "level", LogLevelColumnFormatter(ConsoleRenderer.get_default_level_styles(colors), styles.reset)
                ),
                Column("event", plain(styles.bright, width=_EVENT_CHARS)),
                Column("logger", plain(styles.bright + styles.logger_name, prefix="[", postfix="]")),
                Column("", KeyValueColumnFormatter(styles.kv_key, styles.kv_value, styles.reset, _value)),
            ],
            sort_keys=False,
        )

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> str:
        below = [event.pop(key) for key in _TRACEBACKS if event.get(key)]
        fields = {escape_unprintable(key): value for key, value in _ordered(event).items()}
        line = str(self._render(logger, method, fields))
        indented = (f"    {escape_unprintable(row)}" for text in below for row in str(text).splitlines())
        return "\n".join([line, *indented])


def _ordered(event: EventDict) -> dict[str, Any]:
    return {key: event[key] for key in _FIRST if key in event} | dict(event)


def _text(value: object) -> str:
    return escape_unprintable(str(value))


def _value(value: object) -> str:
    if isinstance(value, str):
        text = escape_unprintable(value)
        return f'"{text}"' if not text or set(text) & {" ", "=", '"'} else text
    if isinstance(value, dict | list):
        return escape_unprintable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return str(value)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines. An error never reaches the caller."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            line = super().format(record)
        except Exception as error:  # noqa: BLE001 (a value's own code runs here: its str, its repr, its exception)
            line = super().format(_unformattable(record, error))
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


def _unformattable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """A replacement for a record that cannot be formatted, for instance with a wrong number of arguments."""
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
