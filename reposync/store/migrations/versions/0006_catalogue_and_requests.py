"""The catalogue in the database, requests separate from runs, workers, narrow reads.

Runs that are queued, running or blocked get no requests here: pods of the version before go on queueing runs without
any, so the program derives one request from the row of such a run.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.migrations.operations import MOMENT, cascading, key, optional, partial_index, required

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    _requests()
    _catalogue()
    # Programs before this revision do not write to it: they do not count as workers, but execute runs all the same.
    op.create_table(
        "workers",
        *required(sa.Text, "name", "host", "version"),
        *required(MOMENT, "started_at", "seen_at"),
        key("workers", "name"),
    )
    _narrow_reads()


def _requests() -> None:
    op.add_column("repositories", sa.Column("last_tick_at", MOMENT))
    op.add_column("sync_runs", sa.Column("handed_back", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "run_requests",
        *required(sa.Text, "id", "run_id", "repository_id", "trigger", "asked_by"),
        *required(MOMENT, "asked_at"),
        *optional(MOMENT, "scheduled_for"),
        *required(sa.Integer, "priority", "max_attempts"),
        *required(sa.Boolean, "full", "repair", "removal"),
        *optional(sa.JSON, "approval"),
        *optional(sa.Text, "idempotency_key", "fingerprint", "answer"),
        *optional(MOMENT, "withdrawn_at"),
        *optional(sa.Text, "withdrawn_by"),
        key("run_requests", "id"),
        cascading("run_requests", "run_id", "sync_runs.id"),
    )
    op.create_index("ix_run_requests_run_id", "run_requests", ["run_id"])
    op.create_index("uq_run_requests_key", "run_requests", ["asked_by", "idempotency_key"], unique=True)
    op.create_table(
        "missed_ticks",
        *required(sa.Text, "repository_id"),
        *required(MOMENT, "scheduled_for", "noticed_at"),
        *required(sa.Float, "late_seconds"),
        key("missed_ticks", "repository_id", "scheduled_for"),
        cascading("missed_ticks", "repository_id", "repositories.id"),
    )
    op.create_index("ix_missed_ticks_noticed_at", "missed_ticks", ["noticed_at"])
    op.execute("""
        UPDATE repositories SET last_tick_at = (
            SELECT max(scheduled_for) FROM sync_runs WHERE sync_runs.repository_id = repositories.id)""")
    _close_surplus_blocked_runs()


def _close_surplus_blocked_runs() -> None:
    """Only the newest blocked run of each repository keeps waiting for a person."""
    op.execute("""
        UPDATE sync_runs SET status = 'cancelled', error_code = 'SUPERSEDED',
            error_message = 'A later run of this repository stopped for the same decision.'
        WHERE status = 'blocked' AND EXISTS (
            SELECT 1 FROM sync_runs newer
            WHERE newer.repository_id = sync_runs.repository_id AND newer.status = 'blocked'
                AND (newer.queued_at > sync_runs.queued_at
                    OR newer.queued_at = sync_runs.queued_at AND newer.id > sync_runs.id))""")


def _catalogue() -> None:
    # Nullable or with a default, for pods of the version before, which write rows without them.
    op.add_column("repositories", sa.Column("resolved", sa.JSON))
    for name in ("resolved_from", "origin_file", "origin_host"):
        op.add_column("repositories", sa.Column(name, sa.Text))
    op.add_column("repositories", sa.Column("by_hand", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute("UPDATE repositories SET by_hand = true WHERE origin = 'command' AND cron_expression IS NULL")
    op.create_table(
        "registry_files",
        *required(sa.Text, "path", "digest"),
        *required(sa.JSON, "document"),
        *required(sa.Text, "host", "applied_by"),
        *required(MOMENT, "applied_at", "created_at"),
        key("registry_files", "path"),
    )
    op.create_table(
        "superseded_digests",
        *required(sa.Text, "path", "digest"),
        *required(MOMENT, "superseded_at"),
        key("superseded_digests", "path", "digest"),
        cascading("superseded_digests", "path", "registry_files.path"),
    )


def _narrow_reads() -> None:
    # Nothing is copied: lines in `index_versions.attributes` are read there until a run publishes the version.
    op.create_table(
        "version_attributes",
        *required(sa.Text, "version_id"),
        *required(sa.Integer, "number"),
        *required(sa.JSON, "path"),
        *required(sa.Text, "blob_sha"),
        *required(sa.JSON, "lines"),
        key("version_attributes", "version_id", "number"),
        cascading("version_attributes", "version_id", "index_versions.id"),
    )
    partial_index("ix_index_versions_not_live", "index_versions", ["physical", "id"], "state <> 'live'")
    op.create_index("ix_index_versions_live_at", "index_versions", ["live_at"])
    unversioned = "live_version IS NULL AND last_sync_at IS NOT NULL"
    partial_index("ix_repositories_unversioned", "repositories", ["id"], unversioned)
    partial_index("ix_repositories_project_id", "repositories", ["project_id"], "project_id IS NOT NULL")
    partial_index("ix_repositories_location", "repositories", [sa.text("lower(location)")], "project_id IS NULL")
