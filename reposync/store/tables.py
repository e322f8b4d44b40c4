"""The tables. Queries use `REPOSITORIES`, `RUNS` and so on below; a change here needs a migration.

No foreign key leads from `sync_runs` to `repositories`: the history of a repository outlives it, hence the copied name.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Index,
    MetaData,
    Select,
    Table,
    and_,
    case,
    false,
    func,
    literal_column,
    or_,
    text,
)
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import SafeText, json_column_type
from reposync.store.status import ACTIVE, RunStatus

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class _Base(SQLModel, registry=registry(metadata=metadata)):
    pass


class RepositoryRow(_Base, table=True):
    """What is kept in sync, and how far it got."""

    __tablename__ = "repositories"

    id: str = Field(primary_key=True, sa_type=SafeText)
    name: str = Field(unique=True, sa_type=SafeText)
    location: str = Field(sa_type=SafeText)
    source: str = Field(sa_type=SafeText)
    origin: str = Field(sa_type=SafeText)
    project_id: int | None = Field(default=None, sa_type=BigInteger)
    branch: str | None = Field(default=None, sa_type=SafeText)
    collection: str = Field(sa_type=SafeText)
    cron_expression: str | None = Field(default=None, sa_type=SafeText)
    timezone: str = Field(sa_type=SafeText)
    scheduled_since: datetime | None = Field(default=None, sa_type=UTCDateTime)
    definition: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    group_key: str | None = Field(default=None, sa_type=SafeText)
    is_active: bool = True
    paused_reason: str | None = Field(default=None, sa_type=SafeText)
    last_sync_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    last_commit: str | None = Field(default=None, sa_type=SafeText)
    last_committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    epoch: int = Field(default=0, sa_type=BigInteger)
    indexed_collection: str | None = Field(default=None, sa_type=SafeText)
    index_identity: str | None = Field(default=None, sa_type=SafeText)
    content_fingerprint: str | None = Field(default=None, sa_type=SafeText)
    attributes: dict[str, Any] = Field(default_factory=dict, sa_column=Column(json_column_type(), nullable=False))
    generation: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    live_version: str | None = Field(default=None, sa_type=SafeText)
    index_hold: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    resolved: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    resolved_from: str | None = Field(default=None, sa_type=SafeText)
    origin_file: str | None = Field(default=None, sa_type=SafeText)
    origin_host: str | None = Field(default=None, sa_type=SafeText)
    by_hand: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    last_tick_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    created_at: datetime = Field(sa_type=UTCDateTime)
    updated_at: datetime = Field(sa_type=UTCDateTime)


class VersionRow(_Base, table=True):
    """One version of a repository's index: where its points are, how they were made, and which commit they hold. What
    `repositories` says of the index repeats the live version, for programs before 0.2."""

    __tablename__ = "index_versions"

    id: str = Field(primary_key=True, sa_type=SafeText)
    repository_id: str = Field(sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")
    number: int
    state: str = Field(sa_type=SafeText)
    settings_key: str | None = Field(default=None, sa_type=SafeText)
    settings: dict[str, Any] = Field(default_factory=dict, sa_column=Column(json_column_type(), nullable=False))
    generation: int = Field(default=0, sa_type=BigInteger)
    collection: str = Field(sa_type=SafeText)
    physical: str = Field(sa_type=SafeText)
    index_identity: str | None = Field(default=None, sa_type=SafeText)
    fingerprint: str | None = Field(default=None, sa_type=SafeText)
    links: str | None = Field(default=None, sa_type=SafeText)
    attributes: dict[str, Any] = Field(default_factory=dict, sa_column=Column(json_column_type(), nullable=False))
    branch_name: str | None = Field(default=None, sa_type=SafeText)
    commit_sha: str | None = Field(default=None, sa_type=SafeText)
    committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    partial_commit: str | None = Field(default=None, sa_type=SafeText)
    epoch: int = Field(default=0, sa_type=BigInteger)
    created_at: datetime = Field(sa_type=UTCDateTime)
    live_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    retired_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class VersionAttributesRow(_Base, table=True):
    """The linguist lines of one `.gitattributes` file, as of the last commit that the version was published at. In
    JSON, which holds any path exactly."""

    __tablename__ = "version_attributes"

    version_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="index_versions.id", ondelete="CASCADE")
    number: int = Field(primary_key=True)
    path: str = Field(sa_column=Column(json_column_type(), nullable=False))
    blob_sha: str = Field(sa_type=SafeText)
    lines: str = Field(sa_column=Column(json_column_type(), nullable=False))


class RunRow(_Base, table=True):
    """The execution log, which is the queue as well.

    While a run waits, `trigger`, `priority`, `max_attempts`, `full`, `approved`, `removal` and `repair` follow from its
    requests. They stand here for the index over the queue, and for earlier programs. `handed_back`: how many of its
    attempts do not count.
    """

    __tablename__ = "sync_runs"

    id: str = Field(primary_key=True, sa_type=SafeText)
    repository_id: str = Field(sa_type=SafeText)
    repository: str = Field(sa_type=SafeText)
    status: str = Field(sa_type=SafeText)
    trigger: str = Field(sa_type=SafeText)
    priority: int
    scheduled_for: datetime | None = Field(default=None, sa_type=UTCDateTime)
    not_before: datetime = Field(sa_type=UTCDateTime)
    queued_at: datetime = Field(sa_type=UTCDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    completed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    duration_seconds: float | None = None
    attempt: int = 0
    max_attempts: int
    handed_back: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    worker: str | None = Field(default=None, sa_type=SafeText)
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    full: bool = False
    approved: bool = False
    removal: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    repair: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    cancel_requested: bool = False
    full_from_epoch: int | None = Field(default=None, sa_type=BigInteger)
    brake: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    progress: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    commit_before: str | None = Field(default=None, sa_type=SafeText)
    commit_after: str | None = Field(default=None, sa_type=SafeText)
    files_processed: int = 0
    files_deleted: int = 0
    files_skipped: int = 0
    files_failed: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    chunks_embedded: int = 0
    chunks_reused: int = 0
    error_code: str | None = Field(default=None, sa_type=SafeText)
    error_message: str | None = Field(default=None, sa_type=SafeText)


class RequestRow(_Base, table=True):
    """Somebody asked for a run. Many requests may lead to one run; what it does follows from those that are not
    withdrawn.

    `approval`: None, `{}` for a mass deletion that is allowed beforehand, or the facts of the brake that were approved.
    `fingerprint` and `answer` belong to `idempotency_key`, which is cleared when its time is over.
    """

    __tablename__ = "run_requests"

    id: str = Field(primary_key=True, sa_type=SafeText)
    run_id: str = Field(sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    repository_id: str = Field(sa_type=SafeText)
    trigger: str = Field(sa_type=SafeText)
    asked_by: str = Field(sa_type=SafeText)
    asked_at: datetime = Field(sa_type=UTCDateTime)
    scheduled_for: datetime | None = Field(default=None, sa_type=UTCDateTime)
    priority: int
    max_attempts: int
    full: bool = False
    repair: bool = False
    removal: bool = False
    approval: dict[str, Any] | None = Field(default=None, sa_column=Column(json_column_type(), nullable=True))
    idempotency_key: str | None = Field(default=None, sa_type=SafeText)
    fingerprint: str | None = Field(default=None, sa_type=SafeText)
    answer: str | None = Field(default=None, sa_type=SafeText)
    withdrawn_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    withdrawn_by: str | None = Field(default=None, sa_type=SafeText)


class MissedTickRow(_Base, table=True):
    """A tick of a schedule that was noticed too late to run."""

    __tablename__ = "missed_ticks"

    repository_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")
    scheduled_for: datetime = Field(primary_key=True, sa_type=UTCDateTime)
    noticed_at: datetime = Field(sa_type=UTCDateTime)
    late_seconds: float


class AttemptRow(_Base, table=True):
    """One worker's try at a run: the run's row shows the latest, the timeline of all stands here. `times`: how many
    tries in which nothing was done, handed back for the same reason, the row stands for; `attempt` and `started_at` are
    of the first of them, `worker` and `ended_at` of the last."""

    __tablename__ = "run_attempts"

    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    attempt: int = Field(primary_key=True)
    worker: str = Field(sa_type=SafeText)
    started_at: datetime = Field(sa_type=UTCDateTime)
    ended_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    outcome: str | None = Field(default=None, sa_type=SafeText)
    times: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    files_processed: int = 0
    files_deleted: int = 0
    files_skipped: int = 0
    files_failed: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    chunks_embedded: int = 0
    chunks_reused: int = 0
    error_code: str | None = Field(default=None, sa_type=SafeText)
    error_message: str | None = Field(default=None, sa_type=SafeText)


class IdempotencyRow(_Base, table=True):
    """What earlier programs answered to requests that came with an `Idempotency-Key`; now in `run_requests`."""

    __tablename__ = "idempotency_keys"

    key: str = Field(primary_key=True, sa_type=SafeText)
    fingerprint: str = Field(sa_type=SafeText)
    run_id: str = Field(sa_type=SafeText)
    answer: str = Field(sa_type=SafeText)
    created_at: datetime = Field(sa_type=UTCDateTime)


class GroupRow(_Base, table=True):
    """A group of projects that register themselves: when it was looked through, when it is due, and who does it.
    `attempt` rises with each claim."""

    __tablename__ = "project_groups"

    key: str = Field(primary_key=True, sa_type=SafeText)
    due_at: datetime = Field(sa_type=UTCDateTime)
    worker: str | None = Field(default=None, sa_type=SafeText)
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    attempt: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    checked_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    projects: int = 0
    error_code: str | None = Field(default=None, sa_type=SafeText)
    error_message: str | None = Field(default=None, sa_type=SafeText)


class RegistryFileRow(_Base, table=True):
    """A registry file that was applied: `document` has its sections without `repositories`, secrets as references;
    `digest` is of what it says. A file is known by its absolute path, which is the same on all pods of a deployment."""

    __tablename__ = "registry_files"

    path: str = Field(primary_key=True, sa_type=SafeText)
    digest: str = Field(sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_column=Column(json_column_type(), nullable=False))
    host: str = Field(sa_type=SafeText)
    applied_by: str = Field(sa_type=SafeText)
    applied_at: datetime = Field(sa_type=UTCDateTime)
    created_at: datetime = Field(sa_type=UTCDateTime)


class SupersededDigestRow(_Base, table=True):
    """What a registry file said before: a pod that still sees it does not set it back."""

    __tablename__ = "superseded_digests"

    path: str = Field(primary_key=True, sa_type=SafeText, foreign_key="registry_files.path", ondelete="CASCADE")
    digest: str = Field(primary_key=True, sa_type=SafeText)
    superseded_at: datetime = Field(sa_type=UTCDateTime)


class EndedSessionRow(_Base, table=True):
    """A session of a browser that was signed out. `id` names it, and gives its cookie away to nobody."""

    __tablename__ = "ended_sessions"

    id: str = Field(primary_key=True, sa_type=SafeText)
    ended_at: datetime = Field(sa_type=UTCDateTime)


class WorkerRow(_Base, table=True):
    """A worker that claims runs, when it said so last, and how far its machine's clock was ahead of the database's."""

    __tablename__ = "workers"

    name: str = Field(primary_key=True, sa_type=SafeText)
    host: str = Field(sa_type=SafeText)
    version: str = Field(sa_type=SafeText)
    started_at: datetime = Field(sa_type=UTCDateTime)
    seen_at: datetime = Field(sa_type=UTCDateTime)
    clock_skew_seconds: float | None = None


class ProblemRow(_Base, table=True):
    """A file that a run skipped or failed on. `path` is `path_key` of its path."""

    __tablename__ = "run_problems"

    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    path: str = Field(primary_key=True, sa_type=SafeText)
    reason: str = Field(sa_type=SafeText)
    detail: str = Field(sa_type=SafeText)


class FileRow(_Base, table=True):
    """The manifest: every file of the last listing and what the index holds of it. `path` is `path_key` of the path;
    `long_path` is the path itself where that differs.

    `repository_id` is the id of an index version; a repository's first version has the repository's own id. No foreign
    key: programs before 0.2 register repositories without a version. `wanted_sha`: the blob that the commit has, where
    the points are of an older one because it could not be read. `reader`: `<epoch>.<how it was read>`, which holds only
    as long as the epoch is the row's: programs before 0.2 leave this column as it was.
    """

    __tablename__ = "indexed_files"
    # Without a rowid the primary key is the table: half the size, and loading a repository is one range scan.
    __table_args__ = {"sqlite_with_rowid": False}

    repository_id: str = Field(primary_key=True, sa_type=SafeText)
    path: str = Field(primary_key=True, sa_type=SafeText)
    long_path: str | None = Field(default=None, sa_type=SafeText)
    blob_sha: str = Field(sa_type=SafeText)
    mode: int
    size_bytes: int | None = Field(default=None, sa_type=BigInteger)
    chunks: int
    skip_reason: str | None = Field(default=None, sa_type=SafeText)
    language: str | None = Field(default=None, sa_type=SafeText)
    epoch: int = Field(sa_type=BigInteger)
    wanted_sha: str | None = Field(default=None, sa_type=SafeText)
    reader: str | None = Field(default=None, sa_type=SafeText)


def _table(row: type[_Base]) -> Table:
    return cast(Table, getattr(row, "__table__"))  # noqa: B009  (SQLModel does not declare it to type checkers)


REPOSITORIES = _table(RepositoryRow)
RUNS = _table(RunRow)
PROBLEMS = _table(ProblemRow)
FILES = _table(FileRow)
VERSIONS = _table(VersionRow)
VERSION_ATTRIBUTES = _table(VersionAttributesRow)
ATTEMPTS = _table(AttemptRow)
GROUPS = _table(GroupRow)
WORKERS = _table(WorkerRow)
REQUESTS = _table(RequestRow)
MISSED_TICKS = _table(MissedTickRow)
IDEMPOTENCY_KEYS = _table(IdempotencyRow)
REGISTRY_FILES = _table(RegistryFileRow)
SUPERSEDED_DIGESTS = _table(SupersededDigestRow)
ENDED_SESSIONS = _table(EndedSessionRow)

# Without the lines of `.gitattributes`: up to 13 MB, which one run in a while needs. `version_attributes` has them now.
REPOSITORY_COLUMNS = tuple(column for column in REPOSITORIES.c if column.name != "attributes")
VERSION_COLUMNS = tuple(column for column in VERSIONS.c if column.name != "attributes")


def status_is(*statuses: RunStatus, runs: FromClause = RUNS) -> ColumnElement[bool]:
    """Written out and not as a parameter: SQLite takes a partial index only where the words of its condition stand in
    the query, and PostgreSQL's plan of a prepared statement knows no parameter."""
    words: list[ColumnElement[str]] = [literal_column(f"'{each}'") for each in sorted(statuses)]
    return runs.c.status == words[0] if len(words) == 1 else runs.c.status.in_(words)


def is_active(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the indexes over active runs, to be added to a narrower one: SQLite does not see that waiting
    runs are active."""
    return status_is(*ACTIVE, runs=runs)


def is_over(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the index over runs that ended, as above."""
    return ~is_active(runs)


def with_live_version(query: Select[Any]) -> Select[Any]:
    """`query` over `REPOSITORIES`, joined with the live version of each where `live_commit` needs it: a first version
    has the repository's id, and programs before 0.2 may have brought it further."""
    live = and_(VERSIONS.c.repository_id == REPOSITORIES.c.id, VERSIONS.c.state == literal_column("'live'"))
    return query.select_from(REPOSITORIES.outerjoin(VERSIONS, and_(live, VERSIONS.c.id != REPOSITORIES.c.id)))


def registered() -> ColumnElement[bool]:
    """`repository.is_registered`: not what was only synced by hand."""
    columns = REPOSITORIES.c
    before_02 = and_(columns.resolved.is_(None), columns.origin == "command", columns.cron_expression.is_(None))
    return ~or_(columns.by_hand, before_02)


def live_commit() -> ColumnElement[str | None]:
    """The commit that can be searched completely."""
    return case((VERSIONS.c.id.is_not(None), VERSIONS.c.commit_sha), else_=REPOSITORIES.c.last_commit)


def _while(statuses: Collection[RunStatus]) -> dict[str, Any]:
    words = ", ".join(f"'{each}'" for each in sorted(statuses))
    return _only(f"status = {words}" if len(statuses) == 1 else f"status IN ({words})")


def _only(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


# The promises "never synced twice at a time", "one already queued is returned" and "a tick never runs twice" rest on
# these, whatever the code above them does.
Index("uq_sync_runs_running", RUNS.c.repository_id, unique=True, **_while({RunStatus.RUNNING}))
Index("uq_sync_runs_queued", RUNS.c.repository_id, unique=True, **_while({RunStatus.QUEUED}))
Index("uq_sync_runs_tick", RUNS.c.repository_id, RUNS.c.scheduled_for, unique=True)

# The queue: however long the history is, these two hold only what is not over. The first is in the order of claims.
Index("ix_sync_runs_queue", RUNS.c.priority, RUNS.c.not_before, RUNS.c.queued_at, RUNS.c.id, **_while(ACTIVE))
Index("ix_sync_runs_active", RUNS.c.repository_id, **_while(ACTIVE))
# The pages of the history.
_NEWEST = (RUNS.c.queued_at.desc(), RUNS.c.id.desc())
Index("ix_sync_runs_newest", *_NEWEST)
Index("ix_sync_runs_repository_newest", RUNS.c.repository, *_NEWEST)
Index("ix_sync_runs_active_newest", *_NEWEST, **_while(ACTIVE))
# Only of those that are over: SQLite, which knows nothing of how many there are, would use it for the queue, and sort.
_OVER = text("status NOT IN ('queued', 'retrying', 'running')")
for _name, _columns in (
    ("ix_sync_runs_over_newest", ()),
    # Filters that go together: where hardly any run fits, all of a repository's or of a trigger's would be passed by.
    ("ix_sync_runs_repository_over_newest", (RUNS.c.repository,)),
    ("ix_sync_runs_trigger_over_newest", (RUNS.c.trigger,)),
):
    Index(_name, *_columns, RUNS.c.status, *_NEWEST, sqlite_where=_OVER, postgresql_where=_OVER)
Index("ix_run_requests_run_id", REQUESTS.c.run_id)
Index("uq_run_requests_key", REQUESTS.c.asked_by, REQUESTS.c.idempotency_key, unique=True)
Index("ix_missed_ticks_noticed_at", MISSED_TICKS.c.noticed_at)
# One version of a repository is searched, and one is built, whatever the code above does.
for _state in ("live", "building"):
    Index(f"uq_index_versions_{_state}", VERSIONS.c.repository_id, unique=True, **_only(f"state = '{_state}'"))
Index("ix_index_versions_repository_id", VERSIONS.c.repository_id)
Index("ix_index_versions_physical", VERSIONS.c.physical, VERSIONS.c.state)
# What a search asks (`served`): few entries or one, however many repositories there are.
Index("ix_index_versions_not_live", VERSIONS.c.physical, VERSIONS.c.id, **_only("state <> 'live'"))
Index("ix_index_versions_live_at", VERSIONS.c.live_at)
Index("ix_repositories_unversioned", REPOSITORIES.c.id, **_only("live_version IS NULL AND last_sync_at IS NOT NULL"))
# What a push asks.
Index("ix_repositories_project_id", REPOSITORIES.c.project_id, **_only("project_id IS NOT NULL"))
Index("ix_repositories_location", func.lower(REPOSITORIES.c.location), **_only("project_id IS NULL"))
Index("ix_repositories_group_key", REPOSITORIES.c.group_key)
Index("ix_idempotency_keys_created_at", IDEMPOTENCY_KEYS.c.created_at)
Index("ix_ended_sessions_ended_at", ENDED_SESSIONS.c.ended_at)
