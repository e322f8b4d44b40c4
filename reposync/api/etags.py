"""ETags: 304 without a body if nothing has changed, and changes on condition that nobody else has made one.

All tags are weak: the plain and the compressed response have the same one (RFC 9110, 8.8.1)."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')

ETAG_ANSWERS: dict[int | str, dict[str, Any]] = {
    304: {"description": "Unchanged since the response with the ETag in `If-None-Match`; without a body"}
}
"""`responses` of routes that answer with `conditional`."""
# `no-cache` lets a cache keep it, but check each time; `private` because a token or a session was required.
CACHING = {"Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}


def conditional(request: Request, document: object, *, version: str | None = None) -> Response:
    """`document`, a model or anything that JSON can express, or 304 if the client has it already. `version`: see
    `etag_of`."""
    return conditional_body(request, to_json(document), "application/json", version=version)


def conditional_body(
    request: Request, body: bytes, media_type: str, *, version: str | None = None, same_if: bytes | None = None
) -> Response:
    """As `conditional`, of any kind. `same_if`: what decides whether it has changed; None: the body."""
    headers = {"ETag": _tag(body if same_if is None else same_if, version), **CACHING}
    # The weak comparison of RFC 9110, 13.1.2.
    given = ", ".join(request.headers.getlist("if-none-match"))
    if given.strip() == "*" or headers["ETag"].removeprefix("W/") in _TAG.findall(given):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)


def etag_of(document: object, version: str | None = None) -> str:
    """The part before the dash is `version`, which depends on what clients may change: figures that every sync updates
    must not refuse their changes."""
    return _tag(to_json(document), version)


def versions_of(if_match: str) -> frozenset[str] | None:
    """The versions in the ETags of `If-Match`; None: any. Weak tags count, against RFC 9110, 13.1.1: ours are, and
    proxies that compress would make them so; the tag stands for the document, not for its bytes."""
    if if_match.strip() == "*":
        return None
    return frozenset(tag[1:].partition("-")[0] for tag in _TAG.findall(if_match))


def _tag(body: bytes, version: str | None) -> str:
    prefix = f"{version}-" if version is not None else ""
    return f'W/"{prefix}{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
