"""Where a page of a list goes on, as text that nobody needs to understand."""

from __future__ import annotations

import base64
import binascii

from reposync.errors import UsageError

MAX_CURSOR_CHARS = 3_100
"""The path of a file is kept as 512 characters and a hash of 64; a character takes four bytes at most."""


def cursor_after(key: str) -> str:
    """`key`: of the last item of a page of a list that is sorted by it."""
    return base64.urlsafe_b64encode(key.encode("utf-8", "replace")).decode().rstrip("=")


def key_before(cursor: str) -> str:
    """The inverse. Raises UsageError for what is none of ours."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        key = "\0"
    if "\0" in key:
        raise UsageError("That cursor is not one of ours.", remedy="Use `next_cursor` of the page before.")
    return key
