"""For the daemon: the time since which a schedule holds, a row for each attempt, groups of projects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.migrations.operations import (
    ACTIVE,
    MOMENT,
    NEWEST,
    OVER,
    cascading,
    key,
    optional,
    partial_index,
    required,
)

revision = "0002"
down_revision = "0001"

FIGURES = ("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused")


def upgrade() -> None:
    # Nullable or with a default: during a rolling update pods of the version before write rows without them.
    op.add_column("repositories", sa.Column("scheduled_since", MOMENT))
    op.add_column("repositories", sa.Column("definition", sa.JSON))
    op.add_column("repositories", sa.Column("group_key", sa.Text))
    op.add_column("repositories", sa.Column("indexed_collection", sa.Text))
    op.create_index("ix_repositories_group_key", "repositories", ["group_key"])
    op.add_column("sync_runs", sa.Column("removal", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "run_attempts",
        *required(sa.Text, "run_id"),
        *required(sa.Integer, "attempt"),
        *required(sa.Text, "worker"),
        *required(MOMENT, "started_at"),
        *optional(MOMENT, "ended_at"),
        *optional(sa.Text, "outcome"),
        *required(sa.Integer, *FIGURES),
        *optional(sa.Text, "error_code", "error_message"),
        key("run_attempts", "run_id", "attempt"),
        cascading("run_attempts", "run_id", "sync_runs.id"),
    )
    op.create_table(
        "project_groups",
        *required(sa.Text, "key"),
        *required(MOMENT, "due_at"),
        *optional(sa.Text, "worker"),
        *optional(MOMENT, "lease_until", "checked_at"),
        *required(sa.Integer, "projects"),
        *optional(sa.Text, "error_code", "error_message"),
        key("project_groups", "key"),
    )
    op.drop_index("ix_sync_runs_status", "sync_runs")
    op.drop_index("ix_sync_runs_repository_newest", "sync_runs")
    partial_index("ix_sync_runs_queue", "sync_runs", ["priority", "not_before", "queued_at", "id"], ACTIVE)
    partial_index("ix_sync_runs_active", "sync_runs", ["repository_id"], ACTIVE)
    partial_index("ix_sync_runs_active_newest", "sync_runs", NEWEST, ACTIVE)
    op.create_index("ix_sync_runs_repository_newest", "sync_runs", ["repository", *NEWEST])
    partial_index("ix_sync_runs_over_newest", "sync_runs", ["status", *NEWEST], OVER)
