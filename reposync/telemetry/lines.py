"""An event as a line: JSON for machines, columns for people. Neither lets a value leave its place."""

from __future__ import annotations

import json
from typing import Any

from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, LogLevelColumnFormatter
from structlog.typing import EventDict, WrappedLogger

from reposync.telemetry.visible import visible

_FIRST = ("timestamp", "level", "logger", "event", "pod", "run", "repository", "attempt")
_EVENT_CHARS = 40
_TRACEBACKS = ("stack", "exception")


def json_line(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """One JSON object, in ASCII: any other character is an escape, so nothing is lost and no terminal minds."""
    return json.dumps(_ordered(event), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class ConsoleLine:
    """Processor: time, level, event, logger and the fields in one line; a traceback below it, indented, so that no line
    of a message in it can pass for an event."""

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
        fields = {visible(key): value for key, value in _ordered(event).items()}
        line = str(self._render(logger, method, fields))
        indented = (f"    {visible(row)}" for text in below for row in str(text).splitlines())
        return "\n".join([line, *indented])


def _ordered(event: EventDict) -> dict[str, Any]:
    return {key: event[key] for key in _FIRST if key in event} | dict(event)


def _text(value: object) -> str:
    return visible(str(value))


def _value(value: object) -> str:
    if isinstance(value, str):
        text = visible(value)
        return f'"{text}"' if not text or set(text) & {" ", "=", '"'} else text
    if isinstance(value, dict | list):
        return visible(json.dumps(value, ensure_ascii=False, allow_nan=False))
    return str(value)
