"""The tables with their indexes, and conditions that queries share. A change here needs a migration.

A record, such as `Run`, declares the columns that are read together; its table adds those that are read apart. No
foreign key leads from `sync_runs` to `repositories`: the history of a repository outlives it, hence the copied name.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    ForeignKey,
    FromClause,
    Integer,
    PrimaryKeyConstraint,
    Table,
    case,
    literal_column,
    or_,
    text,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine
from sqlmodel import Field
from sqlmodel.main import get_column_from_field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import JsonText, Record, SafeText, Word, metadata
from reposync.store.repository import Repository
from reposync.store.run import MissedTick, Run, RunAttempt
from reposync.store.status import ACTIVE, RunStatus


class VersionState(StrEnum):
    """The values are in the database and in its partial indexes: do not rename them."""

    BUILDING = "building"
    LIVE = "live"
    RETIRED = "retired"


class _VersionState(Word):
    cache_ok = True
    words = VersionState


class IndexVersion(Record):
    """A row of `index_versions`: where the points of a repository are, how they were made, which commit they hold.

    `id` is the `repository_id` of its points and manifest rows. `settings_key`: a digest of `settings`, which decide
    how points are made; None if that is not known, as of an index that an older program left incomplete. `collection`
    is the configured name, `physical` the collection that has the points. `fingerprint`: of the path rules that the
    whole manifest was made with; None while a run changes it. `links`: the link to a sample
    file, empty if the name or the address of the repository has changed since. `commit_sha` is
    held completely, `partial_commit` except for files that could not be read. `epoch`: of the last run that wrote to
    it."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    repository_id: str = Field(sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")
    number: int
    state: VersionState | str = Field(sa_type=_VersionState)
    settings_key: str | None = Field(default=None, sa_type=SafeText)
    settings: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    generation: int = Field(default=0, sa_type=BigInteger)
    collection: str = Field(sa_type=SafeText)
    physical: str = Field(sa_type=SafeText)
    index_identity: str | None = Field(default=None, sa_type=SafeText)
    fingerprint: str | None = Field(default=None, sa_type=SafeText)
    links: str | None = Field(default=None, sa_type=SafeText)
    branch_name: str | None = Field(default=None, sa_type=SafeText)
    commit_sha: str | None = Field(default=None, sa_type=SafeText)
    committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    partial_commit: str | None = Field(default=None, sa_type=SafeText)
    epoch: int = Field(default=0, sa_type=BigInteger)
    created_at: datetime = Field(sa_type=UTCDateTime)
    live_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    retired_at: datetime | None = Field(default=None, sa_type=UTCDateTime)

    @property
    def has_words_only(self) -> bool:
        """Its points have no dense vectors yet: the version that replaces it is being built."""
        return bool(self.settings.get("words_only"))


class ProjectGroup(Record):
    """A row of `project_groups`: a GitLab group whose projects register themselves. `attempt` rises with each claim.
    `projects`: how many were registered when it was last listed completely, at `checked_at`. The error is that of the
    latest attempt."""

    key: str = Field(primary_key=True, sa_type=SafeText)
    due_at: datetime = Field(sa_type=UTCDateTime)
    worker: str | None = Field(default=None, sa_type=SafeText)
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    attempt: int = Field(default=0, sa_type=BigInteger, sa_column_kwargs={"server_default": text("0")})
    checked_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    projects: int = 0
    error_code: str | None = Field(default=None, sa_type=SafeText)
    error_message: str | None = Field(default=None, sa_type=SafeText)


class RegistryDocument(Record):
    """The row of `registry_documents`: the registry file that was applied last. `document` has its sections without
    `repositories`, with secrets as references; `digest` is that of its meaning, and empty for a document that an
    upgrade merged from several files. `superseded`: digests of earlier documents, oldest first. `path`: of the file,
    for people."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    digest: str = Field(sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    superseded: list[str] = Field(default_factory=list, sa_type=JsonText)
    path: str = Field(sa_type=SafeText)
    applied_by: str = Field(sa_type=SafeText)
    applied_at: datetime = Field(sa_type=UTCDateTime)


class Worker(Record):
    """A row of `workers`: a worker that claims runs. `name` as in the rows of its runs; `host`: the machine; `version`
    of the program. `clock_skew_seconds`: how far its machine's clock is ahead of the database's; None: not measured."""

    name: str = Field(primary_key=True, sa_type=SafeText)
    host: str = Field(sa_type=SafeText)
    version: str = Field(sa_type=SafeText)
    started_at: datetime = Field(sa_type=UTCDateTime)
    seen_at: datetime = Field(sa_type=UTCDateTime)
    clock_skew_seconds: float | None = None


# The tables ----------------------------------------------------------------------------------------------------------


def _table(name: str, record: type[Record] | None, *more: SchemaItem, **options: Any) -> Table:
    """The columns of `record`, and those that are read apart."""
    columns: list[Column[Any]] = []
    for field, details in (record.model_fields if record is not None else {}).items():
        columns.append(get_column_from_field(details))
        columns[-1].name = columns[-1].key = field
    return Table(name, metadata, *columns, *more, **options)


def _columns(kind: type[TypeEngine[Any]], *names: str, **options: Any) -> Iterator[Column[Any]]:
    return (Column(name, kind(), nullable=False, **options) for name in names)


def _owner(column: str, target: str) -> Column[str]:
    """Rows are deleted with the row that they belong to."""
    return Column(column, SafeText(), ForeignKey(target, ondelete="CASCADE"), nullable=False)


REPOSITORIES = _table("repositories", Repository)
# Lines of `.gitattributes` are up to 13 MB.
VERSIONS = _table("index_versions", IndexVersion, *_columns(JsonText, "attributes"))
RUNS = _table("sync_runs", Run)
ATTEMPTS = _table(
    "run_attempts", RunAttempt, _owner("run_id", "sync_runs.id"), PrimaryKeyConstraint("run_id", "attempt")
)
# `path` is the `path_key` of the path of a file that a run skipped or failed on.
PROBLEMS = _table(
    "run_problems",
    None,
    _owner("run_id", "sync_runs.id"),
    *_columns(SafeText, "path", "reason", "detail"),
    PrimaryKeyConstraint("run_id", "path"),
)
MISSED_TICKS = _table(
    "missed_ticks",
    MissedTick,
    _owner("repository_id", "repositories.id"),
    PrimaryKeyConstraint("repository_id", "scheduled_for"),
)
# `fingerprint`: of the request that was sent with the key; `run_id`: the run that it led to.
IDEMPOTENCY_KEYS = _table(
    "idempotency_keys",
    None,
    *_columns(SafeText, "key", primary_key=True),
    *_columns(SafeText, "fingerprint", "run_id"),
    *_columns(UTCDateTime, "created_at"),
)
GROUPS = _table("project_groups", ProjectGroup)
REGISTRY_DOCUMENTS = _table("registry_documents", RegistryDocument)
# Of 0.2, whose pods use them beside this version; now in `registry_documents`.
_table(
    "registry_files",
    None,
    *_columns(SafeText, "path", primary_key=True),
    *_columns(JsonText, "document"),
    *_columns(SafeText, "digest", "host", "applied_by"),
    *_columns(UTCDateTime, "applied_at", "created_at"),
)
_table(
    "superseded_digests",
    None,
    _owner("path", "registry_files.path"),
    *_columns(SafeText, "digest"),
    *_columns(UTCDateTime, "superseded_at"),
    PrimaryKeyConstraint("path", "digest"),
)
# Browser sessions that were signed out. `id` identifies a session and does not reveal its cookie.
ENDED_SESSIONS = _table(
    "ended_sessions", None, *_columns(SafeText, "id", primary_key=True), *_columns(UTCDateTime, "ended_at")
)
WORKERS = _table("workers", Worker)
FILES = _table(
    "indexed_files",
    None,
    *_columns(SafeText, "repository_id", "path", "blob_sha"),
    *_columns(Integer, "mode", "chunks"),
    *_columns(BigInteger, "epoch"),
    Column("size_bytes", BigInteger()),
    *(Column(name, SafeText()) for name in ("long_path", "skip_reason", "language", "wanted_sha", "reader")),
    PrimaryKeyConstraint("repository_id", "path"),
    # Without a rowid the primary key is the table: half the size, and loading a repository is one range scan.
    sqlite_with_rowid=False,
)
"""The manifest: every file of the last listing and what the index holds of it. `path` is the `path_key` of the path;
`long_path` is the path itself if that differs.

`repository_id` is the id of an index version; a repository's first version has the repository's own id. `wanted_sha`:
the blob of the commit, if the points are of an older one because it could not be read. `reader`: `<epoch>.<how it was
read>`, valid only if the epoch is that of the row: 0.1 left this column unchanged."""

REPOSITORY_COLUMNS = tuple(REPOSITORIES.c[name] for name in Repository.model_fields)
VERSION_COLUMNS = tuple(VERSIONS.c[name] for name in IndexVersion.model_fields)


def status_is(*statuses: RunStatus, runs: FromClause = RUNS) -> ColumnElement[bool]:
    """Literals and not parameters: SQLite uses a partial index only if the words of its condition are in the query, and
    PostgreSQL's plan of a prepared statement knows no parameter."""
    words: list[ColumnElement[str]] = [literal_column(f"'{each}'") for each in sorted(statuses)]
    return runs.c.status == words[0] if len(words) == 1 else runs.c.status.in_(words)


HAS_LEFT = "NOT is_active AND paused_reason IS NULL"
"""Of repositories that have left the registry; in words, so that SQLite finds the index with this condition."""


def is_active(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the indexes over active runs, to be added to a narrower one: SQLite does not infer that waiting
    runs are active."""
    return status_is(*ACTIVE, runs=runs)


def is_over(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the index over finished runs, to be added likewise."""
    return ~is_active(runs)


def new_head(commit: str, now: ColumnElement[datetime]) -> dict[str, Any]:
    """Values of a repository whose source has a new head. If it was behind its head before, it has been since then."""
    columns = REPOSITORIES.c
    was_current = or_(columns.head_commit.is_(None), columns.head_commit == columns.last_commit)
    return {"head_commit": commit, "lag_since": case((was_current, now), else_=columns.lag_since)}


CLAIM_ORDER = (RUNS.c.priority, RUNS.c.not_before, RUNS.c.queued_at, RUNS.c.id)
