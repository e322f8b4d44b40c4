"""Browser sessions: signed cookies that every pod can check, sign-out, and CSRF protection.

All keys are derived from the token that was used to log in. A session ends with its token, on all pods at once;
changes of other tokens do not affect it. Only signed-out sessions are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.datastructures import Headers
from starlette.requests import Request

from reposync.api.errors import CsrfRefused
from reposync.api.hosts import split_host
from reposync.config.settings import ApiToken, TokenRole

SESSION_SECONDS = 12 * 3600
CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

# Clocks of pods differ: a session may have begun on another pod a moment from now.
_SKEW_SECONDS = 60.0
_MAX_COOKIE_CHARS = 512
# Not multipart: uploaded files would be written to the disk of a server that then refuses them.
_FORM = "application/x-www-form-urlencoded"
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Session:
    """`id`: identifies the session without revealing its cookie. `csrf`: what its pages send with every change; other
    sites cannot know it."""

    id: str
    role: TokenRole
    key_id: str
    csrf: str


class EndedSessions(Protocol):
    """Sessions that were signed out before they expired, on any pod."""

    async def end(self, session_id: str) -> None:
        """Raises StoreUnavailable."""

    async def has_ended(self, session_id: str) -> bool:
        """Raises StoreUnavailable: nobody is let in if this cannot be checked."""


class EndedInMemory:
    """For a server without a database."""

    def __init__(self) -> None:
        self._ended: set[str] = set()

    async def end(self, session_id: str) -> None:
        self._ended.add(session_id)

    async def has_ended(self, session_id: str) -> bool:
        return session_id in self._ended


class _Key:
    """The keys derived from one token. They do not reveal the token."""

    def __init__(self, token: ApiToken) -> None:
        secret = token.secret.get_secret_value().encode()
        self.role = token.role
        self.id = key_id_of(token)
        self._csrf, self._name = _derived(secret, "csrf"), _derived(secret, "session name")
        self._signer = TimestampSigner(
            _derived(secret, "session"), salt=b"reposync.session", key_derivation="hmac", digest_method=hashlib.sha256
        )

    def begin(self) -> str:
        return f"{self.id}.{self._signer.sign(secrets.token_urlsafe(16)).decode()}"

    def find(self, signed: str) -> Session | None:
        try:
            nonce, begun_at = self._signer.unsign(signed, return_timestamp=True)
        except BadSignature:
            return None
        if not -_SKEW_SECONDS <= time.time() - begun_at.timestamp() <= SESSION_SECONDS:
            return None
        session_id = hmac.digest(self._name, nonce, hashlib.sha256).hex()[:32]
        return Session(session_id, self.role, self.id, hmac.digest(self._csrf, nonce, hashlib.sha256).hex())


class Sessions:
    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        self._keys = {key.id: key for key in map(_Key, tokens)}

    def begin(self, key_id: str) -> str:
        """The cookie of a new session for the token with that key."""
        return self._keys[key_id].begin()

    def find(self, cookie: str) -> Session | None:
        """None if it is forged, expired, or of a token that is no longer valid. It may have been signed out."""
        if len(cookie) > _MAX_COOKIE_CHARS:
            return None
        key_id, _, signed = cookie.partition(".")
        key = self._keys.get(key_id)
        return key.find(signed) if key is not None else None


class LoginForms:
    """CSRF tokens of the login form, which has no session yet: derived from a cookie that was set with the form."""

    def __init__(self, tokens: Iterable[ApiToken]) -> None:
        held = sorted(token.secret.get_secret_value() for token in tokens)
        # Nobody logs in if there are no tokens.
        self._key = _derived("\n".join(held).encode(), "login form") if held else secrets.token_bytes(32)

    def cookie(self, current: str | None) -> str:
        """The current cookie, if valid: the form may be open in two tabs."""
        return current if current and re.fullmatch(r"[\w-]{22}", current) else secrets.token_urlsafe(16)

    def csrf(self, cookie: str) -> str:
        return hmac.digest(self._key, _bytes(cookie), hashlib.sha256).hex()


def key_id_of(token: ApiToken) -> str:
    """Identifies the token without revealing it; the same on every pod."""
    return _derived(token.secret.get_secret_value().encode(), "session id").hex()[:16]


def is_cross_site(headers: Headers) -> bool:
    """Whether a page of another origin made a browser send this. False if no browser sent it.

    Pages cannot set `Sec-Fetch-Site`, but browsers send it to https and loopback only; `Origin` is part of every POST.
    `same-site` counts as another site: it is a different port of this machine, or a sibling subdomain.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        split = urlsplit(origin)
        name, port = split.hostname, split.port or _DEFAULT_PORTS.get(split.scheme)
    except ValueError:
        return True
    host = split_host(headers.get("host", ""))
    if name is None or host is None:
        return True
    return (name, port) != (host[0], host[1] or _DEFAULT_PORTS.get(split.scheme))


def is_form(request: Request) -> bool:
    """Whether the CSRF token may be in the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


async def csrf_of(request: Request) -> str:
    """The CSRF token of the request, from the header or the form; empty if there is none."""
    if found := request.headers.get(CSRF_HEADER):
        return found
    if not is_form(request):
        return ""
    field = (await request.form()).get(CSRF_FIELD)
    return field if isinstance(field, str) else ""


def check_csrf(given: str, expected: str) -> None:
    """In constant time. Raises CsrfRefused."""
    if not hmac.compare_digest(digest(given), digest(expected)):
        raise CsrfRefused(
            "This request does not prove that a page of this server sent it.",
            remedy=f"Reload the page. Programs send `Authorization: Bearer TOKEN`, and need no {CSRF_HEADER}.",
        )


def digest(secret: str) -> bytes:
    """Of the same length for every secret, so that comparing two does not reveal their lengths."""
    return hashlib.sha256(_bytes(secret)).digest()


def _derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, as in the last step of HKDF (RFC 5869) for a strong secret."""
    return hmac.digest(secret, f"reposync {purpose} 1".encode(), hashlib.sha256)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
