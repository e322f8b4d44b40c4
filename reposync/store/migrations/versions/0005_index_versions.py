"""Index versions; files that could not be read; what a deletion brake stopped at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.migrations.operations import MOMENT, cascading, key, optional, partial_index, required

revision = "0005"
down_revision = "0004"

_FILE_COLUMNS = "repository_id, path, long_path, blob_sha, mode, size_bytes, chunks, skip_reason, language, epoch"


def upgrade() -> None:
    # Nullable or with a default, for pods of the version before, which write rows without them.
    op.add_column("repositories", sa.Column("generation", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("repositories", sa.Column("live_version", sa.Text))
    op.add_column("repositories", sa.Column("index_hold", sa.JSON))
    op.add_column("sync_runs", sa.Column("full_from_epoch", sa.BigInteger))
    op.add_column("sync_runs", sa.Column("brake", sa.JSON))
    for table in ("sync_runs", "run_attempts"):
        op.add_column(table, sa.Column("files_failed", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "index_versions",
        *required(sa.Text, "id", "repository_id"),
        *required(sa.Integer, "number"),
        *required(sa.Text, "state"),
        *optional(sa.Text, "settings_key"),
        *required(sa.JSON, "settings"),
        *required(sa.BigInteger, "generation"),
        *required(sa.Text, "collection", "physical"),
        *optional(sa.Text, "index_identity", "fingerprint", "links"),
        *required(sa.JSON, "attributes"),
        *optional(sa.Text, "branch_name", "commit_sha"),
        *optional(MOMENT, "committed_at"),
        *optional(sa.Text, "partial_commit"),
        *required(sa.BigInteger, "epoch"),
        *required(MOMENT, "created_at"),
        *optional(MOMENT, "live_at", "retired_at"),
        key("index_versions", "id"),
        cascading("index_versions", "repository_id", "repositories.id"),
    )
    for state in ("live", "building"):
        partial_index(
            f"uq_index_versions_{state}", "index_versions", ["repository_id"], f"state = '{state}'", unique=True
        )
    op.create_index("ix_index_versions_repository_id", "index_versions", ["repository_id"])
    op.create_index("ix_index_versions_physical", "index_versions", ["physical", "state"])
    _free_the_manifest()
    op.add_column("indexed_files", sa.Column("wanted_sha", sa.Text))
    op.add_column("indexed_files", sa.Column("reader", sa.Text))


def _free_the_manifest() -> None:
    """Rows belong to an index version from now on, which need not have the repository's id. Pods of the version before
    only lose the cascade: rows that a removal leaves are not read, and the next registration replaces them."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("fk_indexed_files_repository_id", "indexed_files", type_="foreignkey")
        return
    # SQLite cannot drop a constraint.
    op.rename_table("indexed_files", "indexed_files_before")
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
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO indexed_files ({_FILE_COLUMNS}) SELECT {_FILE_COLUMNS} FROM indexed_files_before")  # noqa: S608
    op.drop_table("indexed_files_before")
