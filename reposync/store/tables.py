"""The tables with their indexes, and conditions that queries share. A change here needs a migration.

A record, such as `Run`, declares the columns that are read together; its table adds those that are read apart. No
foreign key leads from `sync_runs` to `repositories`: the history of a repository outlives it, hence the copied name.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    LargeBinary,
    case,
    literal_column,
    or_,
    text,
)
from sqlmodel import Field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import JsonText, Record, SafeText, Word, table_of
from reposync.store.repository import Repository
from reposync.store.run import Run
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
    """A row of `index_versions`: where the points of a repository are, how they were made, which commit they hold."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    """It is the `version_id` of its manifest rows, and `metadata.repository_id` of its points."""
    repository_id: str = Field(sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")
    number: int
    state: VersionState | str = Field(sa_type=_VersionState)
    settings_key: str | None = Field(default=None, sa_type=SafeText)
    """The digest of `settings`; None if it is not known, as of an index that an older program left incomplete."""
    settings: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    """They decide how points are made."""
    generation: int = Field(default=0, sa_type=BigInteger)
    collection: str = Field(sa_type=SafeText)
    """The configured name."""
    physical: str = Field(sa_type=SafeText)
    """The collection that has the points."""
    index_identity: str | None = Field(default=None, sa_type=SafeText)
    fingerprint: str | None = Field(default=None, sa_type=SafeText)
    """The digest of the path rules that the whole manifest was made with; None while a run changes it."""
    links: str | None = Field(default=None, sa_type=SafeText)
    """The link to a sample file; see `has_old_links`."""
    branch_name: str | None = Field(default=None, sa_type=SafeText)
    commit_sha: str | None = Field(default=None, sa_type=SafeText)
    """This commit is held completely."""
    committed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    partial_commit: str | None = Field(default=None, sa_type=SafeText)
    """This commit is held except for files that could not be read."""
    epoch: int = Field(default=0, sa_type=BigInteger)
    """The epoch of the last run that wrote to it."""
    meaning_pending: int | None = Field(default=None, sa_type=BigInteger)
    """How many points had no dense vector when that was counted last, while a run adds them; until then only words are
    searched. None: all points have one, or the model makes none."""
    secret_rules: str | None = Field(default=None, sa_type=SafeText)
    """The rules that found the secrets of all its files; None if that is not known."""
    created_at: datetime = Field(sa_type=UTCDateTime)
    live_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    retired_at: datetime | None = Field(default=None, sa_type=UTCDateTime)

    @property
    def held_commit(self) -> str | None:
        """The commit whose files it holds, perhaps except for some that could not be read."""
        return self.partial_commit or self.commit_sha

    @property
    def has_old_links(self) -> bool:
        """The name or the address of the repository has changed since its points were written: the next run that
        publishes writes both to all of them."""
        return self.links == ""


class RegistryDocument(Record):
    """The row of `registry_documents`: the registry file that was applied last."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    digest: str = Field(sa_type=SafeText)
    """The digest of its meaning; empty for a document that an upgrade merged from several files."""
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    """Its sections without `repositories` and `groups`, with secrets as references."""
    superseded: list[str] = Field(default_factory=list, sa_type=JsonText)
    """Digests of earlier documents, oldest first."""
    path: str = Field(sa_type=SafeText)
    """The path of the file, for people."""
    applied_by: str = Field(sa_type=SafeText)
    applied_at: datetime = Field(sa_type=UTCDateTime)


class GroupEntry(Record):
    """A GitLab group whose projects register themselves."""

    key: str = Field(primary_key=True, sa_type=SafeText)
    """`<server's address>/<path>`"""
    definition: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    """Its entry as in the registry file; None if only a program before this version has written the row."""
    origin: str = Field(default="config", sa_type=SafeText, sa_column_kwargs={"server_default": text("'config'")})
    """It is config, command or http."""

    @property
    def path(self) -> str:
        """The path of the group on its server."""
        return str((self.definition or {}).get("group", self.key))

    @property
    def title(self) -> str:
        return f"group {(self.definition or {}).get('gitlab', '')}/{self.path}"

    @property
    def origin_words(self) -> str:
        """Where its definition comes from, for people."""
        return {"config": "the registry file", "http": "a request over HTTP"}.get(self.origin, "a command")


class ProjectGroup(GroupEntry):
    """A row of `project_groups`."""

    due_at: datetime = Field(sa_type=UTCDateTime)
    """When its projects are listed next."""


class Worker(Record):
    """A row of `workers`: a worker that claims runs."""

    name: str = Field(primary_key=True, sa_type=SafeText)
    """The name in the rows of its runs."""
    host: str = Field(sa_type=SafeText)
    """The name of its machine."""
    version: str = Field(sa_type=SafeText)
    """The version of the program."""
    started_at: datetime = Field(sa_type=UTCDateTime)
    seen_at: datetime = Field(sa_type=UTCDateTime)
    clock_skew_seconds: float | None = None
    """How far its machine's clock is ahead of the database's; None if it was not measured."""


# The tables ----------------------------------------------------------------------------------------------------------
# Each is a record with the columns that are read apart. Rows are read as records and not as these classes, whose
# instances SQLAlchemy would watch for changes.


class _Repositories(Repository, table=True):
    __tablename__ = "repositories"


class _Versions(IndexVersion, table=True):
    __tablename__ = "index_versions"
    # Lines of `.gitattributes` are up to 13 MB.
    attributes: dict[str, Any] = Field(sa_type=JsonText)


class _Runs(Run, table=True):
    __tablename__ = "sync_runs"


class _Problems(Record, table=True):
    """Files that a run skipped or failed on."""

    __tablename__ = "run_problems"
    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    path: str = Field(primary_key=True, sa_type=SafeText)
    """The `path_key` of the path."""
    reason: str = Field(sa_type=SafeText)
    detail: str = Field(sa_type=SafeText)


class _Changes(Record, table=True):
    """The first files that a run added, changed or removed."""

    __tablename__ = "run_changes"
    __table_args__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    path: str = Field(primary_key=True, sa_type=SafeText)
    """The `path_key` of the path."""
    change: str = Field(sa_type=SafeText)
    """A `FileChange`."""


class _LogLines(Record, table=True):
    """Lines that a daemon logged about a run, without secrets."""

    __tablename__ = "run_log_lines"
    __table_args__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    """The position within the attempt, from 1. Only the process of the attempt writes its lines."""
    at: datetime = Field(sa_type=UTCDateTime)
    level: str = Field(sa_type=SafeText)
    text: str = Field(sa_type=SafeText)


class _Groups(ProjectGroup, table=True):
    __tablename__ = "project_groups"


class _RegistryDocuments(RegistryDocument, table=True):
    __tablename__ = "registry_documents"


class _Workers(Worker, table=True):
    __tablename__ = "workers"


class SecretFinding(Record):
    """A row of `secret_findings`: a secret in an indexed file, without its value."""

    path: str = Field(primary_key=True, sa_type=SafeText)
    """The `path_key` of the path."""
    line: int = Field(primary_key=True)
    rule: str = Field(primary_key=True, sa_type=SafeText)
    fingerprint: str = Field(primary_key=True, sa_type=SafeText)
    action: str = Field(sa_type=SafeText)
    """It is mask, skip or warn."""
    first_commit: str = Field(sa_type=SafeText)
    """The commit of the run that saw it first."""
    first_seen_at: datetime = Field(sa_type=UTCDateTime)


class _SecretFindings(SecretFinding, table=True):
    __tablename__ = "secret_findings"
    repository_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")


class StoredEvaluation(Record):
    """A row of `evaluations`: figures of questions from the history, without the questions."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    at: datetime = Field(sa_type=UTCDateTime)
    commit_sha: str = Field(sa_type=SafeText)
    """The newest state that was searched."""
    states: int
    """The number of past states; 0: the live index, which had the changes."""
    model: str | None = Field(default=None, sa_type=SafeText)
    questions: int
    figures: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    """By what was searched, and by figure: mean and bounds."""


class _Evaluations(StoredEvaluation, table=True):
    __tablename__ = "evaluations"
    repository_id: str = Field(sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")


class _CommitWords(Record, table=True):
    """What the last commits of a repository say of its files."""

    __tablename__ = "commit_words"
    repository_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")
    read_at: datetime = Field(sa_type=UTCDateTime)
    """When the source was asked last, also if it refused."""
    words: bytes | None = Field(default=None, sa_type=LargeBinary)
    """As `CommitWords.stored` writes them; None if the source never had any."""


class _FingerprintKeys(Record, table=True):
    """One row with the key of the fingerprints."""

    __tablename__ = "fingerprint_keys"
    id: str = Field(primary_key=True, sa_type=SafeText)
    key: str = Field(sa_type=SafeText)
    """The key, hexadecimal. Without it, nobody can try guessed values."""


class _Files(Record, table=True):
    """The manifest: every file of the last listing and what the index holds of it."""

    __tablename__ = "indexed_files"
    # Without a rowid the primary key is the table: half the size, and loading a repository is one range scan.
    __table_args__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    version_id: str = Field(
        primary_key=True, sa_type=SafeText, sa_column_kwargs={"name": "repository_id", "key": "version_id"}
    )
    """The id of an index version. A repository's first version has the repository's own id, and the column is older
    than versions."""
    path: str = Field(primary_key=True, sa_type=SafeText)
    """The `path_key` of the path."""
    blob_sha: str = Field(sa_type=SafeText)
    mode: int
    chunks: int
    epoch: int = Field(sa_type=BigInteger)
    size_bytes: int | None = Field(sa_type=BigInteger)
    long_path: str | None = Field(sa_type=SafeText)
    """The path itself, if it differs from its key."""
    skip_reason: str | None = Field(sa_type=SafeText)
    language: str | None = Field(sa_type=SafeText)
    wanted_sha: str | None = Field(sa_type=SafeText)
    """The blob of the commit, if the points are of an older one because it could not be read."""
    reader: str | None = Field(sa_type=SafeText)
    """How the file was read; programs up to 0.2.1 wrote the epoch and a dot before it."""


REPOSITORIES = table_of(_Repositories)
VERSIONS = table_of(_Versions)
RUNS = table_of(_Runs)
PROBLEMS = table_of(_Problems)
CHANGES = table_of(_Changes)
LOG_LINES = table_of(_LogLines)
GROUPS = table_of(_Groups)
REGISTRY_DOCUMENTS = table_of(_RegistryDocuments)
WORKERS = table_of(_Workers)
FILES = table_of(_Files)
SECRET_FINDINGS = table_of(_SecretFindings)
EVALUATIONS = table_of(_Evaluations)
COMMIT_WORDS = table_of(_CommitWords)
FINGERPRINT_KEYS = table_of(_FingerprintKeys)

REPOSITORY_COLUMNS = tuple(REPOSITORIES.c[name] for name in Repository.model_fields)
GROUP_COLUMNS = tuple(GROUPS.c[name] for name in ProjectGroup.model_fields)
VERSION_COLUMNS = tuple(VERSIONS.c[name] for name in IndexVersion.model_fields)


def status_is(*statuses: RunStatus, runs: FromClause = RUNS) -> ColumnElement[bool]:
    """Literals and not parameters: SQLite uses a partial index only if the words of its condition are in the query, and
    PostgreSQL's plan of a prepared statement knows no parameter."""
    words: list[ColumnElement[str]] = [literal_column(f"'{each}'") for each in sorted(statuses)]
    return runs.c.status == words[0] if len(words) == 1 else runs.c.status.in_(words)


HAS_LEFT = "NOT is_active AND paused_reason IS NULL"
"""The condition for repositories that have left the registry; in words, so that SQLite finds its index."""


IS_IDLE: ColumnElement[bool] = literal_column("sync_runs.idle")
IS_NOT_IDLE: ColumnElement[bool] = literal_column("NOT sync_runs.idle")
"""Runs that had nothing to do, and the others: the conditions of partial indexes, in their words."""


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
