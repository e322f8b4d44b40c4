"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.migrations.operations import MOMENT, NEWEST, cascading, key, optional, partial_index, required

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "repositories",
        *required(sa.Text, "id", "name", "location", "source", "origin"),
        *optional(sa.BigInteger, "project_id"),
        *optional(sa.Text, "branch"),
        *required(sa.Text, "collection"),
        *optional(sa.Text, "cron_expression"),
        *required(sa.Text, "timezone"),
        *required(sa.Boolean, "is_active"),
        *optional(sa.Text, "paused_reason"),
        *optional(MOMENT, "last_sync_at"),
        *optional(sa.Text, "last_commit"),
        *optional(MOMENT, "last_committed_at"),
        *required(sa.BigInteger, "epoch"),
        *optional(sa.Text, "index_identity", "content_fingerprint"),
        *required(sa.JSON, "attributes"),
        *required(MOMENT, "created_at", "updated_at"),
        key("repositories", "id"),
        sa.UniqueConstraint("name", name="uq_repositories_name"),
    )
    op.create_table(
        "sync_runs",
        *required(sa.Text, "id", "repository_id", "repository", "status", "trigger"),
        *required(sa.Integer, "priority"),
        *optional(MOMENT, "scheduled_for"),
        *required(MOMENT, "not_before", "queued_at"),
        *optional(MOMENT, "started_at", "completed_at"),
        *optional(sa.Float, "duration_seconds"),
        *required(sa.Integer, "attempt", "max_attempts"),
        *optional(sa.Text, "worker"),
        *optional(MOMENT, "lease_until"),
        *required(sa.Boolean, "full", "approved", "cancel_requested"),
        *optional(sa.JSON, "progress"),
        *optional(sa.Text, "commit_before", "commit_after"),
        *required(sa.Integer, "files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused"),
        *optional(sa.Text, "error_code", "error_message"),
        key("sync_runs", "id"),
    )
    for status in ("running", "queued"):
        partial_index(f"uq_sync_runs_{status}", "sync_runs", ["repository_id"], f"status = '{status}'", unique=True)
    op.create_index("uq_sync_runs_tick", "sync_runs", ["repository_id", "scheduled_for"], unique=True)
    op.create_index("ix_sync_runs_newest", "sync_runs", [*NEWEST])
    op.create_index("ix_sync_runs_repository_newest", "sync_runs", ["repository_id", *NEWEST])
    op.create_index("ix_sync_runs_status", "sync_runs", ["status", "not_before"])
    op.create_table(
        "run_problems",
        *required(sa.Text, "run_id", "path", "reason", "detail"),
        key("run_problems", "run_id", "path"),
        cascading("run_problems", "run_id", "sync_runs.id"),
    )
    op.create_table(
        "indexed_files",
        *required(sa.Text, "repository_id", "path"),
        *optional(sa.Text, "long_path"),
        *required(sa.Text, "blob_sha"),
        *required(sa.Integer, "mode"),
        *optional(sa.BigInteger, "size_bytes"),
        *required(sa.Integer, "chunks"),
        *optional(sa.Text, "skip_reason", "language"),
        *required(sa.BigInteger, "epoch"),
        key("indexed_files", "repository_id", "path"),
        cascading("indexed_files", "repository_id", "repositories.id"),
        sqlite_with_rowid=False,
    )
