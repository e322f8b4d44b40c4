"""What every answer tells browsers to do with it, and not to."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message

_CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)

ALWAYS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: browsers then say `Origin: null` even in forms that are sent to their own page's server.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

# Unless the route says otherwise, as for static files.
_CACHE_CONTROL = "no-store"

_HSTS = "max-age=31536000"


def protect(message: Message, *, https: bool, alone: bool) -> None:
    """Add to the message that begins an answer what is missing. `alone`: the host's name is ours: under a path of it
    there are others, and whether they want https for ever is not for us to say."""
    headers = MutableHeaders(scope=message)
    for name, value in ALWAYS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", _CACHE_CONTROL)
    if https and alone:
        headers["Strict-Transport-Security"] = _HSTS
