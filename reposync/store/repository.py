"""The record of a repository: what is registered, and the state of its index."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import BigInteger, false, text
from sqlmodel import Field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.errors import RepositoryInactive
from reposync.store.columns import JsonText, Record, SafeText, sanitize_text

REPOSITORY_NAMESPACE = uuid.UUID("0c2f6a5e-52d5-5f0a-8f0e-7265706f7379")
MAX_NAME_CHARS = 255


def repository_id(name: str) -> str:
    """UUIDv5: a repository registered under this name has it on every machine, and keeps it if renamed."""
    return str(uuid.uuid5(REPOSITORY_NAMESPACE, sanitize_text(name)))


class MissedTick(Record):
    """A tick of a schedule that was noticed `late_seconds` late, which is more than the grace: nothing ran for it."""

    scheduled_for: datetime
    noticed_at: datetime
    late_seconds: float


class Registration(Record):
    """What the registry file, a command or the HTTP API says about a repository.

    `location` is a path or an address without a secret. `source` is gitlab, git or path; `origin` config, command, http
    or group. `branch` is None for the default branch. A `project_id` of None leaves the stored one unchanged.
    `definition`: the entry as written, without secrets, if it is not in a registry file. `resolved`: the whole
    definition with defaults; None if only a program before 0.2 registered the repository. `group_key`: the group that
    registered it. `origin_file`: the registry file with its entry, for people. `origin_host`: the machine that
    registered it, which has the path. `by_hand`: it was synced once by its path or address, and is not registered.
    """

    name: str = Field(unique=True, sa_type=SafeText)
    location: str = Field(sa_type=SafeText)
    source: str = Field(sa_type=SafeText)
    origin: str = Field(sa_type=SafeText)
    collection: str = Field(sa_type=SafeText)
    branch: str | None = Field(default=None, sa_type=SafeText)
    project_id: int | None = Field(default=None, sa_type=BigInteger)
    cron_expression: str | None = Field(default=None, sa_type=SafeText)
    timezone: str = Field(default="UTC", sa_type=SafeText)
    definition: Mapping[str, Any] | None = Field(default=None, sa_type=JsonText)
    group_key: str | None = Field(default=None, sa_type=SafeText)
    resolved: Mapping[str, Any] | None = Field(default=None, sa_type=JsonText)
    origin_file: str | None = Field(default=None, sa_type=SafeText)
    origin_host: str | None = Field(default=None, sa_type=SafeText)
    by_hand: bool = Field(default=False, sa_column_kwargs={"server_default": false()})

    def differs_from(self, row: Repository | None) -> bool:
        """Whether registering it changes the row."""
        if row is None or row.has_left:
            return True
        kept = {"origin_host"} | ({"project_id"} if self.project_id is None else set())
        return any(getattr(row, key) != value for key, value in self.model_dump(exclude=kept).items())


class Repository(Registration):
    """A row of `repositories`. Times are aware UTC.

    `last_commit` is the commit that the live version of the index holds completely. `head_commit`: the newest head of
    its source that a run or a push reported; `lag_since`: see `behind_since`. `generation` counts changes of the
    definition. `live_version`: the id of the live index version. `next_due_at`: when a scheduler takes it next; None if
    it is not scheduled. `last_tick_at`: when its schedule was last looked at, see `Ticks`. `missed_ticks`: the latest
    ones, newest first.
    """

    id: str = Field(primary_key=True, sa_type=SafeText)
    is_active: bool = True
    paused_reason: str | None = Field(default=None, sa_type=SafeText)
    last_sync_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    last_commit: str | None = Field(default=None, sa_type=SafeText)
    last_committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    head_commit: str | None = Field(default=None, sa_type=SafeText)
    lag_since: datetime | None = Field(default=None, sa_type=UTCDateTime)
    epoch: int = Field(default=0, sa_type=BigInteger)
    generation: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    live_version: str | None = Field(default=None, sa_type=SafeText)
    next_due_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    last_tick_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    missed_ticks: list[dict[str, Any]] = Field(
        default_factory=list, sa_type=JsonText, sa_column_kwargs={"server_default": text("'[]'")}
    )
    created_at: datetime = Field(sa_type=UTCDateTime)
    updated_at: datetime = Field(sa_type=UTCDateTime)

    @property
    def behind_since(self) -> datetime | None:
        """Since when the index has not held the newest known head completely; None if it does. The first report of a
        head that it lacked counts, or the latest run that indexed a commit, if a different head was known by then."""
        return None if self.head_commit in (None, self.last_commit) else self.lag_since

    @property
    def state(self) -> str:
        """Active, paused (then there is a reason), or no longer in the registry."""
        return "active" if self.is_active else "inactive" if self.has_left else "paused"

    @property
    def changeable(self) -> tuple[object, ...]:
        """What a person may change of it."""
        return self.location, self.definition, self.resolved, self.is_active, self.paused_reason

    @property
    def version(self) -> str:
        """Of `changeable`, as a short text."""
        return hashlib.blake2b(to_json(self.changeable), digest_size=8).hexdigest()

    @property
    def has_left(self) -> bool:
        """Its registry file, or its group, no longer has it."""
        return not self.is_active and self.paused_reason is None

    def require_registered(self) -> None:
        """Raises RepositoryInactive if it has left: nothing describes it any more."""
        if self.has_left:
            raise RepositoryInactive(
                f"{self.name!r} has left {self.origin_words}.", remedy="Add it there again to sync it."
            )

    @property
    def title(self) -> str:
        return f"repository {self.name}"

    @property
    def origin_words(self) -> str:
        """Where its definition comes from, for people."""
        match self.origin:
            case "config":
                return f"the registry file {self.origin_file}" if self.origin_file else "a registry file"
            case "group":
                return f"the group {self.group_key}"
            case "http":
                return "a request over HTTP"
            case _:
                return f"a command on {self.origin_host}" if self.origin_host else "a command"


def belongs_to_another(row: Repository, registration: Registration) -> bool:
    """Whether a command or a request over HTTP registered the repository whose name the registry file claims with
    `registration`. One that was only synced by hand, from the same location, is free."""
    if registration.origin != "config" or row.origin in ("config", "group") or row.has_left:
        return False
    return not (row.by_hand and row.location == registration.location)


def unregistered(registration: Registration) -> Repository:
    """What `Repositories.register` would return for a new repository, without writing it."""
    now = datetime.now(UTC)
    return Repository(
        **registration.model_dump(),
        id=repository_id(registration.name),
        created_at=now,
        updated_at=now,
    )
