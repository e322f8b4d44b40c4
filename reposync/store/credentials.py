"""People who signed in, what stands for them, and the programs that they let in. Every question is asked of the
database, so what one pod ends has ended on every pod."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, insert, or_, select, update

from reposync.errors import RepoSyncError
from reposync.store.columns import truncate
from reposync.store.database import Connection, Stored
from reposync.store.people_tables import CREDENTIALS, GRANTS, OAUTH_CLIENTS, Credential, GitLabGrant, OAuthClient
from reposync.store.status import CredentialKind

USE_SECONDS = 60.0
"""How exact `last_used_at` is: a credential costs one write in this time at most."""
UNUSED_CLIENT_SECONDS = 24 * 3600.0
"""A program that registers itself and is allowed by nobody is forgotten after this time."""
IDLE_CLIENT_SECONDS = 180 * 24 * 3600.0
_MAX_PURGED = 1_000
_MAX_LISTED = 500

_GRANT = tuple(GRANTS.c[name].label(f"grant_{name}") for name in GitLabGrant.model_fields)


class SessionEnded(RepoSyncError, code="UNAUTHENTICATED", status=401):
    """The sign-in has ended: it was signed out, or GitLab does not accept it any more."""

    def __init__(self) -> None:
        super().__init__("This sign-in has ended.", remedy="Sign in again.")


class TooManyClients(Exception):
    """No more programs may register, from this address or at all."""


@dataclass(frozen=True, slots=True)
class Held:
    """A valid credential and the grant that it opens."""

    credential: Credential
    grant: GitLabGrant


def _is_of(gitlab: str, user_id: int) -> ColumnElement[bool]:
    """The condition that credentials stand for this person."""
    own = select(GRANTS.c.id).where(GRANTS.c.gitlab == gitlab, GRANTS.c.user_id == user_id)
    return CREDENTIALS.c.connection_id.in_(own)


class Credentials(Stored):
    async def begin(self, grant: GitLabGrant, credential: Credential) -> None:
        """A sign-in. Also deletes what has expired."""
        async with self._database.write() as connection:
            await self._purge(connection)
            await connection.execute(insert(GRANTS).values(**grant.model_dump()))
            await connection.execute(insert(CREDENTIALS).values(**credential.model_dump()))

    async def add(self, credentials: Sequence[Credential]) -> None:
        """Raises SessionEnded if their grant has ended."""
        async with self._database.write() as connection:
            await _require_grants(connection, credentials)
            for credential in credentials:
                await connection.execute(insert(CREDENTIALS).values(**credential.model_dump()))

    async def find(self, credential_id: str) -> Held | None:
        """None if it is unknown, has expired or has ended."""
        query = select(CREDENTIALS, *_GRANT).join(GRANTS, GRANTS.c.id == CREDENTIALS.c.connection_id)
        valid = CREDENTIALS.c.expires_at > self._database.moment()
        rows = await self._database.rows(query.where(CREDENTIALS.c.id == credential_id, valid))
        for row in rows:
            values = row._mapping
            credential = {name: values[name] for name in Credential.model_fields}
            grant = {name: values[f"grant_{name}"] for name in GitLabGrant.model_fields}
            return Held(
                Credential.model_construct(_fields_set=set(), **credential),
                GitLabGrant.model_construct(_fields_set=set(), **grant),
            )
        return None

    async def touch(self, credential_id: str) -> None:
        """It was used now."""
        before = self._database.moment(-USE_SECONDS)
        is_due = or_(CREDENTIALS.c.last_used_at.is_(None), CREDENTIALS.c.last_used_at < before)
        used = update(CREDENTIALS).where(CREDENTIALS.c.id == credential_id, is_due)
        await self._database.change(used.values(last_used_at=self._database.moment()))

    async def exchange(self, credential_id: str, credentials: Sequence[Credential]) -> bool:
        """Put others in the place of one that may be used once; whether this is its first use. Whoever else uses it at
        the same moment gets False, when the others are there to be ended. Raises SessionEnded if their grant has
        ended."""
        first = update(CREDENTIALS).where(CREDENTIALS.c.id == credential_id, CREDENTIALS.c.used_at.is_(None))
        async with self._database.write() as connection:
            await _require_grants(connection, credentials)
            if await connection.change(first.values(used_at=self._database.moment(), wrapped_key="")) != 1:
                return False
            for credential in credentials:
                await connection.execute(insert(CREDENTIALS).values(**credential.model_dump()))
        return True

    async def end(self, credential_id: str) -> bool:
        """Whether the grant ended with it, because nothing else stands for it."""
        async with self._database.write() as connection:
            return await self._end(connection, CREDENTIALS.c.id == credential_id) == 1

    async def end_family(self, family: str) -> None:
        async with self._database.write() as connection:
            await self._end(connection, CREDENTIALS.c.family == family)

    async def end_own(self, family: str, gitlab: str, user_id: int) -> bool:
        """Revoke what stands for this person, by its family; whether there was anything."""
        query = select(exists().where(CREDENTIALS.c.family == family, _is_of(gitlab, user_id)))
        if not await self._database.scalar(query):
            return False
        await self.end_family(family)
        return True

    async def own(self, gitlab: str, user_id: int, kinds: Collection[CredentialKind]) -> list[Credential]:
        """The credentials of this person, the newest first."""
        query = select(CREDENTIALS).where(_is_of(gitlab, user_id), self._valid(), CREDENTIALS.c.used_at.is_(None))
        query = query.where(CREDENTIALS.c.kind.in_([kind.value for kind in kinds]))
        rows = await self._database.rows(query.order_by(CREDENTIALS.c.created_at.desc()).limit(_MAX_LISTED))
        return [Credential.of(row) for row in rows]

    # Grants

    async def grant(self, grant_id: str) -> GitLabGrant | None:
        rows = await self._database.rows(select(GRANTS).where(GRANTS.c.id == grant_id))
        return next((GitLabGrant.of(row) for row in rows), None)

    async def claim_refresh(self, grant: GitLabGrant, claim: str, seconds: float) -> bool:
        """Whether the caller is the one that gets new tokens: a second one would end both. False also if the tokens
        are not those of `grant` any more. Not a lock of the row: it would be held while GitLab answers."""
        columns, now = GRANTS.c, self._database.moment()
        is_free = or_(columns.refresh_until.is_(None), columns.refresh_until < now)
        own = update(GRANTS).where(columns.id == grant.id, columns.sealed == grant.sealed, is_free)
        until = self._database.moment(seconds)
        return await self._database.change(own.values(refresh_claim=claim, refresh_until=until)) == 1

    async def write_tokens(self, grant_id: str, claim: str, sealed: str) -> bool:
        """Whether the claim was still there. It ends."""
        own = update(GRANTS).where(GRANTS.c.id == grant_id, GRANTS.c.refresh_claim == claim)
        now = self._database.moment()
        values = {"sealed": sealed, "refreshed_at": now, "refresh_claim": None, "refresh_until": None}
        return await self._database.change(own.values(**values)) == 1

    async def give_up_refresh(self, grant_id: str, claim: str) -> None:
        """The claim ends, and the tokens stay."""
        own = update(GRANTS).where(GRANTS.c.id == grant_id, GRANTS.c.refresh_claim == claim)
        await self._database.change(own.values(refresh_claim=None, refresh_until=None))

    async def end_grant(self, grant_id: str, *, claim: str | None = None) -> bool:
        """With everything that stands for it; whether it was there, and with a `claim`, whether that is the present
        one: whoever has lost it does not know which tokens are valid."""
        own = GRANTS.c.id == grant_id
        own = own if claim is None else own & (GRANTS.c.refresh_claim == claim)
        return await self._database.change(delete(GRANTS).where(own)) == 1

    async def purge(self) -> None:
        """Delete what has expired."""
        async with self._database.write() as connection:
            await self._purge(connection)

    def _valid(self) -> ColumnElement[bool]:
        return CREDENTIALS.c.expires_at > self._database.moment()

    async def _purge(self, connection: Connection) -> None:
        over = ~self._valid()
        grants = select(CREDENTIALS.c.connection_id).where(over).limit(_MAX_PURGED)
        await self._end(connection, over, grants, skip_locked=True)

    async def _end(
        self,
        connection: Connection,
        which: ColumnElement[bool],
        grants: Select[tuple[str]] | None = None,
        *,
        skip_locked: bool = False,
    ) -> int:
        """Delete these credentials (those of `grants`), and the grants that no valid one opens any more: nobody can
        open them. How many grants ended."""
        of = select(CREDENTIALS.c.connection_id).where(which) if grants is None else grants
        held = await _lock_grants(connection, GRANTS.c.id.in_(of), skip_locked=skip_locked)
        await connection.execute(delete(CREDENTIALS).where(which, CREDENTIALS.c.connection_id.in_(held)))
        opened = exists().where(CREDENTIALS.c.connection_id == GRANTS.c.id, self._valid())
        return await connection.change(delete(GRANTS).where(GRANTS.c.id.in_(held), ~opened))


async def _lock_grants(
    connection: Connection, which: ColumnElement[bool], *, skip_locked: bool = False
) -> Sequence[str]:
    """The order of all transactions: grants by their ids, then their credentials, as a grant's end takes these with
    it. PostgreSQL aborts one of two transactions that lock in different orders."""
    query = select(GRANTS.c.id).where(which).order_by(GRANTS.c.id).with_for_update(skip_locked=skip_locked)
    return await connection.scalars(query)


async def _require_grants(connection: Connection, credentials: Sequence[Credential]) -> None:
    """They do not end before the transaction. Raises SessionEnded."""
    of = {credential.connection_id for credential in credentials}
    if len(await _lock_grants(connection, GRANTS.c.id.in_(sorted(of)))) < len(of):
        raise SessionEnded


class OAuthClients(Stored):
    async def get(self, client_id: str) -> OAuthClient | None:
        rows = await self._database.rows(select(OAUTH_CLIENTS).where(OAUTH_CLIENTS.c.id == client_id))
        return next((OAuthClient.of(row) for row in rows), None)

    async def register(
        self, client_id: str, document: dict[str, Any], address: str, *, most: int, most_an_hour: int
    ) -> None:
        """Also forgets those that nobody uses. `most_an_hour`: from this address. Raises TooManyClients."""
        columns, moment = OAUTH_CLIENTS.c, self._database.moment
        unused = columns.used_at.is_(None) & (columns.created_at < moment(-UNUSED_CLIENT_SECONDS))
        idle = columns.used_at < moment(-IDLE_CLIENT_SECONDS)
        gone = select(columns.id).where(unused | idle).limit(_MAX_PURGED).with_for_update(skip_locked=True)
        lately = columns.created_at > moment(-3600.0)
        async with self._database.write() as connection:
            await connection.execute(delete(OAUTH_CLIENTS).where(columns.id.in_(gone)))
            count = select(func.count()).select_from(OAUTH_CLIENTS)
            here = await connection.scalar(count.where(columns.address == address, lately))
            if here < most_an_hour and await connection.scalar(count) < most:
                values = {"id": client_id, "document": document, "address": truncate(address, 100)}
                await connection.execute(insert(OAUTH_CLIENTS).values(**values, created_at=moment()))
                return
        raise TooManyClients

    async def touch(self, client_id: str) -> None:
        """Somebody allowed it now."""
        used = update(OAUTH_CLIENTS).where(OAUTH_CLIENTS.c.id == client_id)
        await self._database.change(used.values(used_at=self._database.moment()))
