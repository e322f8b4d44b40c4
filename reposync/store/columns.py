"""Column types that behave the same on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import JSON, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator

NUL_SYMBOL = "␀"
PATH_KEY_CHARS = 512


def storable(text: str) -> str:
    """`text` as every database takes it. Paths, file names and messages come from repositories, and may hold a NUL
    (PostgreSQL refuses it) or a lone surrogate (no driver can encode it); both become visible stand-ins."""
    if text.isascii():
        return text.replace("\0", NUL_SYMBOL) if "\0" in text else text
    return text.replace("\0", NUL_SYMBOL).encode("utf-8", "backslashreplace").decode()


def path_key(path: str) -> str:
    """A path as part of a primary key: itself up to 512 characters, otherwise its beginning and a hash (longer than any
    short path, so never equal to one). PostgreSQL refuses index entries over 2,704 bytes, and git allows any length."""
    path = storable(path)
    if len(path) <= PATH_KEY_CHARS:
        return path
    return path[:PATH_KEY_CHARS] + hashlib.sha256(path.encode()).hexdigest()


class SafeText(TypeDecorator[str]):
    """Text of any origin (see `storable`)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


def known_fields(record: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored keys that the dataclass `record` has; a newer program may have written more."""
    return {each.name: stored[each.name] for each in fields(record) if each.name in stored}


def json_column_type() -> JSON:
    """JSON as text. Not JSONB: that one refuses an escaped NUL, and `json.dumps` escapes whatever is not ASCII."""
    return JSON(none_as_null=True)
