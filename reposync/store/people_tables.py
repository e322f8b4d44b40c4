"""The tables of people and of what they did: sign-ins, tokens, sessions, and the audit. As `tables`, which has those of
repositories and runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger
from sqlmodel import Field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import JsonText, Record, SafeText, table_of


class GitLabGrant(Record):
    """A row of `connections`: what a person allowed this program to do at GitLab, as one sign-in."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    gitlab: str = Field(sa_type=SafeText)
    user_id: int = Field(sa_type=BigInteger)
    username: str = Field(sa_type=SafeText)
    sealed: str = Field(sa_type=SafeText)
    """The tokens, under a key that only the secrets of its credentials open."""
    created_at: datetime = Field(sa_type=UTCDateTime)
    refreshed_at: datetime = Field(sa_type=UTCDateTime)
    refresh_claim: str | None = Field(default=None, sa_type=SafeText)
    """The process that gets new tokens."""
    refresh_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """It has to have them by then."""


class Credential(Record):
    """A row of `credentials`: a session, a token or a code that stands for a person."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    """The digest of its secret."""
    kind: str = Field(sa_type=SafeText)
    connection_id: str = Field(sa_type=SafeText, foreign_key="connections.id", ondelete="CASCADE")
    family: str = Field(sa_type=SafeText)
    """All tokens of one authorization have the same, and end together."""
    wrapped_key: str = Field(sa_type=SafeText)
    """The secret opens it, and it opens the grant."""
    name: str = Field(default="", sa_type=SafeText)
    """Its name for people."""
    client_id: str | None = Field(default=None, sa_type=SafeText)
    details: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    """What it is limited to."""
    created_at: datetime = Field(sa_type=UTCDateTime)
    expires_at: datetime = Field(sa_type=UTCDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When it was used, if it may be used once."""


class OAuthClient(Record):
    """A row of `oauth_clients`: a program that registered itself for /mcp."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    address: str = Field(sa_type=SafeText)
    """A keyed digest of the address that it came from."""
    created_at: datetime = Field(sa_type=UTCDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """When somebody allowed it last."""


class _Grants(GitLabGrant, table=True):
    __tablename__ = "connections"


class _Credentials(Credential, table=True):
    __tablename__ = "credentials"


class _OAuthClients(OAuthClient, table=True):
    __tablename__ = "oauth_clients"


class AuditEntry(Record):
    """A row of `audit_entries`: an operation that showed code or names."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    at: datetime = Field(sa_type=UTCDateTime)
    actor: str = Field(sa_type=SafeText)
    """Who did it, as in the history."""
    via: str = Field(sa_type=SafeText)
    """It is http, page, mcp or command."""
    address: str = Field(sa_type=SafeText)
    """The address of the client."""
    operation: str = Field(sa_type=SafeText)
    repositories: list[str] = Field(default_factory=list, sa_type=JsonText)
    """Names of the repositories in the answer, or that were asked for."""
    hits: int | None = None
    """How many were shown; None if the answer is one document."""
    outcome: str = Field(sa_type=SafeText)
    """It is ok, or the code of the error."""
    query: str | None = Field(default=None, sa_type=SafeText)
    """The words of the query, only if the operator keeps them."""


class _AuditEntries(AuditEntry, table=True):
    __tablename__ = "audit_entries"


class _EndedSessions(Record, table=True):
    """Browser sessions that were signed out."""

    __tablename__ = "ended_sessions"
    id: str = Field(primary_key=True, sa_type=SafeText)
    """It identifies a session and does not reveal its cookie."""
    ended_at: datetime = Field(sa_type=UTCDateTime)


ENDED_SESSIONS = table_of(_EndedSessions)
GRANTS = table_of(_Grants)
CREDENTIALS = table_of(_Credentials)
OAUTH_CLIENTS = table_of(_OAuthClients)
AUDIT = table_of(_AuditEntries)
