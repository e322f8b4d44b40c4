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
    Table,
    case,
    inspect,
    literal_column,
    or_,
    text,
)
from sqlmodel import Field, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.columns import JsonText, Record, SafeText, Word
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
    """A row of `index_versions`: where the points of a repository are, how they were made, which commit they hold.

    `id` is the `version_id` of its manifest rows, and `metadata.repository_id` of its points. `settings_key`: a digest
    of `settings`, which decide how points are made; None if that is not known, as of an index that an older program
    left incomplete. `collection` is the configured name, `physical` the collection that has the points. `fingerprint`:
    of the path rules that the whole manifest was made with; None while a run changes it. `links`: the link to a sample
    file; see `has_old_links`. `commit_sha` is held completely, `partial_commit` except for files that could not be
    read. `epoch`: of the last run that wrote to it. `meaning_pending`: how many points had no dense vector when that
    was counted last, while a run adds them; None: all have one, or the model makes none. Until then only words are
    searched. `secret_rules`: by which the secrets of all its files were found; None: that is not known."""

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
    meaning_pending: int | None = Field(default=None, sa_type=BigInteger)
    secret_rules: str | None = Field(default=None, sa_type=SafeText)
    created_at: datetime = Field(sa_type=UTCDateTime)
    live_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    retired_at: datetime | None = Field(default=None, sa_type=UTCDateTime)

    @property
    def has_old_links(self) -> bool:
        """The name or the address of the repository has changed since its points were written: the next run that
        publishes writes both to all of them."""
        return self.links == ""


class RegistryDocument(Record):
    """The row of `registry_documents`: the registry file that was applied last. `document` has its sections without
    `repositories` and `groups`, with secrets as references; `digest` is that of its meaning, and empty for a document
    that an upgrade merged from several files. `superseded`: digests of earlier documents, oldest first. `path`: of the
    file, for people."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    digest: str = Field(sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    superseded: list[str] = Field(default_factory=list, sa_type=JsonText)
    path: str = Field(sa_type=SafeText)
    applied_by: str = Field(sa_type=SafeText)
    applied_at: datetime = Field(sa_type=UTCDateTime)


class GroupEntry(Record):
    """A GitLab group whose projects register themselves. `key`: `<server's address>/<path>`. `definition`: its entry as
    in the registry file; None if only a program before this version has written the row. `origin`: config, command or
    http."""

    key: str = Field(primary_key=True, sa_type=SafeText)
    definition: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    origin: str = Field(default="config", sa_type=SafeText, sa_column_kwargs={"server_default": text("'config'")})

    @property
    def path(self) -> str:
        """Of the group on its server."""
        return str((self.definition or {}).get("group", self.key))

    @property
    def title(self) -> str:
        return f"group {(self.definition or {}).get('gitlab', '')}/{self.path}"

    @property
    def origin_words(self) -> str:
        """Where its definition comes from, for people."""
        return {"config": "the registry file", "http": "a request over HTTP"}.get(self.origin, "a command")


class ProjectGroup(GroupEntry):
    """A row of `project_groups`. `due_at`: when its projects are listed next."""

    due_at: datetime = Field(sa_type=UTCDateTime)


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
    """`path` is the `path_key` of the path of a file that a run skipped or failed on."""

    __tablename__ = "run_problems"
    run_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="sync_runs.id", ondelete="CASCADE")
    path: str = Field(primary_key=True, sa_type=SafeText)
    reason: str = Field(sa_type=SafeText)
    detail: str = Field(sa_type=SafeText)


class _Groups(ProjectGroup, table=True):
    __tablename__ = "project_groups"


class _RegistryDocuments(RegistryDocument, table=True):
    __tablename__ = "registry_documents"


class _EndedSessions(Record, table=True):
    """Browser sessions that were signed out. `id` identifies a session and does not reveal its cookie."""

    __tablename__ = "ended_sessions"
    id: str = Field(primary_key=True, sa_type=SafeText)
    ended_at: datetime = Field(sa_type=UTCDateTime)


class _Workers(Worker, table=True):
    __tablename__ = "workers"


class GitLabGrant(Record):
    """A row of `connections`: what a person allowed this program to do at GitLab, as one sign-in. `sealed`: the tokens,
    under a key that only the secrets of its credentials open. `refresh_claim` and `refresh_until`: which process gets
    new tokens, and until when it has to have them."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    gitlab: str = Field(sa_type=SafeText)
    user_id: int = Field(sa_type=BigInteger)
    username: str = Field(sa_type=SafeText)
    sealed: str = Field(sa_type=SafeText)
    created_at: datetime = Field(sa_type=UTCDateTime)
    refreshed_at: datetime = Field(sa_type=UTCDateTime)
    refresh_claim: str | None = Field(default=None, sa_type=SafeText)
    refresh_until: datetime | None = Field(default=None, sa_type=UTCDateTime)


class Credential(Record):
    """A row of `credentials`: a session, a token or a code that stands for a person. `id`: the digest of its secret,
    with which `wrapped_key` opens the grant. `family`: what ends together: all tokens of one authorization. `name`: for
    people. `details`: what it is limited to. `used_at`: of what may be used once."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    kind: str = Field(sa_type=SafeText)
    connection_id: str = Field(sa_type=SafeText, foreign_key="connections.id", ondelete="CASCADE")
    family: str = Field(sa_type=SafeText)
    wrapped_key: str = Field(sa_type=SafeText)
    name: str = Field(default="", sa_type=SafeText)
    client_id: str | None = Field(default=None, sa_type=SafeText)
    details: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    created_at: datetime = Field(sa_type=UTCDateTime)
    expires_at: datetime = Field(sa_type=UTCDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class OAuthClient(Record):
    """A row of `oauth_clients`: a program that registered itself for /mcp. `address`: a keyed digest of where it came
    from. `used_at`: when somebody allowed it last."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    document: dict[str, Any] = Field(default_factory=dict, sa_type=JsonText)
    address: str = Field(sa_type=SafeText)
    created_at: datetime = Field(sa_type=UTCDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UTCDateTime)


class _Grants(GitLabGrant, table=True):
    __tablename__ = "connections"


class _Credentials(Credential, table=True):
    __tablename__ = "credentials"


class _OAuthClients(OAuthClient, table=True):
    __tablename__ = "oauth_clients"


class AuditEntry(Record):
    """A row of `audit_entries`: an operation that showed code or names. `actor`: who, as in the history; `via`: http,
    page, mcp or command; `address`: of the client. `repositories`: names of those in the answer, or that were asked
    for. `hits`: how many were shown; None if the answer is one document. `outcome`: ok, or the code of the error.
    `query`: only if the operator keeps the words of queries."""

    id: str = Field(primary_key=True, sa_type=SafeText)
    at: datetime = Field(sa_type=UTCDateTime)
    actor: str = Field(sa_type=SafeText)
    via: str = Field(sa_type=SafeText)
    address: str = Field(sa_type=SafeText)
    operation: str = Field(sa_type=SafeText)
    repositories: list[str] = Field(default_factory=list, sa_type=JsonText)
    hits: int | None = None
    outcome: str = Field(sa_type=SafeText)
    query: str | None = Field(default=None, sa_type=SafeText)


class _AuditEntries(AuditEntry, table=True):
    __tablename__ = "audit_entries"


class SecretFinding(Record):
    """A row of `secret_findings`: a secret in an indexed file, without its value. `path` is the `path_key` of the path;
    `action`: mask, skip or warn; `first_commit`: of the run that saw it first."""

    path: str = Field(primary_key=True, sa_type=SafeText)
    line: int = Field(primary_key=True)
    rule: str = Field(primary_key=True, sa_type=SafeText)
    fingerprint: str = Field(primary_key=True, sa_type=SafeText)
    action: str = Field(sa_type=SafeText)
    first_commit: str = Field(sa_type=SafeText)
    first_seen_at: datetime = Field(sa_type=UTCDateTime)


class _SecretFindings(SecretFinding, table=True):
    __tablename__ = "secret_findings"
    repository_id: str = Field(primary_key=True, sa_type=SafeText, foreign_key="repositories.id", ondelete="CASCADE")


class _FingerprintKeys(Record, table=True):
    """One row: the key of the fingerprints, hex. Without it, nobody can try guessed values."""

    __tablename__ = "fingerprint_keys"
    id: str = Field(primary_key=True, sa_type=SafeText)
    key: str = Field(sa_type=SafeText)


class _Files(Record, table=True):
    """The manifest: every file of the last listing and what the index holds of it. `path` is the `path_key` of the
    path; `long_path` is the path itself if that differs.

    `version_id` is the id of an index version; a repository's first version has the repository's own id, and the column
    is older than versions. `wanted_sha`: the blob of the commit, if the points are of an older one because it could not
    be read. `reader`: how it was read; programs up to 0.2.1 wrote the epoch and a dot before it."""

    __tablename__ = "indexed_files"
    # Without a rowid the primary key is the table: half the size, and loading a repository is one range scan.
    __table_args__: ClassVar[dict[str, Any]] = {"sqlite_with_rowid": False}
    version_id: str = Field(
        primary_key=True, sa_type=SafeText, sa_column_kwargs={"name": "repository_id", "key": "version_id"}
    )
    path: str = Field(primary_key=True, sa_type=SafeText)
    blob_sha: str = Field(sa_type=SafeText)
    mode: int
    chunks: int
    epoch: int = Field(sa_type=BigInteger)
    size_bytes: int | None = Field(sa_type=BigInteger)
    long_path: str | None = Field(sa_type=SafeText)
    skip_reason: str | None = Field(sa_type=SafeText)
    language: str | None = Field(sa_type=SafeText)
    wanted_sha: str | None = Field(sa_type=SafeText)
    reader: str | None = Field(sa_type=SafeText)


def _table(rows: type[SQLModel]) -> Table:
    table: Table = inspect(rows).local_table
    return table


REPOSITORIES = _table(_Repositories)
VERSIONS = _table(_Versions)
RUNS = _table(_Runs)
PROBLEMS = _table(_Problems)
GROUPS = _table(_Groups)
REGISTRY_DOCUMENTS = _table(_RegistryDocuments)
ENDED_SESSIONS = _table(_EndedSessions)
WORKERS = _table(_Workers)
GRANTS = _table(_Grants)
CREDENTIALS = _table(_Credentials)
OAUTH_CLIENTS = _table(_OAuthClients)
AUDIT = _table(_AuditEntries)
FILES = _table(_Files)
SECRET_FINDINGS = _table(_SecretFindings)
FINGERPRINT_KEYS = _table(_FingerprintKeys)

REPOSITORY_COLUMNS = tuple(REPOSITORIES.c[name] for name in Repository.model_fields)
GROUP_COLUMNS = tuple(GROUPS.c[name] for name in ProjectGroup.model_fields)
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
