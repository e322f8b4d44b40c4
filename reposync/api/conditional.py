"""Answers to those who ask again and again: an ETag, and 304 without a body where nothing has changed."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "It is as it was when the answer with the ETag of `If-None-Match` was given; without a body"}
}
"""For `responses` of routes that answer with `conditional`."""

ETAG_HEADER: dict[str, Any] = {
    "ETag": {"schema": {"type": "string"}, "description": "Send it as `If-None-Match` to ask whether anything changed."}
}


def conditional(request: Request, shown: object) -> Response:
    """`shown`, a model or a dataclass, as JSON, or 304 where the client says that it has just that already."""
    body = to_json(shown)
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    # `no-cache` lets a cache keep it, but ask each time; `private` because of the token that was needed.
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}
    if _matches(", ".join(request.headers.getlist("if-none-match")), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _matches(asked: str, tag: str) -> bool:
    # The weak comparison of RFC 9110, 13.1.2: a proxy that compresses makes our tags weak ones.
    return asked.strip() == "*" or tag in _TAG.findall(asked)
