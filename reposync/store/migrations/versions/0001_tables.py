"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "repositories",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("location", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("project_id", sa.BigInteger),
        sa.Column("branch", sa.Text),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("cron_expression", sa.Text),
        sa.Column("timezone", sa.Text, nullable=False),
        sa.Column("is_active", sa.Boolean, nullable=False),
        sa.Column("paused_reason", sa.Text),
        _moment("last_sync_at", nullable=True),
        sa.Column("last_commit", sa.Text),
        _moment("last_committed_at", nullable=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("index_identity", sa.Text),
        sa.Column("content_fingerprint", sa.Text),
        sa.Column("attributes", sa.JSON, nullable=False),
        _moment("created_at"),
        _moment("updated_at"),
        sa.PrimaryKeyConstraint("id", name="pk_repositories"),
        sa.UniqueConstraint("name", name="uq_repositories_name"),
    )
    op.create_table(
        "sync_runs",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("repository_id", sa.Text, nullable=False),
        sa.Column("repository", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        _moment("scheduled_for", nullable=True),
        _moment("not_before"),
        _moment("queued_at"),
        _moment("started_at", nullable=True),
        _moment("completed_at", nullable=True),
        sa.Column("duration_seconds", sa.Float),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text),
        _moment("lease_until", nullable=True),
        sa.Column("full", sa.Boolean, nullable=False),
        sa.Column("approved", sa.Boolean, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("progress", sa.JSON),
        sa.Column("commit_before", sa.Text),
        sa.Column("commit_after", sa.Text),
        sa.Column("files_processed", sa.Integer, nullable=False),
        sa.Column("files_deleted", sa.Integer, nullable=False),
        sa.Column("files_skipped", sa.Integer, nullable=False),
        sa.Column("chunks_embedded", sa.Integer, nullable=False),
        sa.Column("chunks_reused", sa.Integer, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_sync_runs"),
    )
    for status in ("running", "queued"):
        condition = sa.text(f"status = '{status}'")
        op.create_index(
            f"uq_sync_runs_{status}",
            "sync_runs",
            ["repository_id"],
            unique=True,
            sqlite_where=condition,
            postgresql_where=condition,
        )
    op.create_index("uq_sync_runs_tick", "sync_runs", ["repository_id", "scheduled_for"], unique=True)
    newest = [sa.text("queued_at DESC"), sa.text("id DESC")]
    op.create_index("ix_sync_runs_newest", "sync_runs", newest)
    op.create_index("ix_sync_runs_repository_newest", "sync_runs", ["repository_id", *newest])
    op.create_index("ix_sync_runs_status", "sync_runs", ["status", "not_before"])
    op.create_table(
        "run_problems",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "path", name="pk_run_problems"),
        sa.ForeignKeyConstraint(["run_id"], ["sync_runs.id"], name="fk_run_problems_run_id", ondelete="CASCADE"),
    )
    op.create_table(
        "indexed_files",
        sa.Column("repository_id", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("long_path", sa.Text),
        sa.Column("blob_sha", sa.Text, nullable=False),
        sa.Column("mode", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("chunks", sa.Integer, nullable=False),
        sa.Column("skip_reason", sa.Text),
        sa.Column("language", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "path", name="pk_indexed_files"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_indexed_files_repository_id", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )
