"""Who may do what over HTTP."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from fastapi import Depends, Request

from reposync.errors import RepoSyncError


class Role(IntEnum):
    """Each may do what the ones before may."""

    READ = 1
    OPERATE = 2


class AccessDenied(RepoSyncError):
    """No token, or one that is not known."""

    code = "UNAUTHENTICATED"
    status = 401


class RoleMissing(RepoSyncError):
    """The token is known, and may not do this."""

    code = "FORBIDDEN"
    status = 403


class Access:
    """`tokens`: each is `read:SECRET`, `operate:SECRET` or a bare secret, which may operate. Without any, everybody who
    reaches the server may do everything: it listens on loopback only then."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = [_parsed(token) for token in tokens]

    def role_of(self, token: str) -> Role | None:
        """In a time that does not depend on which token it is like."""
        found: Role | None = None
        for secret, role in self._tokens:
            if hmac.compare_digest(secret.encode(), token.encode()):
                found = role
        return found

    def requires(self, role: Role) -> Any:
        """A dependency of a route: who calls it must have the role. Raises AccessDenied, RoleMissing."""

        async def check(request: Request) -> Role:
            if not self._tokens:
                return Role.OPERATE
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            mine = self.role_of(token.strip()) if scheme.lower() == "bearer" else None
            if mine is None:
                raise AccessDenied("This needs a token.", remedy="Send `Authorization: Bearer TOKEN`.")
            if mine < role:
                raise RoleMissing(f"This token may {mine.name.lower()}, and not {role.name.lower()}.")
            return mine

        return Depends(check)


def _parsed(token: str) -> tuple[str, Role]:
    word, separator, secret = token.partition(":")
    if separator and word in ("read", "operate"):
        return secret, Role[word.upper()]
    return token, Role.OPERATE
