"""The catalogue in the database, requests apart from runs, workers, narrow reads.

Runs that are queued, running or blocked get no requests here: pods of the version before go on queueing runs without
any, so the program takes the row of such a run for its one request.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    _requests()
    _catalogue()
    _workers()
    _narrow_reads()


def _requests() -> None:
    op.add_column("repositories", _moment("last_tick_at", nullable=True))
    op.add_column("sync_runs", sa.Column("handed_back", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "run_requests",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("repository_id", sa.Text, nullable=False),
        sa.Column("trigger", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        _moment("asked_at"),
        _moment("scheduled_for", nullable=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("max_attempts", sa.Integer, nullable=False),
        sa.Column("full", sa.Boolean, nullable=False),
        sa.Column("repair", sa.Boolean, nullable=False),
        sa.Column("removal", sa.Boolean, nullable=False),
        sa.Column("approval", sa.JSON),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("answer", sa.Text),
        _moment("withdrawn_at", nullable=True),
        sa.Column("withdrawn_by", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_run_requests"),
        sa.ForeignKeyConstraint(["run_id"], ["sync_runs.id"], name="fk_run_requests_run_id", ondelete="CASCADE"),
    )
    op.create_index("ix_run_requests_run_id", "run_requests", ["run_id"])
    op.create_index("uq_run_requests_key", "run_requests", ["asked_by", "idempotency_key"], unique=True)
    op.create_table(
        "missed_ticks",
        sa.Column("repository_id", sa.Text, nullable=False),
        _moment("scheduled_for"),
        _moment("noticed_at"),
        sa.Column("late_seconds", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "scheduled_for", name="pk_missed_ticks"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_missed_ticks_repository_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_missed_ticks_noticed_at", "missed_ticks", ["noticed_at"])
    op.execute("""
        UPDATE repositories SET last_tick_at = (
            SELECT max(scheduled_for) FROM sync_runs WHERE sync_runs.repository_id = repositories.id)""")
    _close_surplus_blocked_runs()


def _close_surplus_blocked_runs() -> None:
    """Of the blocked runs of each repository the newest one keeps waiting for a person."""
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
    op.add_column("repositories", sa.Column("resolved_from", sa.Text))
    op.add_column("repositories", sa.Column("origin_file", sa.Text))
    op.add_column("repositories", sa.Column("origin_host", sa.Text))
    op.add_column("repositories", sa.Column("by_hand", sa.Boolean, nullable=False, server_default=sa.false()))
    op.execute("UPDATE repositories SET by_hand = true WHERE origin = 'command' AND cron_expression IS NULL")
    op.create_table(
        "registry_files",
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("applied_by", sa.Text, nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_registry_files"),
    )
    op.create_table(
        "superseded_digests",
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("superseded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("path", "digest", name="pk_superseded_digests"),
        sa.ForeignKeyConstraint(
            ["path"], ["registry_files.path"], name="fk_superseded_digests_path", ondelete="CASCADE"
        ),
    )


def _workers() -> None:
    # Programs before do not know the table: to the others they are no workers, and execute runs all the same.
    op.create_table(
        "workers",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )


def _narrow_reads() -> None:
    # Nothing is copied: what stands in `index_versions.attributes` is read there until a run publishes the version.
    op.create_table(
        "version_attributes",
        sa.Column("version_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("path", sa.JSON, nullable=False),
        sa.Column("blob_sha", sa.Text, nullable=False),
        sa.Column("lines", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("version_id", "number", name="pk_version_attributes"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["index_versions.id"], name="fk_version_attributes_version_id", ondelete="CASCADE"
        ),
    )
    _partial("ix_index_versions_not_live", "index_versions", ["physical", "id"], "state <> 'live'")
    op.create_index("ix_index_versions_live_at", "index_versions", ["live_at"])
    _partial("ix_repositories_unversioned", "repositories", ["id"], "live_version IS NULL AND last_sync_at IS NOT NULL")
    _partial("ix_repositories_project_id", "repositories", ["project_id"], "project_id IS NOT NULL")
    _partial("ix_repositories_location", "repositories", [sa.text("lower(location)")], "project_id IS NULL")


def _partial(name: str, table: str, columns: list[str | sa.TextClause], condition: str) -> None:
    only = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=only, postgresql_where=only)
