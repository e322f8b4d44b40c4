"""The shape of every error that leaves over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response


class ErrorBody(BaseModel):
    """`code` is stable, `message` a sentence for a person, `details` whatever a program may want to know besides."""

    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    error: ErrorBody


def envelope(code: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    # The standard library's JSON: a message may quote what a client sent, half surrogates and all.
    return json.dumps({"error": {"code": code, "message": message, "details": dict(details or {})}}).encode()


def error_answer(
    status: int,
    code: str,
    message: str,
    details: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Response(
        envelope(code, message, details),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )
