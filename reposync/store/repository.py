"""A repository as it is registered, and as its row was read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
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
    or group. `branch` is None for the default branch; `project_id` is left as it is where None. `definition`: the entry
    as the registry file would have it, without secrets, for what is not in that file. `group_key`: the group that it
    registered with.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A row of `repositories` as it was read. Times are aware UTC.

    `last_commit` is the commit that the live version of the index holds completely. `indexed_collection`,
    `index_identity`, `content_fingerprint` and `attributes` repeat the live version for programs before 0.2, and are
    read where there is no version yet. `generation` counts the changes of what the repository is. `live_version`: the
    id of the live version of its index. `index_hold`: why other settings are not built (see `Hold`).
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
    attributes: Mapping[str, Sequence[str]]
    generation: int
    live_version: str | None
    index_hold: Mapping[str, Any] | None
    created_at: datetime
    updated_at: datetime

    @property
    def changeable(self) -> tuple[object, ...]:
        """What a person may change of it."""
        return self.location, self.definition, self.is_active, self.paused_reason


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """Active, paused (then there is a reason) or out of the registry."""

    name: str
    is_active: bool
    paused_reason: str | None
    last_sync_at: datetime | None

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
        attributes={},
        generation=0,
        live_version=None,
        index_hold=None,
        created_at=now,
        updated_at=now,
    )


def repository_record(row: Row[Any]) -> Repository:
    return Repository(**row._mapping)
