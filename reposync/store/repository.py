"""A repository as it is registered, and as its row was read."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from reposync.store.columns import storable

REPOSITORY_NAMESPACE = uuid.UUID("0c2f6a5e-52d5-5f0a-8f0e-7265706f7379")
MAX_NAME_CHARS = 255


def repository_id(name: str) -> str:
    """What a repository that registers under this name gets: UUIDv5 of it, the same on every machine and known before.
    It keeps its id when it is renamed."""
    return str(uuid.uuid5(REPOSITORY_NAMESPACE, storable(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the registry, a command or the HTTP API says about a repository.

    `location` is a path or an address without a secret. `source` is gitlab, git or path; `origin` config, command, http
    or group. `branch` is None for the default branch; `project_id` is left as it is if None. `definition`: the entry as
    somebody wrote it, without secrets, for what is not in a registry file. `resolved`: the whole definition, defaults
    filled in. `group_key`: the group that it registered with. `origin_file`: the registry file that has it, or whose
    group it belongs to. `origin_host`: the machine that registered it, where a path is found. `by_hand`: it was synced
    once by its path or address, and is not registered.
    """

    name: str
    location: str
    source: str
    origin: str
    collection: str
    branch: str | None = None
    project_id: int | None = None
    cron_expression: str | None = None
    timezone: str = "UTC"
    definition: Mapping[str, Any] | None = None
    group_key: str | None = None
    resolved: Mapping[str, Any] | None = None
    origin_file: str | None = None
    origin_host: str | None = None
    by_hand: bool = False

    @property
    def resolved_from(self) -> str | None:
        return definition_digest(self.definition)


def definition_digest(definition: Mapping[str, Any] | None) -> str | None:
    """Of the entry that `resolved` was made of: programs before 0.2 change the one and not the other."""
    if definition is None:
        return None
    return hashlib.sha256(json.dumps(definition, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A row of `repositories` as it was read. Times are aware UTC.

    `last_commit` is the commit that the live version of the index holds completely. `indexed_collection`,
    `index_identity` and `content_fingerprint` repeat the live version for programs before 0.2, and are read where there
    is no version yet. `generation` counts the changes of what the repository is. `live_version`: the
    id of the live version of its index. `index_hold`: why other settings are not built (see `Hold`).
    `last_tick_at`: the latest tick of its schedule that was handled. The others are as in `Registration`; `resolved` is
    None for what no program since 0.2 has registered.
    """

    id: str
    name: str
    location: str
    source: str
    origin: str
    project_id: int | None
    branch: str | None
    collection: str
    cron_expression: str | None
    timezone: str
    scheduled_since: datetime | None
    definition: Mapping[str, Any] | None
    group_key: str | None
    is_active: bool
    paused_reason: str | None
    last_sync_at: datetime | None
    last_commit: str | None
    last_committed_at: datetime | None
    epoch: int
    indexed_collection: str | None
    index_identity: str | None
    content_fingerprint: str | None
    generation: int
    live_version: str | None
    index_hold: Mapping[str, Any] | None
    resolved: Mapping[str, Any] | None
    resolved_from: str | None
    origin_file: str | None
    origin_host: str | None
    by_hand: bool
    last_tick_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def changeable(self) -> tuple[object, ...]:
        """What a person may change of it."""
        return self.location, self.definition, self.resolved, self.is_active, self.paused_reason

    @property
    def has_left(self) -> bool:
        """It left its registry file, or its group did."""
        return not self.is_active and self.paused_reason is None

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


def belongs_to_another(row: Repository, registration: Registration, takes: Collection[str] | None) -> bool:
    """Whether somebody else has the name that a registry file claims with `registration`. `takes`: files that this one
    takes over; None: whoever has it. What left its file is free, and so is what was synced by hand from that place."""
    if registration.origin != "config" or takes is None or row.has_left:
        return False
    if row.origin == "config":
        return row.origin_file not in (None, registration.origin_file, *takes)
    same_place = row.location == registration.location
    if row.origin == "group":  # an entry of its own goes before the group
        return not same_place and row.origin_file not in (None, registration.origin_file, *takes)
    return not (same_place and row.by_hand)


def is_registered(row: Repository) -> bool:
    """Whether it was registered, be it with `schedule: never`, and not only synced by hand, by its path or address.
    Programs before 0.2 do not say so. `tables.registered` is the same in SQL."""
    by_hand = row.resolved is None and row.origin == "command" and row.cron_expression is None
    return not (row.by_hand or by_hand)


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """Active, paused (then there is a reason) or out of the registry."""

    name: str
    is_active: bool
    paused_reason: str | None
    last_sync_at: datetime | None
    cron_expression: str | None
    timezone: str

    @property
    def word(self) -> str:
        if self.is_active:
            return "active"
        return "paused" if self.paused_reason is not None else "inactive"


def unregistered(registration: Registration) -> Repository:
    """What `register` would return for a new one, without writing it."""
    now = datetime.now(UTC)
    return Repository(
        id=repository_id(registration.name),
        name=registration.name,
        location=registration.location,
        source=registration.source,
        origin=registration.origin,
        project_id=registration.project_id,
        branch=registration.branch,
        collection=registration.collection,
        cron_expression=registration.cron_expression,
        timezone=registration.timezone,
        scheduled_since=now,
        definition=registration.definition,
        group_key=registration.group_key,
        is_active=True,
        paused_reason=None,
        last_sync_at=None,
        last_commit=None,
        last_committed_at=None,
        epoch=0,
        indexed_collection=None,
        index_identity=None,
        content_fingerprint=None,
        generation=0,
        live_version=None,
        index_hold=None,
        resolved=registration.resolved,
        resolved_from=registration.resolved_from,
        origin_file=registration.origin_file,
        origin_host=registration.origin_host,
        by_hand=registration.by_hand,
        last_tick_at=None,
        created_at=now,
        updated_at=now,
    )


def repository_record(row: Row[Any]) -> Repository:
    return Repository(**row._mapping)
