"""Secrets that this program makes, and what is sealed with them.

The database keeps a digest of such a secret, and a key that is wrapped with it: whoever has only the database can
neither use the one nor open the other."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

KEY_BYTES = 32
_NONCE_BYTES = 12


class SealBroken(Exception):
    """The key is not that of the seal, or what was sealed has been changed."""


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def new_secret(prefix: str) -> str:
    """256 random bits. By its prefix, programs that look for leaked secrets, and this one, know what it is."""
    return prefix + secrets.token_urlsafe(KEY_BYTES)


def digest_of(secret: str) -> str:
    """What the database knows a secret by. Not slowed down: nobody can try 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(secret: str, purpose: str) -> bytes:
    """A key for one purpose, from a secret that is strong itself: the last step of HKDF (RFC 5869)."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), f"reposync {purpose} 1".encode(), hashlib.sha256)


def seal(key: bytes, content: bytes, about: str) -> str:
    """AES-256-GCM with a random nonce. `about`: which row it belongs to; in any other one it does not open."""
    # 30 ms, and only a daemon where people sign in needs it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, content, about.encode())).decode()


def unseal(key: bytes, sealed: str, about: str) -> bytes:
    """Raises SealBroken."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        whole = base64.b64decode(sealed, validate=True)
        return AESGCM(key).decrypt(whole[:_NONCE_BYTES], whole[_NONCE_BYTES:], about.encode())
    except (InvalidTag, binascii.Error, ValueError) as error:
        raise SealBroken("The seal does not open.") from error
