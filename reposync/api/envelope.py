"""The shape of every error that leaves over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PAGE_KEY = "reposync.error_page"
"""Where the scope of a request may have an `ErrorPage`."""


class ErrorBody(BaseModel):
    """`code` is stable, `message` a sentence for a person, `details` whatever a program may want to know besides."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    error: ErrorBody


class ErrorResponse(Response):
    """The envelope, or a page about the same where it is a page that was asked for. Decided where the answer begins:
    errors are met in many places, and only the request knows who reads them."""

    media_type = "application/json"

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any],
        headers: Mapping[str, str],
        page_message: str | None = None,
    ) -> None:
        super().__init__(envelope(code, message, details), status, {"Cache-Control": "no-store", **headers})
        self.code, self.extra_headers = code, headers
        self.page_message = message if page_message is None else page_message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        show: ErrorPage | None = scope.get(PAGE_KEY)
        page = await show(scope, self) if show is not None else None
        if page is not None:
            await page(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


ErrorPage = Callable[[Scope, ErrorResponse], Awaitable[Response | None]]
"""The page about an error; None for who reads no pages."""


def envelope(code: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    # The standard library's JSON: a message may quote what a client sent, half surrogates and all.
    return json.dumps({"error": {"code": code, "message": message, "details": dict(details or {})}}).encode()


def error_answer(
    status: int,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    page_message: str | None = None,
) -> Response:
    """`page_message`: what a page says in place of `message`."""
    return ErrorResponse(status, code, message, details or {}, headers or {}, page_message)
