"""The record of a repository: what is registered, and the state of its index."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

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
    """What the registry file, a command or the HTTP API says about a repository."""

    name: str = Field(unique=True, sa_type=SafeText)
    location: str = Field(sa_type=SafeText)
    """This is a path, or an address without a secret."""
    source: str = Field(sa_type=SafeText)
    """This is gitlab, git or path."""
    origin: str = Field(sa_type=SafeText)
    """This is config, command, http or group."""
    collection: str = Field(sa_type=SafeText)
    branch: str | None = Field(default=None, sa_type=SafeText)
    """None stands for the default branch."""
    project_id: int | None = Field(default=None, sa_type=BigInteger)
    """None leaves the stored number unchanged."""
    cron_expression: str | None = Field(default=None, sa_type=SafeText)
    timezone: str = Field(default="UTC", sa_type=SafeText)
    definition: Mapping[str, Any] | None = Field(default=None, sa_type=JsonText)
    """This is the entry as written, without secrets, if it is not in a registry file."""
    group_key: str | None = Field(default=None, sa_type=SafeText)
    """The group with this key registered the repository."""
    resolved: Mapping[str, Any] | None = Field(default=None, sa_type=JsonText)
    """This is the whole definition with defaults; None if only a program before 0.2 registered the repository."""
    origin_file: str | None = Field(default=None, sa_type=SafeText)
    """The registry file with its entry, for people."""
    origin_host: str | None = Field(default=None, sa_type=SafeText)
    """The machine that registered it, which has the path."""
    by_hand: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """It was synced once by its path or address, and is not registered."""

    def differs_from(self, row: Repository | None) -> bool:
        """Whether registering it changes the row."""
        if row is None or row.has_left:
            return True
        kept = {"origin_host"} | ({"project_id"} if self.project_id is None else set())
        return any(getattr(row, key) != value for key, value in self.model_dump(exclude=kept).items())


class Repository(Registration):
    """A row of `repositories`. Times are aware UTC."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    is_active: bool = True
    paused_reason: str | None = Field(default=None, sa_type=SafeText)
    last_sync_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    last_commit: str | None = Field(default=None, sa_type=SafeText)
    """The live version of the index holds this commit completely."""
    last_committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    head_commit: str | None = Field(default=None, sa_type=SafeText)
    """A run or a push reported this newest head of its source."""
    lag_since: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """See `behind_since`."""
    epoch: int = Field(default=0, sa_type=BigInteger)
    generation: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    """This counts changes of the definition."""
    live_version: str | None = Field(default=None, sa_type=SafeText)
    """The id of the live index version."""
    next_due_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """A scheduler takes it next at this time; None if it is not scheduled."""
    last_tick_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """Its schedule was last looked at then, see `Ticks`."""
    missed_ticks: list[dict[str, Any]] = Field(
        default_factory=list, sa_type=JsonText, sa_column_kwargs={"server_default": text("'[]'")}
    )
    """The latest missed ticks, newest first."""
    created_at: datetime = Field(sa_type=UTCDateTime)
    updated_at: datetime = Field(sa_type=UTCDateTime)

    @property
    def behind_since(self) -> datetime | None:
        """Since when the index has not held the newest known head completely; None if it does. The first report of a
        head that it lacked counts, or the latest run that indexed a commit, if a different head was known by then."""
        return _behind_since(self)

    @property
    def state(self) -> str:
        """Active, paused (then there is a reason), or no longer in the registry."""
        return _state(self)

    @property
    def changeable(self) -> tuple[object, ...]:
        """What a person may change of it."""
        return self.location, self.definition, self.resolved, self.is_active, self.paused_reason

    @property
    def version(self) -> str:
        """The version of `changeable`, as a short text."""
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


class RepositoryGlance(NamedTuple):
    """What the first page reads of every repository: see `Repository`, which takes ten times as long to make."""

    name: str
    id: str
    is_active: bool
    paused_reason: str | None
    cron_expression: str | None
    timezone: str
    last_sync_at: datetime | None
    last_commit: str | None
    head_commit: str | None
    lag_since: datetime | None

    @property
    def behind_since(self) -> datetime | None:
        return _behind_since(self)

    @property
    def state(self) -> str:
        return _state(self)


def _behind_since(row: Repository | RepositoryGlance) -> datetime | None:
    return None if row.head_commit in (None, row.last_commit) else row.lag_since


def _state(row: Repository | RepositoryGlance) -> str:
    return "active" if row.is_active else "inactive" if row.paused_reason is None else "paused"


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
