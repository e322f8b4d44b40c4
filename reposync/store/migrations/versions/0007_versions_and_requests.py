"""From 0.1.0 to 0.2.0: index versions, the catalogue in the database, requests separate from runs, workers.

Tables that are new are made as they are today, so a later migration that changes one of them has to look first. What is
added to a table is nullable or has a default.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from reposync.store.indexes import INDEXES, SCHEMA

revision = "0007"
down_revision = "0004"

NEW_TABLES = (
    "index_versions",
    "missed_ticks",
    "registry_files",
    "superseded_digests",
    "workers",
    "ended_sessions",
)
NEW_INDEXES = {"ix_repositories_unversioned", "ix_repositories_project_id", "ix_repositories_location"}
FILE_COLUMNS = "repository_id, path, long_path, blob_sha, mode, size_bytes, chunks, skip_reason, language, epoch"


def upgrade() -> None:
    _extend_tables()
    _free_the_manifest()
    for name in NEW_TABLES:
        op.execute(sa.schema.CreateTable(SCHEMA.tables[name]))
    _add_requests()
    for index in INDEXES:
        if index.name in NEW_INDEXES or (index.table is not None and index.table.name in NEW_TABLES):
            op.execute(sa.schema.CreateIndex(index))


def _add_requests() -> None:
    """Later they became a column of the runs."""
    moment = "TIMESTAMP WITH TIME ZONE" if op.get_context().dialect.name == "postgresql" else "DATETIME"
    op.execute(f"""
        CREATE TABLE run_requests (
            id TEXT NOT NULL, run_id TEXT NOT NULL, repository_id TEXT NOT NULL, "trigger" TEXT NOT NULL,
            asked_by TEXT NOT NULL, asked_at {moment} NOT NULL, scheduled_for {moment}, priority INTEGER NOT NULL,
            max_attempts INTEGER NOT NULL, "full" BOOLEAN NOT NULL, repair BOOLEAN NOT NULL, removal BOOLEAN NOT NULL,
            approval JSON, withdrawn_at {moment}, withdrawn_by TEXT, idempotency_key TEXT, fingerprint TEXT,
            answer TEXT,
            CONSTRAINT pk_run_requests PRIMARY KEY (id),
            CONSTRAINT fk_run_requests_run_id FOREIGN KEY(run_id) REFERENCES sync_runs (id) ON DELETE CASCADE)""")
    op.execute("CREATE INDEX ix_run_requests_run_id ON run_requests (run_id)")
    op.execute("CREATE UNIQUE INDEX uq_run_requests_key ON run_requests (asked_by, idempotency_key)")


def _extend_tables() -> None:
    _add("repositories", sa.Text, "live_version", "resolved_from", "origin_file", "origin_host")
    _add("repositories", sa.JSON, "index_hold", "resolved")
    _add("repositories", sa.BigInteger, "generation", default="0")
    _add("repositories", sa.Boolean, "by_hand", default=sa.false())
    _add("repositories", sa.DateTime(timezone=True), "last_tick_at")
    _add("sync_runs", sa.BigInteger, "full_from_epoch")
    _add("sync_runs", sa.JSON, "brake")
    _add("sync_runs", sa.Integer, "files_failed", "handed_back", default="0")
    _add("run_attempts", sa.Integer, "files_failed", default="0")
    _add("run_attempts", sa.Integer, "times", default="1")
    _add("project_groups", sa.BigInteger, "attempt", default="0")
    op.execute("UPDATE repositories SET by_hand = true WHERE origin = 'command' AND cron_expression IS NULL")
    op.execute("""
        UPDATE repositories SET last_tick_at = (
            SELECT max(scheduled_for) FROM sync_runs WHERE sync_runs.repository_id = repositories.id)""")
    # Only the newest blocked run of each repository keeps waiting for a person.
    op.execute("""
        UPDATE sync_runs SET status = 'cancelled', error_code = 'SUPERSEDED',
            error_message = 'A later run of this repository stopped for the same decision.'
        WHERE status = 'blocked' AND EXISTS (
            SELECT 1 FROM sync_runs newer
            WHERE newer.repository_id = sync_runs.repository_id AND newer.status = 'blocked'
                AND (newer.queued_at > sync_runs.queued_at
                    OR newer.queued_at = sync_runs.queued_at AND newer.id > sync_runs.id))""")


def _free_the_manifest() -> None:
    """Rows belong to an index version from now on, which need not have the repository's id."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("fk_indexed_files_repository_id", "indexed_files", type_="foreignkey")
        _add("indexed_files", sa.Text, "wanted_sha", "reader")
        return
    # SQLite cannot drop a constraint.
    op.rename_table("indexed_files", "indexed_files_before")
    op.execute(sa.schema.CreateTable(SCHEMA.tables["indexed_files"]))
    op.execute(f"INSERT INTO indexed_files ({FILE_COLUMNS}) SELECT {FILE_COLUMNS} FROM indexed_files_before")  # noqa: S608
    op.drop_table("indexed_files_before")


def _add(table: str, kind: Any, *names: str, default: Any = None) -> None:
    """Nullable columns, or with a default."""
    for name in names:
        value = sa.text(default) if isinstance(default, str) else default
        op.add_column(table, sa.Column(name, kind, nullable=default is None, server_default=value))
