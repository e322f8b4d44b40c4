"""Tokens of the HTTP side: what each may do, and what it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import SecretStr

TokenRole = Literal["read", "operate"]
ROLES: tuple[TokenRole, ...] = ("read", "operate")

SHORTEST_TOKEN_CHARS = 16
LONGEST_TOKEN_CHARS = 1024


@dataclass(frozen=True, slots=True)
class ApiToken:
    role: TokenRole
    secret: SecretStr

    @classmethod
    def parse(cls, text: str) -> ApiToken:
        """`read:SECRET`, `operate:SECRET`, or a bare secret, which may operate."""
        word, separator, secret = text.partition(":")
        if separator and word in ROLES:
            return cls(word, SecretStr(secret))
        return cls("operate", SecretStr(text))


def api_tokens(value: str) -> tuple[ApiToken, ...]:
    """Those of a text with commas between them, each once. Raises ValueError; the message goes behind the variable's
    name and has no part of a secret in it."""
    found: dict[str, ApiToken] = {}
    for position, text in enumerate(filter(None, (part.strip() for part in value.split(","))), 1):
        if not re.fullmatch(r"[\x21-\x7e]+", text):
            raise ValueError("must be tokens of printable ASCII without spaces, with commas between them")
        word, separator, _ = text.partition(":")
        # A role that is misspelt would else be the beginning of a secret, and that may operate.
        if separator and word not in ROLES:
            raise ValueError(
                f"names no role that there is in its token {position}: write read:SECRET or operate:SECRET "
                "(with a role before it, a secret may have a colon in it)"
            )
        token = ApiToken.parse(text)
        secret = token.secret.get_secret_value()
        if not SHORTEST_TOKEN_CHARS <= len(secret) <= LONGEST_TOKEN_CHARS:
            raise ValueError(
                f"holds a token (number {position}) of {len(secret)} characters: {SHORTEST_TOKEN_CHARS} at least, "
                f"{LONGEST_TOKEN_CHARS} at most; `openssl rand -hex 24` makes a good one"
            )
        if found.setdefault(secret, token).role != token.role:
            raise ValueError(f"gives one token two roles (number {position} and one before it): keep one of them")
    return tuple(found.values())
