"""What the daemon needs: schedules that know since when they hold, attempts one by one, groups of projects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

FIGURES = ("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused")


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    # None may be required: pods of the version before register repositories without them during a rolling update.
    op.add_column("repositories", _moment("scheduled_since", nullable=True))
    op.add_column("repositories", sa.Column("definition", sa.JSON))
    op.add_column("repositories", sa.Column("group_key", sa.Text))
    op.add_column("repositories", sa.Column("indexed_collection", sa.Text))
    op.create_index("ix_repositories_group_key", "repositories", ["group_key"])
    # With a default for pods of the version before, which queue runs without it.
    op.add_column("sync_runs", sa.Column("removal", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "run_attempts",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        _moment("started_at"),
        _moment("ended_at", nullable=True),
        sa.Column("outcome", sa.Text),
        *(sa.Column(name, sa.Integer, nullable=False) for name in FIGURES),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="pk_run_attempts"),
        sa.ForeignKeyConstraint(["run_id"], ["sync_runs.id"], name="fk_run_attempts_run_id", ondelete="CASCADE"),
    )
    op.create_table(
        "project_groups",
        sa.Column("key", sa.Text, nullable=False),
        _moment("due_at"),
        sa.Column("worker", sa.Text),
        _moment("lease_until", nullable=True),
        _moment("checked_at", nullable=True),
        sa.Column("projects", sa.Integer, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.PrimaryKeyConstraint("key", name="pk_project_groups"),
    )
    op.drop_index("ix_sync_runs_status", "sync_runs")
    op.drop_index("ix_sync_runs_repository_newest", "sync_runs")
    condition = sa.text("status IN ('queued', 'retrying', 'running')")
    newest = [sa.text("queued_at DESC"), sa.text("id DESC")]
    for name, columns in (
        ("ix_sync_runs_queue", ["priority", "not_before", "queued_at", "id"]),
        ("ix_sync_runs_active", ["repository_id"]),
        ("ix_sync_runs_active_newest", newest),
    ):
        op.create_index(name, "sync_runs", columns, sqlite_where=condition, postgresql_where=condition)
    op.create_index("ix_sync_runs_repository_newest", "sync_runs", ["repository", *newest])
    over = sa.text("status NOT IN ('queued', 'retrying', 'running')")
    op.create_index(
        "ix_sync_runs_over_newest", "sync_runs", ["status", *newest], sqlite_where=over, postgresql_where=over
    )
