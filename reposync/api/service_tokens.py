"""Service tokens of the configuration, and the sessions of browsers that log in with one."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from itsdangerous import BadSignature, TimestampSigner

from reposync.config.settings import ApiToken
from reposync.operations.core import Role
from reposync.visible import EVERYTHING, NOTHING, Visible
from reposync.wildmatch import PathPatterns

SESSION_SECONDS = 12 * 3600
# Clocks of pods differ: a session may have begun on another pod a moment from now.
_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Session:
    """`id`: identifies the session without revealing its cookie."""

    id: str
    token: Token


class Token:
    """A configured token, and the sessions that begin with it. The keys derived from it do not reveal it, and neither
    does `key_id`, which is the same on every pod."""

    def __init__(self, token: ApiToken, number: int) -> None:
        secret = token.secret.get_secret_value().encode()
        self.role = Role.READ if token.role == "read" else Role.OPERATE
        self.name = token.name or f"token {number}"
        self._repositories = None if token.repositories is None else PathPatterns(token.repositories)
        self._names: Mapping[str, str] | None = None
        self._visible = EVERYTHING if token.repositories is None else NOTHING
        self.key_id = _derived(secret, "session id").hex()[:16]
        self.digest = digest(token.secret.get_secret_value())
        self._name = _derived(secret, "session name")
        self._signer = TimestampSigner(
            _derived(secret, "session"), salt=b"reposync.session", key_derivation="hmac", digest_method=hashlib.sha256
        )

    async def visible(self, names: Names) -> Visible:
        """The repositories that it is for, as they are registered now. Raises Starting, StoreUnavailable."""
        if self._repositories is not None and (found := await names()) is not self._names:
            shown = {each for each, name in found.items() if self._repositories.match(name) is not None}
            self._names, self._visible = found, Visible(frozenset(shown))
        return self._visible

    def begin(self) -> str:
        return f"{self.key_id}.{self._signer.sign(secrets.token_urlsafe(16)).decode()}"

    def session(self, signed: str) -> Session | None:
        try:
            nonce, begun_at = self._signer.unsign(signed, return_timestamp=True)
        except BadSignature:
            return None
        if not -_SKEW_SECONDS <= time.time() - begun_at.timestamp() <= SESSION_SECONDS:
            return None
        return Session(hmac.digest(self._name, nonce, hashlib.sha256).hex()[:32], self)


Names = Callable[[], Awaitable[Mapping[str, str]]]
"""The name of each registered repository, by id: the same mapping until one changes."""


async def no_names() -> Mapping[str, str]:
    return {}


def digest(secret: str) -> bytes:
    """A digest that has the same length for every secret, so that comparing two does not reveal their lengths."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, as in the last step of HKDF (RFC 5869) for a strong secret."""
    return hmac.digest(secret, f"reposync {purpose} 1".encode(), hashlib.sha256)
