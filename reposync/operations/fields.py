"""Types of arguments and documents that several operations have."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from reposync.errors import UsageError
from reposync.operations.core import Arguments

MAX_PAGE_ITEMS = 200
MAX_NAME_CHARS = 255
MAX_PATTERN_CHARS = 1_000
MAX_PATH_CHARS = 4_096
MAX_CURSOR_CHARS = 3_100
"""A path is stored as 512 characters and a hash of 64; a character takes at most four bytes, base64 a third more."""

Item = TypeVar("Item")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _plain(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not contain a line break, another control character or half of a surrogate pair")
    return text


def _storable_moment(moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None
    if not 1970 <= moment.year <= 9998:
        raise ValueError("must be between 1970 and 9998")
    return moment


PlainText = Annotated[str, AfterValidator(_plain)]
Moment = Annotated[AwareDatetime, AfterValidator(_storable_moment)]
Repositories = Annotated[
    list[Annotated[PlainText, Field(min_length=1, max_length=MAX_NAME_CHARS)]],
    Field(max_length=100, description="Only in this one; repeat it for several.", examples=[["payments-api"]]),
]
PathPattern = Annotated[
    PlainText | None,
    Field(
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="Only files that match this gitignore pattern.",
        examples=["src/**/*.py"],
    ),
]
Language = Annotated[
    PlainText | None,
    Field(min_length=1, max_length=50, description="Only in this language, by any of its names.", examples=["python"]),
]
Cursor = Annotated[
    PlainText | None, Field(max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the previous page.")
]


class PageArguments(Arguments):
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: Cursor = None


class NamesArguments(PageArguments):
    name: PlainText | None = Field(
        None, max_length=MAX_NAME_CHARS, description="A part of the name, in upper or lower case."
    )


class Page(BaseModel, Generic[Item]):
    """`next_cursor` is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None


def cursor_after(key: str) -> str:
    """The opaque cursor of the page after the item with `key`, by which the list is sorted."""
    return base64.urlsafe_b64encode(key.encode("utf-8", "replace")).decode().rstrip("=")


def key_before(cursor: str) -> str:
    """The inverse of `cursor_after`. Raises UsageError for anything else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        key = "\0"
    if "\0" in key:
        raise invalid_cursor()
    return key


def invalid_cursor() -> UsageError:
    return UsageError("This cursor is not valid.", remedy="Use `next_cursor` of the previous page.")


def page_of_names(names: Iterable[str], arguments: NamesArguments) -> tuple[list[str], str | None]:
    """The names with `arguments.name` in them that come after its cursor, sorted, and the next cursor. Raises
    UsageError."""
    after = None if arguments.cursor is None else key_before(arguments.cursor)
    part = (arguments.name or "").casefold()
    matching = sorted(name for name in names if (after is None or name > after) and part in name.casefold())
    has_more = len(matching) > arguments.limit
    return matching[: arguments.limit], cursor_after(matching[arguments.limit - 1]) if has_more else None
