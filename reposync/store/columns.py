"""Column types that behave the same on SQLite and PostgreSQL, and the base class of the tables' records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, ClassVar, Self, cast

from pydantic import ConfigDict
from sqlalchemy import JSON, MetaData, Row, Table, Text, inspect
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

from reposync.store.status import known

NUL_SYMBOL = "␀"
PATH_KEY_CHARS = 512
MAX_MESSAGE_CHARS = 10_000

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Record(SQLModel):
    """A row of a table, as it was read; never refreshed. Its fields are the columns: `tables` makes the table of it."""

    metadata = metadata
    model_config = ConfigDict(frozen=True, defer_build=True)  # type: ignore[assignment]  # SQLModel adds keys of its own to the type

    @classmethod
    def of(cls, row: Row[Any]) -> Self:
        """Not validated: the database did that. Columns that are no fields are left out."""
        return cast(Self, cls.model_construct(_fields_set=set(), **row._mapping))


def table_of(rows: type[SQLModel]) -> Table:
    """The table that the record `rows` declares."""
    table: Table = inspect(rows).local_table
    return table


def sanitize_text(text: str) -> str:
    """`text` as every database accepts it. Paths, file names and messages come from repositories, and may hold a NUL
    (PostgreSQL refuses it) or a lone surrogate (no driver can encode it); both are replaced by visible characters."""
    if text.isascii():
        return text.replace("\0", NUL_SYMBOL) if "\0" in text else text
    return text.replace("\0", NUL_SYMBOL).encode("utf-8", "backslashreplace").decode()


def truncate(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def path_key(path: str) -> str:
    """A path as part of a primary key: itself up to 512 characters, otherwise its beginning and a hash (longer than any
    short path, so never equal to one). PostgreSQL refuses index entries over 2,704 bytes, and git allows any length."""
    path = sanitize_text(path)
    if len(path) <= PATH_KEY_CHARS:
        return path
    return path[:PATH_KEY_CHARS] + hashlib.sha256(path.encode()).hexdigest()


def known_fields(record: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored keys that the dataclass `record` has; a newer program may have written more."""
    return {each.name: stored[each.name] for each in fields(record) if each.name in stored}


class SafeText(TypeDecorator[str]):
    """Text of any origin (see `sanitize_text`)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else sanitize_text(value)


class Word(SafeText):
    """A member of `words`; a word that only a newer program knows is read as plain text."""

    words: ClassVar[type[StrEnum]]

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else known(self.words, value)


class JsonText(JSON):
    """JSON as text. Not JSONB, which refuses an escaped NUL; `json.dumps` escapes whatever is not ASCII."""

    def __init__(self) -> None:
        super().__init__(none_as_null=True)
