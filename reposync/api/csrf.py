"""CSRF tokens: what every change by a browser carries, because a page of another site cannot know it."""

from __future__ import annotations

import hmac
import secrets

from fastapi import Request

from reposync.api.errors import CsrfRefused

CSRF_HEADER, CSRF_FIELD = "X-CSRF-Token", "csrf"
# Not multipart: uploaded files would be written to the disk of a server that then refuses them.
_FORM = "application/x-www-form-urlencoded"


def masked(token: str) -> str:
    """`token`, hex digits, behind a random mask: the sizes of compressed pages would reveal a constant one to whoever
    can add guesses to the page (BREACH)."""
    mask = secrets.token_bytes(len(token) // 2)
    return mask.hex() + _xor(mask, bytes.fromhex(token)).hex()


def unmasked(given: str) -> str:
    """Empty if `given` is no masked token."""
    half = len(given) // 2
    try:
        return _xor(bytes.fromhex(given[:half]), bytes.fromhex(given[half:])).hex()
    except ValueError:
        return ""


async def csrf_of(request: Request) -> str:
    """The masked token of the request, from the header or the form; empty if there is none."""
    if found := request.headers.get(CSRF_HEADER):
        return found
    field = (await request.form()).get(CSRF_FIELD) if is_form(request) else None
    return field if isinstance(field, str) else ""


def is_form(request: Request) -> bool:
    """Whether the CSRF token may be in the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


def check_csrf(given: str, expected: str) -> None:
    """`given` is masked, `expected` is not. In constant time. Raises CsrfRefused."""
    if not expected or not hmac.compare_digest(unmasked(given), expected):
        raise CsrfRefused(
            "This request does not prove that a page of this server sent it.",
            remedy=f"Reload the page. Programs send `Authorization: Bearer TOKEN`, and need no {CSRF_HEADER}.",
        )


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
