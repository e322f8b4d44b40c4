"""Index versions; files that could not be read; what a deletion brake stopped at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_FILE_COLUMNS = "repository_id, path, long_path, blob_sha, mode, size_bytes, chunks, skip_reason, language, epoch"


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


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
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("repository_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("settings_key", sa.Text),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("physical", sa.Text, nullable=False),
        sa.Column("index_identity", sa.Text),
        sa.Column("fingerprint", sa.Text),
        sa.Column("links", sa.Text),
        sa.Column("attributes", sa.JSON, nullable=False),
        sa.Column("branch_name", sa.Text),
        sa.Column("commit_sha", sa.Text),
        _moment("committed_at", nullable=True),
        sa.Column("partial_commit", sa.Text),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        _moment("created_at"),
        _moment("live_at", nullable=True),
        _moment("retired_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_index_versions"),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name="fk_index_versions_repository_id", ondelete="CASCADE"
        ),
    )
    for state in ("live", "building"):
        only = sa.text(f"state = '{state}'")
        op.create_index(
            f"uq_index_versions_{state}",
            "index_versions",
            ["repository_id"],
            unique=True,
            sqlite_where=only,
            postgresql_where=only,
        )
    op.create_index("ix_index_versions_repository_id", "index_versions", ["repository_id"])
    op.create_index("ix_index_versions_physical", "index_versions", ["physical", "state"])
    _free_the_manifest()
    op.add_column("indexed_files", sa.Column("wanted_sha", sa.Text))
    op.add_column("indexed_files", sa.Column("reader", sa.Text))


def _free_the_manifest() -> None:
    """Rows belong to an index version from now on, which need not have the repository's id. Pods of the version before
    lose the cascade alone: rows that a removal leaves are found by nobody, and the next registration mends them."""
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("fk_indexed_files_repository_id", "indexed_files", type_="foreignkey")
        return
    # SQLite cannot drop a constraint.
    op.rename_table("indexed_files", "indexed_files_before")
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
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO indexed_files ({_FILE_COLUMNS}) SELECT {_FILE_COLUMNS} FROM indexed_files_before")  # noqa: S608
    op.drop_table("indexed_files_before")
