"""From 0.1.0 to 0.2.0: index versions, the catalogue in the database, requests separate from runs, workers.

What is added to a table is nullable or has a default: pods of the version before write rows without it. Runs that are
queued, running or blocked get no requests: these pods go on queueing runs without any, so the program derives one
request from the row of such a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0004"

MOMENT = sa.DateTime(timezone=True)
FILE_COLUMNS = "repository_id, path, long_path, blob_sha, mode, size_bytes, chunks, skip_reason, language, epoch"


def upgrade() -> None:
    _extend_tables()
    _free_the_manifest()
    _index_versions()
    _requests()
    _catalogue()
    _workers_and_sessions()


def _extend_tables() -> None:
    _add("repositories", sa.Text, "live_version", "resolved_from", "origin_file", "origin_host")
    _add("repositories", sa.JSON, "index_hold", "resolved")
    _add("repositories", sa.BigInteger, "generation", default="0")
    _add("repositories", sa.Boolean, "by_hand", default=sa.false())
    _add("repositories", MOMENT, "last_tick_at")
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
    unversioned = "live_version IS NULL AND last_sync_at IS NOT NULL"
    _partial_index("ix_repositories_unversioned", "repositories", ["id"], unversioned)
    _partial_index("ix_repositories_project_id", "repositories", ["project_id"], "project_id IS NOT NULL")
    _partial_index("ix_repositories_location", "repositories", [sa.text("lower(location)")], "project_id IS NULL")


def _free_the_manifest() -> None:
    """Rows belong to an index version from now on, which need not have the repository's id. Pods of the version before
    only lose the cascade: rows that a removal leaves are not read, and the next registration replaces them."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("fk_indexed_files_repository_id", "indexed_files", type_="foreignkey")
    else:  # SQLite cannot drop a constraint
        op.rename_table("indexed_files", "indexed_files_before")
        op.create_table(
            "indexed_files",
            *_required(sa.Text, "repository_id", "path"),
            *_optional(sa.Text, "long_path"),
            *_required(sa.Text, "blob_sha"),
            *_required(sa.Integer, "mode"),
            *_optional(sa.BigInteger, "size_bytes"),
            *_required(sa.Integer, "chunks"),
            *_optional(sa.Text, "skip_reason", "language"),
            *_required(sa.BigInteger, "epoch"),
            _key("indexed_files", "repository_id", "path"),
            sqlite_with_rowid=False,
        )
        op.execute(f"INSERT INTO indexed_files ({FILE_COLUMNS}) SELECT {FILE_COLUMNS} FROM indexed_files_before")  # noqa: S608
        op.drop_table("indexed_files_before")
    _add("indexed_files", sa.Text, "wanted_sha", "reader")


def _index_versions() -> None:
    op.create_table(
        "index_versions",
        *_required(sa.Text, "id", "repository_id", "state", "collection", "physical"),
        *_required(sa.Integer, "number"),
        *_required(sa.JSON, "settings", "attributes"),
        *_required(sa.BigInteger, "generation", "epoch"),
        *_required(MOMENT, "created_at"),
        *_optional(sa.Text, "settings_key", "index_identity", "fingerprint", "links"),
        *_optional(sa.Text, "branch_name", "commit_sha", "partial_commit"),
        *_optional(MOMENT, "committed_at", "live_at", "retired_at"),
        _key("index_versions", "id"),
        _cascading("index_versions", "repository_id", "repositories.id"),
    )
    for state in ("live", "building"):
        only = f"state = '{state}'"
        _partial_index(f"uq_index_versions_{state}", "index_versions", ["repository_id"], only, unique=True)
    op.create_index("ix_index_versions_repository_id", "index_versions", ["repository_id"])
    op.create_index("ix_index_versions_physical", "index_versions", ["physical", "state"])
    _partial_index("ix_index_versions_not_live", "index_versions", ["physical", "id"], "state <> 'live'")
    op.create_index("ix_index_versions_live_at", "index_versions", ["live_at"])


def _requests() -> None:
    op.create_table(
        "run_requests",
        *_required(sa.Text, "id", "run_id", "repository_id", "trigger", "asked_by"),
        *_required(MOMENT, "asked_at"),
        *_required(sa.Integer, "priority", "max_attempts"),
        *_required(sa.Boolean, "full", "repair", "removal"),
        *_optional(MOMENT, "scheduled_for", "withdrawn_at"),
        *_optional(sa.JSON, "approval"),
        *_optional(sa.Text, "idempotency_key", "fingerprint", "answer", "withdrawn_by"),
        _key("run_requests", "id"),
        _cascading("run_requests", "run_id", "sync_runs.id"),
    )
    op.create_index("ix_run_requests_run_id", "run_requests", ["run_id"])
    op.create_index("uq_run_requests_key", "run_requests", ["asked_by", "idempotency_key"], unique=True)
    op.create_table(
        "missed_ticks",
        *_required(sa.Text, "repository_id"),
        *_required(MOMENT, "scheduled_for", "noticed_at"),
        *_required(sa.Float, "late_seconds"),
        _key("missed_ticks", "repository_id", "scheduled_for"),
        _cascading("missed_ticks", "repository_id", "repositories.id"),
    )
    op.create_index("ix_missed_ticks_noticed_at", "missed_ticks", ["noticed_at"])


def _catalogue() -> None:
    op.create_table(
        "registry_files",
        *_required(sa.Text, "path", "digest", "host", "applied_by"),
        *_required(sa.JSON, "document"),
        *_required(MOMENT, "applied_at", "created_at"),
        _key("registry_files", "path"),
    )
    op.create_table(
        "superseded_digests",
        *_required(sa.Text, "path", "digest"),
        *_required(MOMENT, "superseded_at"),
        _key("superseded_digests", "path", "digest"),
        _cascading("superseded_digests", "path", "registry_files.path"),
    )


def _workers_and_sessions() -> None:
    # Programs before do not write to it: they do not count as workers, but execute runs all the same.
    op.create_table(
        "workers",
        *_required(sa.Text, "name", "host", "version"),
        *_required(MOMENT, "started_at", "seen_at"),
        *_optional(sa.Float, "clock_skew_seconds"),
        _key("workers", "name"),
    )
    # Programs before do not know the table: they accept a signed-out session until it ends by itself.
    op.create_table(
        "ended_sessions",
        *_required(sa.Text, "id"),
        *_required(MOMENT, "ended_at"),
        _key("ended_sessions", "id"),
    )
    op.create_index("ix_ended_sessions_ended_at", "ended_sessions", ["ended_at"])


def _add(table: str, kind: Any, *names: str, default: Any = None) -> None:
    """Nullable columns, or with a default."""
    for name in names:
        value = sa.text(default) if isinstance(default, str) else default
        op.add_column(table, sa.Column(name, kind, nullable=default is None, server_default=value))


def _required(kind: Any, *names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, kind, nullable=False) for name in names)


def _optional(kind: Any, *names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, kind) for name in names)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _cascading(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}", ondelete="CASCADE")


def _partial_index(
    name: str, table: str, columns: list[str | sa.TextClause], condition: str, *, unique: bool = False
) -> None:
    only = sa.text(condition)
    op.create_index(name, table, list(columns), unique=unique, sqlite_where=only, postgresql_where=only)
