"""An event's fields as plain values without secrets: what the line makers get."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date

from structlog.typing import EventDict, WrappedLogger

from reposync.telemetry.redaction import MASK, Secrets, names_secret

LONGEST_VALUE_CHARS = 4_000
LONGEST_TRACEBACK_CHARS = 20_000
_MOST_ITEMS = 100
_DEEPEST = 6

PlainValue = str | int | float | bool | None | list["PlainValue"] | dict[str, "PlainValue"]


class Plain:
    """Processor: every value becomes text, number, truth value, None, or a list or dict of them; secrets are masked,
    also under keys that name one; what is long, deep or many is cut."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        # uvicorn says everything a second time, with terminal colours.
        event.pop("color_message", None)
        return {self._text(str(key)): self._field(str(key), value) for key, value in event.items()}

    def _field(self, key: str, value: object) -> PlainValue:
        if key in ("exception", "stack") and isinstance(value, str):
            return self._secrets.redact(value, LONGEST_TRACEBACK_CHARS)
        plain = self._value(value, key, depth=0)
        # uvicorn ends some of its messages with a line break.
        return plain.rstrip() if key == "event" and isinstance(plain, str) else plain

    def _value(self, value: object, key: str | None, depth: int) -> PlainValue:
        if value is None or isinstance(value, bool):
            return value
        if key is not None and names_secret(key):
            return MASK
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float):
            # A secret may be made of digits.
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
                self._text(_spoken(name)): self._value(each, _spoken(name), depth + 1)
                for name, each in pairs[:_MOST_ITEMS]
            }
            if len(pairs) > _MOST_ITEMS:
                plain["..."] = f"{len(pairs) - _MOST_ITEMS} more"
            return plain
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(value, depth)
        if isinstance(value, date):
            return value.isoformat()
        return self._text(_spoken(value))

    def _items(self, values: Iterable[object], depth: int) -> PlainValue:
        several = list(values)
        plain = [self._value(each, None, depth + 1) for each in several[:_MOST_ITEMS]]
        return plain if len(several) <= _MOST_ITEMS else [*plain, f"... {len(several) - _MOST_ITEMS} more"]

    def _text(self, text: str) -> str:
        return self._secrets.redact(text, LONGEST_VALUE_CHARS)


def _spoken(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 (a value that cannot be shown must not cost the line)
        return f"({type(value).__name__} whose text raises {type(error).__name__})"
