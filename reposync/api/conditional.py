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


def conditional(request: Request, shown: object, *, changeable: object = None) -> Response:
    """`shown`, a model or a dataclass, as JSON, or 304 where the client says that it has just that already.
    `changeable`: see `tag_of`."""
    body = to_json(shown)
    tag = _tag(body, changeable)
    # `no-cache` lets a cache keep it, but ask each time; `private` because of the token that was needed.
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}
    if matches(", ".join(request.headers.getlist("if-none-match")), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def tag_of(shown: object, changeable: object = None) -> str:
    """The ETag of `shown`. The part before its dash is of `changeable` alone, what a client may change of it: figures
    that move by themselves, as those of a repository do with every sync, must not refuse a change of something else."""
    return _tag(to_json(shown), changeable)


def still_is(if_match: str, changeable: object) -> bool:
    """Whether what a client may change is as it was when it got the ETag that it sends. Weak ones count, against RFC
    9110, 13.1.1: a proxy that compresses makes ours weak, and its clients could change nothing."""
    mine = _digest(to_json(changeable), 8)
    return if_match.strip() == "*" or any(tag[1:].partition("-")[0] == mine for tag in _TAG.findall(if_match))


def _tag(body: bytes, changeable: object) -> str:
    before = f"{_digest(to_json(changeable), 8)}-" if changeable is not None else ""
    return f'"{before}{_digest(body, 16)}"'


def _digest(content: bytes, size_bytes: int) -> str:
    return hashlib.blake2b(content, digest_size=size_bytes).hexdigest()


def matches(asked: str, tag: str) -> bool:
    # The weak comparison of RFC 9110, 13.1.2: a proxy that compresses makes our tags weak ones.
    return asked.strip() == "*" or tag in _TAG.findall(asked)
