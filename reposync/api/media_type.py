"""Bodies of the API are JSON, and say so."""

from __future__ import annotations

from email.message import Message
from typing import Any

from fastapi import Depends, Request

from reposync.errors import RepoSyncError


class MediaTypeUnsupported(RepoSyncError):
    """The body does not say that it is JSON: send `Content-Type: application/json`."""

    code = "MEDIA_TYPE_UNSUPPORTED"
    status = 415


async def _says_json(request: Request) -> None:
    # Without a body, `curl -X POST -d ''` says that it is a form, too.
    if _is_json(request.headers.get("content-type", "")) or not await request.body():
        return
    raise MediaTypeUnsupported(
        "The body does not say that it is JSON.", remedy="Send the header `Content-Type: application/json`."
    )


TAKES_JSON: Any = Depends(_says_json)
"""A dependency of routes with a body, behind the one that asks for the role."""


def _is_json(content_type: str) -> bool:
    """`application/json`, also with parameters, and `application/*+json`: what FastAPI reads as JSON."""
    said = Message()
    said["content-type"] = content_type
    kind = said.get_content_subtype()
    return said.get_content_maintype() == "application" and (kind == "json" or kind.endswith("+json"))
