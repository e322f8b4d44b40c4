"""The indexes, in the order of their creation: if several fit, SQLite, which has no statistics, prefers a later one.

Only an upgrade of the schema needs them: for a command they are 0.05 s, most of it the dialect of PostgreSQL, which
SQLAlchemy imports for their conditions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Index, func, text

from reposync.store.columns import metadata
from reposync.store.people_tables import AUDIT, CREDENTIALS, ENDED_SESSIONS, GRANTS, OAUTH_CLIENTS
from reposync.store.status import ACTIVE, RunStatus
from reposync.store.tables import CLAIM_ORDER, EVALUATIONS, HAS_LEFT, REPOSITORIES, RUNS, SECRET_FINDINGS, VERSIONS

SCHEMA = metadata  # complete only with the indexes below


def _while(statuses: Collection[RunStatus]) -> dict[str, Any]:
    words = ", ".join(f"'{each}'" for each in sorted(statuses))
    return _only(f"status = {words}" if len(statuses) == 1 else f"status IN ({words})")


def _only(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _over(name: str, *columns: ColumnElement[Any]) -> Index:
    # Only of finished runs: SQLite would use it for the queue, and sort.
    condition = _only("status NOT IN ('queued', 'retrying', 'running')")
    return Index(name, *columns, RUNS.c.status, *_NEWEST, **condition)


_NEWEST = (RUNS.c.queued_at.desc(), RUNS.c.id.desc())

INDEXES = (
    # These enforce the promises "never synced twice at a time" and "one already queued is returned", whatever the code
    # does.
    Index("uq_sync_runs_running", RUNS.c.repository_id, unique=True, **_while({RunStatus.RUNNING})),
    Index("uq_sync_runs_queued", RUNS.c.repository_id, unique=True, **_while({RunStatus.QUEUED})),
    # The latest run of each repository.
    Index("ix_sync_runs_repository_id", RUNS.c.repository_id, *_NEWEST),
    # The pages of the history.
    Index("ix_sync_runs_newest", *_NEWEST),
    Index("ix_repositories_group_key", REPOSITORIES.c.group_key),
    Index("ix_repositories_next_due_at", REPOSITORIES.c.next_due_at),
    # The queue: these two hold only unfinished runs, however long the history is.
    Index("ix_sync_runs_queue", *CLAIM_ORDER, **_while(ACTIVE)),
    Index("ix_sync_runs_active", RUNS.c.repository_id, **_while(ACTIVE)),
    Index("ix_sync_runs_active_newest", *_NEWEST, **_while(ACTIVE)),
    Index("ix_sync_runs_repository_newest", RUNS.c.repository, *_NEWEST),
    _over("ix_sync_runs_over_newest"),
    # For combined filters: if few runs match both, a query would otherwise pass over all runs that match one.
    _over("ix_sync_runs_repository_over_newest", RUNS.c.repository),
    _over("ix_sync_runs_trigger_over_newest", RUNS.c.trigger),
    # Runs that had something to do, of which there is one in a hundred on a short schedule, and the others, for counts.
    Index("ix_sync_runs_eventful_newest", *_NEWEST, **_only("NOT idle")),
    Index("ix_sync_runs_idle", RUNS.c.repository, RUNS.c.trigger, RUNS.c.queued_at, **_only("idle")),
    Index("ix_sync_runs_error_newest", RUNS.c.error_code, *_NEWEST, **_only("error_code IS NOT NULL")),
    Index("ix_sync_runs_commit_after", RUNS.c.commit_after, **_only("commit_after IS NOT NULL")),
    # For searches: few entries or one, however many repositories there are.
    Index("ix_repositories_inactive", REPOSITORIES.c.id, **_only(HAS_LEFT)),
    # For pushes.
    Index("ix_repositories_project_id", REPOSITORIES.c.project_id, **_only("project_id IS NOT NULL")),
    Index("ix_repositories_location", func.lower(REPOSITORIES.c.location), **_only("project_id IS NULL")),
    # The pages of the audit, and of one person.
    Index("ix_audit_entries_at", AUDIT.c.at.desc(), AUDIT.c.id.desc()),
    Index("ix_audit_entries_actor", AUDIT.c.actor, AUDIT.c.at.desc(), AUDIT.c.id.desc()),
    # These enforce that one version of a repository is searched, and at most one is being built.
    Index("uq_index_versions_live", VERSIONS.c.repository_id, unique=True, **_only("state = 'live'")),
    Index("uq_index_versions_building", VERSIONS.c.repository_id, unique=True, **_only("state = 'building'")),
    Index("ix_index_versions_repository_id", VERSIONS.c.repository_id),
    Index("ix_index_versions_physical", VERSIONS.c.physical, VERSIONS.c.state),
    Index("ix_index_versions_not_live", VERSIONS.c.physical, VERSIONS.c.id, **_only("state <> 'live'")),
    Index("ix_index_versions_live_at", VERSIONS.c.live_at),
    Index("ix_index_versions_pending", VERSIONS.c.physical, VERSIONS.c.id, **_only("meaning_pending IS NOT NULL")),
    Index("ix_secret_findings_repository_id", SECRET_FINDINGS.c.repository_id, SECRET_FINDINGS.c.path),
    Index(
        "ix_evaluations_repository_id", EVALUATIONS.c.repository_id, EVALUATIONS.c.at.desc(), EVALUATIONS.c.id.desc()
    ),
    Index("ix_ended_sessions_ended_at", ENDED_SESSIONS.c.ended_at),
    Index("ix_connections_user_id", GRANTS.c.user_id),
    Index("ix_credentials_connection_id", CREDENTIALS.c.connection_id),
    Index("ix_credentials_family", CREDENTIALS.c.family),
    Index("ix_credentials_expires_at", CREDENTIALS.c.expires_at),
    Index("ix_oauth_clients_address", OAUTH_CLIENTS.c.address),
)
