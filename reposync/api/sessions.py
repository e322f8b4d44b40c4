"""Logins of browsers: a signed cookie, so that every pod knows the sessions of every other. Kept is only which ones
were signed out.

Everything is derived from the token that somebody logged in with. A session ends with its token, on all pods at once;
other tokens may come and go.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from itsdangerous import BadSignature, TimestampSigner

from reposync.config.settings import ApiToken, TokenRole

SESSION_SECONDS = 12 * 3600

# Clocks of pods differ: a session that another pod began a moment from now is no forgery.
_SKEW_SECONDS = 60.0
_LONGEST_COOKIE_CHARS = 512


@dataclass(frozen=True, slots=True)
class Session:
    """`id`: names it without giving its cookie away. `csrf`: what forms and scripts of this session's pages send along;
    no other site can know it."""

    id: str
    role: TokenRole
    key_id: str
    csrf: str


class EndedSessions(Protocol):
    """Which sessions were signed out before their time was over, on any pod."""

    async def end(self, session_id: str) -> None:
        """From now on. Raises StoreUnavailable."""

    async def has_ended(self, session_id: str) -> bool:
        """Raises StoreUnavailable: who cannot be told is not let in."""


class EndedInMemory:
    """Of a server that has no database behind it."""

    def __init__(self) -> None:
        self._ended: set[str] = set()

    async def end(self, session_id: str) -> None:
        self._ended.add(session_id)

    async def has_ended(self, session_id: str) -> bool:
        return session_id in self._ended


class _Key:
    """Of one token. Nothing here gives the token away."""

    def __init__(self, token: ApiToken) -> None:
        secret = token.secret.get_secret_value().encode()
        self.role = token.role
        self.id = key_id_of(token)
        self._csrf, self._name = derived(secret, "csrf"), derived(secret, "session name")
        self._signer = TimestampSigner(
            derived(secret, "session"), salt=b"reposync.session", key_derivation="hmac", digest_method=hashlib.sha256
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
        """The cookie's value for somebody who has just shown the token of that key."""
        return self._keys[key_id].begin()

    def find(self, cookie: str) -> Session | None:
        """None for one that is forged, over, or of a token that is not valid any more. It may have been signed out."""
        if len(cookie) > _LONGEST_COOKIE_CHARS:
            return None
        key_id, _, signed = cookie.partition(".")
        key = self._keys.get(key_id)
        return key.find(signed) if key is not None else None


def key_id_of(token: ApiToken) -> str:
    """A name of the token that does not give it away; the same on every pod."""
    return derived(token.secret.get_secret_value().encode(), "session id").hex()[:16]


def derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes that are good for one purpose alone, as HKDF's last step (RFC 5869) makes them of a strong secret."""
    return hmac.digest(secret, f"reposync {purpose} 1".encode(), hashlib.sha256)
