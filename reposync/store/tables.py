"""The tables with their indexes, and conditions that queries share. A change here needs a migration.

A record, such as `Run`, declares the columns that are read together; its table adds those that are read apart. No
foreign key leads from `sync_runs` to `repositories`: the history of a repository outlives it, hence the copied name.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    PrimaryKeyConstraint,
    Select,
    Table,
    and_,
    case,
    literal_column,
    or_,
    text,
)
from sqlmodel import Field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import JsonText, Record, SafeText, Word
from reposync.store.repository import Repository
from reposync.store.run import MissedTick, Run, RunAttempt, RunRequest
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
    whole manifest was made with; None while a run changes it. `links`: the prefix of links to files. `commit_sha` is
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


class RegistryFile(Record):
    """A row of `registry_files`: a registry file that was applied. `document` has its sections without `repositories`,
    with secrets as references; `digest` is that of its content. The absolute path, which is the same on all pods of a
    deployment, identifies a file."""

    path: str = Field(primary_key=True, sa_type=SafeText)
    digest: str = Field(sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    host: str = Field(sa_type=SafeText)
    applied_by: str = Field(sa_type=SafeText)
    applied_at: datetime = Field(sa_type=UTCDateTime)
    created_at: datetime = Field(sa_type=UTCDateTime)


class Worker(Record):
    """A row of `workers`: a worker that claims runs. `name` as in the rows of its runs; `host`: the machine; `version`
    of the program. `clock_skew_seconds`: how far its machine's clock is ahead of the database's; None: not measured."""

    name: str = Field(primary_key=True, sa_type=SafeText)
    host: str = Field(sa_type=SafeText)
    version: str = Field(sa_type=SafeText)
    started_at: datetime = Field(sa_type=UTCDateTime)
    seen_at: datetime = Field(sa_type=UTCDateTime)
    clock_skew_seconds: float | None = None


class _Repositories(Repository, table=True):
    __tablename__ = "repositories"
    # Lines of `.gitattributes`, up to 13 MB: only programs before 0.2 use this column and that of `index_versions`.
    attributes: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)


class _Versions(IndexVersion, table=True):
    __tablename__ = "index_versions"
    attributes: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)


class _VersionAttributes(Record, table=True):
    """The linguist lines of one `.gitattributes` file at the commit that the version was last published with. JSON
    holds any path exactly."""

    __tablename__ = "version_attributes"
    version_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="index_versions.id", ondelete="CASCADE")
    number: int = Field(primary_key=True)
    path: str = Field(sa_type=JsonText)
    blob_sha: str = Field(sa_type=SafeText)
    lines: str = Field(sa_type=JsonText)


class _Runs(Run, table=True):
    __tablename__ = "sync_runs"


class _Requests(RunRequest, table=True):
    """`fingerprint` and `answer` belong to `idempotency_key`, and are cleared with it when it expires."""

    __tablename__ = "run_requests"
    idempotency_key: str | None = Field(default=None, sa_type=SafeText)
    fingerprint: str | None = Field(default=None, sa_type=SafeText)
    answer: str | None = Field(default=None, sa_type=SafeText)


class _Attempts(RunAttempt, table=True):
    __tablename__ = "run_attempts"
    __table_args__ = (PrimaryKeyConstraint("run_id", "attempt"),)
    run_id: str = Field(sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")


class _Problems(Record, table=True):
    """A file that a run skipped or failed on. `path` is the `path_key` of its path."""

    __tablename__ = "run_problems"
    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    path: str = Field(primary_key=True, sa_type=SafeText)
    reason: str = Field(sa_type=SafeText)
    detail: str = Field(sa_type=SafeText)


class _MissedTicks(MissedTick, table=True):
    __tablename__ = "missed_ticks"
    __table_args__ = (PrimaryKeyConstraint("repository_id", "scheduled_for"),)
    repository_id: str = Field(sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")


class _IdempotencyKeys(Record, table=True):
    """Answers of programs before 0.2 to requests with an `Idempotency-Key`; now in `run_requests`."""

    __tablename__ = "idempotency_keys"
    key: str = Field(primary_key=True, sa_type=SafeText)
    fingerprint: str = Field(sa_type=SafeText)
    run_id: str = Field(sa_type=SafeText)
    answer: str = Field(sa_type=SafeText)
    created_at: datetime = Field(sa_type=UTCDateTime)


class _Groups(ProjectGroup, table=True):
    __tablename__ = "project_groups"


class _RegistryFiles(RegistryFile, table=True):
    __tablename__ = "registry_files"


class _SupersededDigests(Record, table=True):
    """Earlier contents of registry files: a pod that still sees one does not restore it."""

    __tablename__ = "superseded_digests"
    path: str = Field(primary_key=True, sa_type=SafeText, foreign_key="registry_files.path", ondelete="CASCADE")
    digest: str = Field(primary_key=True, sa_type=SafeText)
    superseded_at: datetime = Field(sa_type=UTCDateTime)


class _EndedSessions(Record, table=True):
    """Browser sessions that were signed out. `id` identifies a session and does not reveal its cookie."""

    __tablename__ = "ended_sessions"
    id: str = Field(primary_key=True, sa_type=SafeText)
    ended_at: datetime = Field(sa_type=UTCDateTime)


class _Workers(Worker, table=True):
    __tablename__ = "workers"


class _Files(Record, table=True):
    """The manifest: every file of the last listing and what the index holds of it. `path` is the `path_key` of the
    path; `long_path` is the path itself if that differs.

    `repository_id` is the id of an index version; a repository's first version has the repository's own id. No foreign
    key: programs before 0.2 register repositories without a version. `wanted_sha`: the blob of the commit, if the
    points are of an older one because it could not be read. `reader`: `<epoch>.<how it was read>`, valid only if the
    epoch is that of the row: programs before 0.2 leave this column unchanged.
    """

    __tablename__ = "indexed_files"
    # Without a rowid the primary key is the table: half the size, and loading a repository is one range scan.
    __table_args__ = ({"sqlite_with_rowid": False},)
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


def _table(row: type[Record]) -> Table:
    return cast(Table, getattr(row, "__table__"))  # noqa: B009  (SQLModel does not declare it to type checkers)


REPOSITORIES = _table(_Repositories)
RUNS = _table(_Runs)
PROBLEMS = _table(_Problems)
FILES = _table(_Files)
VERSIONS = _table(_Versions)
VERSION_ATTRIBUTES = _table(_VersionAttributes)
ATTEMPTS = _table(_Attempts)
GROUPS = _table(_Groups)
WORKERS = _table(_Workers)
REQUESTS = _table(_Requests)
MISSED_TICKS = _table(_MissedTicks)
IDEMPOTENCY_KEYS = _table(_IdempotencyKeys)
REGISTRY_FILES = _table(_RegistryFiles)
SUPERSEDED_DIGESTS = _table(_SupersededDigests)
ENDED_SESSIONS = _table(_EndedSessions)

REPOSITORY_COLUMNS = tuple(REPOSITORIES.c[name] for name in Repository.model_fields)
VERSION_COLUMNS = tuple(VERSIONS.c[name] for name in IndexVersion.model_fields)


def status_is(*statuses: RunStatus, runs: FromClause = RUNS) -> ColumnElement[bool]:
    """Literals and not parameters: SQLite uses a partial index only if the words of its condition are in the query, and
    PostgreSQL's plan of a prepared statement knows no parameter."""
    words: list[ColumnElement[str]] = [literal_column(f"'{each}'") for each in sorted(statuses)]
    return runs.c.status == words[0] if len(words) == 1 else runs.c.status.in_(words)


def is_active(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the indexes over active runs, to be added to a narrower one: SQLite does not infer that waiting
    runs are active."""
    return status_is(*ACTIVE, runs=runs)


def is_over(runs: FromClause = RUNS) -> ColumnElement[bool]:
    """The condition of the index over finished runs, to be added likewise."""
    return ~is_active(runs)


def with_live_version(query: Select[Any]) -> Select[Any]:
    """`query` over `REPOSITORIES`, joined with the live versions that `live_commit` needs. Not with first versions,
    which have the repository's id: programs before 0.2 may have updated the repository's row alone."""
    live = and_(VERSIONS.c.repository_id == REPOSITORIES.c.id, VERSIONS.c.state == literal_column("'live'"))
    return query.select_from(REPOSITORIES.outerjoin(VERSIONS, and_(live, VERSIONS.c.id != REPOSITORIES.c.id)))


def live_commit() -> ColumnElement[str | None]:
    """The commit that can be searched completely."""
    return case((VERSIONS.c.id.is_not(None), VERSIONS.c.commit_sha), else_=REPOSITORIES.c.last_commit)


def registered() -> ColumnElement[bool]:
    """`repository.is_registered` in SQL."""
    columns = REPOSITORIES.c
    before_02 = and_(columns.resolved.is_(None), columns.origin == "command", columns.cron_expression.is_(None))
    return ~or_(columns.by_hand, before_02)
