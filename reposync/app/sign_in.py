"""People who signed in at GitLab, on every pod: what stands for them is in the database, and opens with its own secret.

A sign-in is a grant of GitLab, sealed under a key of its own. Each credential wraps that key with a secret that only
its holder has. So every pod can use every session, no key has to be distributed, and a copy of the database opens
nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import SecretStr

from reposync.access.gitlab_oauth import EXCHANGE_SECONDS, GitLabOAuth, GrantEnded, Person, SignInUnavailable, Tokens
from reposync.errors import RepoSyncError
from reposync.http_client import HttpRefused
from reposync.sealing import SealBroken, digest_of, key_of, new_key, new_secret, seal, unseal
from reposync.store.credentials import USE_SECONDS, Credentials, OAuthClients, TooManyClients
from reposync.store.credentials import SessionEnded as SessionEnded
from reposync.store.database import Database
from reposync.store.people_tables import Credential, GitLabGrant
from reposync.store.status import CredentialKind
from reposync.supervision import to_the_end

log = logging.getLogger(__name__)

MAX_PERSONAL = 50
"""Tokens that one person may have."""
MAX_CLIENTS = 10_000
MAX_REGISTRATIONS = 20
"""The number of programs that one address may register in an hour."""
MARGIN_SECONDS = 60.0
"""GitLab's token is refreshed so long before its end."""
CLAIM_SECONDS = 3 * EXCHANGE_SECONDS
"""A process that gets new tokens has them after this time, or has died."""
_PAUSE_SECONDS = 0.1
_MAX_SECRET_CHARS = 100
_ABOUT = "key of {}"


class TooManyRegistrations(RepoSyncError, code="TOO_MANY_REGISTRATIONS", status=429, retryable=True):
    """Too many programs register themselves for /mcp, from one address or at all."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A credential that its secret has opened. `key`: of its grant."""

    credential: Credential
    grant: GitLabGrant
    key: bytes

    @property
    def kind(self) -> CredentialKind:
        return CredentialKind(self.credential.kind)


@dataclass(frozen=True, slots=True)
class New:
    """What is made of a credential: each kind, with the seconds that it lasts."""

    kinds: dict[CredentialKind, float]
    name: str = ""
    client_id: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


class SignIns:
    """Methods raise StoreUnavailable; those that ask GitLab also SignInUnavailable. `database` may raise Starting."""

    def __init__(self, oauth: GitLabOAuth, database: Callable[[], Database]) -> None:
        self.oauth = oauth
        self._database = database
        self._refreshes: dict[str, asyncio.Task[SecretStr]] = {}

    @property
    def clients(self) -> OAuthClients:
        return OAuthClients(self._database())

    @property
    def _credentials(self) -> Credentials:
        return Credentials(self._database())

    def now(self) -> datetime:
        return self._database().clock.now()

    async def register(self, client_id: str, document: dict[str, Any], address: str) -> None:
        """A program that registers itself. `address`: a keyed digest of where it is. Raises TooManyRegistrations."""
        limits = {"most": MAX_CLIENTS, "most_an_hour": MAX_REGISTRATIONS}
        try:
            await self.clients.register(client_id, document, address, **limits)
        except TooManyClients as error:
            raise TooManyRegistrations(
                "Too many programs have registered themselves.", remedy="Try again in an hour."
            ) from error

    async def begin(self, tokens: Tokens, person: Person, seconds: float) -> str:
        """A session of so many seconds, by what GitLab granted; its secret."""
        key, now = new_key(), self.now()
        grant_id = uuid.uuid4().hex
        grant = GitLabGrant(
            id=grant_id,
            gitlab=self.oauth.url,
            user_id=person.id,
            username=person.username,
            sealed=self._sealed(key, grant_id, tokens),
            created_at=now,
            refreshed_at=now,
        )
        secret, credential = _made(grant, key, CredentialKind.SESSION, now, seconds, family=uuid.uuid4().hex)
        await self._credentials.begin(grant, credential)
        return secret

    async def open(self, secret: str, *kinds: CredentialKind) -> Opened | None:
        """None if it is none of these kinds, unknown, expired, or has ended. Whether it was used before, the caller
        decides."""
        if len(secret) > _MAX_SECRET_CHARS or not secret.startswith(tuple(kind.prefix for kind in kinds)):
            return None
        held = await self._credentials.find(digest_of(secret))
        if held is None or held.credential.kind not in kinds or held.grant.gitlab != self.oauth.url:
            return None
        credential = held.credential
        if credential.used_at is not None:
            return Opened(credential, held.grant, b"")
        try:
            key = unseal(key_of(secret, "wrapping key"), credential.wrapped_key, _ABOUT.format(credential.id))
        except SealBroken:
            log.warning("a credential in the database does not open with its secret", extra={"kind": credential.kind})
            return None
        return Opened(credential, held.grant, key)

    async def used(self, opened: Opened) -> None:
        """For lists of tokens. Writes at most once in USE_SECONDS."""
        last = opened.credential.last_used_at
        if last is None or (self.now() - last).total_seconds() > USE_SECONDS:
            await self._credentials.touch(opened.credential.id)

    # What people make of a session

    async def issue(self, opened: Opened, new: New) -> dict[CredentialKind, str]:
        """New credentials of the same grant: the secret of each."""
        secrets, rows = self._made(opened, new, uuid.uuid4().hex)
        await self._credentials.add(rows)
        return secrets

    async def exchange(self, opened: Opened, new: New) -> dict[CredentialKind, str] | None:
        """The same, in place of one that may be used once. None if it was used before: it was stolen, or what came of
        it was, and all of its family ends."""
        family = opened.credential.family
        if opened.credential.used_at is None:
            secrets, rows = self._made(opened, new, family)
            if await self._credentials.exchange(opened.credential.id, rows):
                return secrets
        log.warning("a code or a token was used twice, and its authorization ended", extra={"kind": opened.kind})
        await self._credentials.end_family(family)
        return None

    def _made(self, opened: Opened, new: New, family: str) -> tuple[dict[CredentialKind, str], list[Credential]]:
        now, secrets, rows = self.now(), dict[CredentialKind, str](), list[Credential]()
        others = {"name": new.name, "client_id": new.client_id, "details": new.details}
        for kind, seconds in new.kinds.items():
            secrets[kind], row = _made(opened.grant, opened.key, kind, now, seconds, family=family, **others)
            rows.append(row)
        return secrets, rows

    async def own(self, opened: Opened, *kinds: CredentialKind) -> list[Credential]:
        """What stands for this person, whichever sign-in it comes from."""
        return await self._credentials.own(opened.grant.gitlab, opened.grant.user_id, kinds)

    async def end_own(self, opened: Opened, family: str) -> bool:
        """Revoke one of those, with its family; whether there was one."""
        return await self._credentials.end_own(family, opened.grant.gitlab, opened.grant.user_id)

    async def end(self, opened: Opened) -> None:
        """The grant and all that stands for it, because GitLab does not accept the person any more."""
        await self._credentials.end_grant(opened.grant.id)

    async def end_family(self, family: str) -> None:
        await self._credentials.end_family(family)

    async def sign_out(self, secret: str) -> None:
        """End the session, and at GitLab too if nothing else stands for its grant."""
        opened = await self.open(secret, CredentialKind.SESSION)
        if opened is None or not await self._credentials.end(opened.credential.id):
            return
        try:
            await self.oauth.revoke(self._tokens(opened.grant, opened.key)[0])
        except (RepoSyncError, HttpRefused, SealBroken) as error:  # it is signed out here in any case
            log.warning("a token could not be revoked at GitLab", extra={"reason": type(error).__name__})

    # GitLab's tokens

    async def token(self, opened: Opened, *, refused: SecretStr | None = None) -> SecretStr:
        """GitLab's access token of the person. `refused`: one that GitLab did not accept, although it should still be
        valid. Raises SessionEnded."""
        grant_id = opened.grant.id
        tokens, expires_at = self._opened_tokens(opened.grant, opened.key)
        if not self._is_due(tokens, expires_at, refused):
            return tokens.access
        if (refresh := self._refreshes.get(grant_id)) is None:
            refresh = self._refreshes[grant_id] = asyncio.ensure_future(self._refreshed(opened, refused))
            refresh.add_done_callback(lambda _: self._refreshes.pop(grant_id, None))
        return await to_the_end(refresh)

    async def _refreshed(self, opened: Opened, refused: SecretStr | None) -> SecretStr:
        """One process gets new tokens, and the others wait for what it writes."""
        credentials, grant, claim = self._credentials, opened.grant, uuid.uuid4().hex
        while True:
            tokens, expires_at = self._opened_tokens(grant, opened.key)
            if not self._is_due(tokens, expires_at, refused):
                return tokens.access
            if await credentials.claim_refresh(grant, claim, CLAIM_SECONDS):
                return await self._refresh(grant, opened.key, claim, tokens, expires_at)
            await asyncio.sleep(_PAUSE_SECONDS)
            found = await credentials.grant(grant.id)
            if found is None:
                raise SessionEnded
            grant = found

    async def _refresh(
        self, grant: GitLabGrant, key: bytes, claim: str, tokens: Tokens, expires_at: datetime
    ) -> SecretStr:
        credentials = self._credentials
        try:
            fresh = await self.oauth.refresh(tokens.refresh)
        except GrantEnded:
            log.info("a sign-in has ended at GitLab", extra={"user": grant.username})
            await credentials.end_grant(grant.id, claim=claim)
            raise SessionEnded from None
        except SignInUnavailable:
            await credentials.give_up_refresh(grant.id, claim)
            if expires_at > self.now():
                return tokens.access
            raise
        await credentials.write_tokens(grant.id, claim, self._sealed(key, grant.id, fresh))
        return fresh.access

    def _is_due(self, tokens: Tokens, expires_at: datetime, refused: SecretStr | None) -> bool:
        is_refused = refused is not None and tokens.access == refused
        return is_refused or (expires_at - self.now()).total_seconds() < MARGIN_SECONDS

    def _sealed(self, key: bytes, grant_id: str, tokens: Tokens) -> str:
        content = {
            "access_token": tokens.access.get_secret_value(),
            "refresh_token": tokens.refresh.get_secret_value(),
            "expires_at": (self.now() + timedelta(seconds=tokens.lasts_seconds)).isoformat(),
        }
        return seal(key, json.dumps(content).encode(), f"tokens of {grant_id}")

    def _opened_tokens(self, grant: GitLabGrant, key: bytes) -> tuple[Tokens, datetime]:
        """Raises SessionEnded if the row was changed."""
        try:
            return self._tokens(grant, key)
        except SealBroken:
            log.warning("a grant in the database does not open with its key")
            raise SessionEnded from None

    def _tokens(self, grant: GitLabGrant, key: bytes) -> tuple[Tokens, datetime]:
        """With the time at which the access token expires. Raises SealBroken."""
        content = json.loads(unseal(key, grant.sealed, f"tokens of {grant.id}"))
        tokens = Tokens(SecretStr(content["access_token"]), SecretStr(content["refresh_token"]), 0.0)
        return tokens, datetime.fromisoformat(content["expires_at"])


def _made(
    grant: GitLabGrant, key: bytes, kind: CredentialKind, now: datetime, seconds: float, *, family: str, **values: Any
) -> tuple[str, Credential]:
    secret = new_secret(kind.prefix)
    credential_id = digest_of(secret)
    row = Credential(
        id=credential_id,
        kind=kind.value,
        connection_id=grant.id,
        family=family,
        wrapped_key=seal(key_of(secret, "wrapping key"), key, _ABOUT.format(credential_id)),
        created_at=now,
        expires_at=now + timedelta(seconds=seconds),
        **values,
    )
    return secret, row
