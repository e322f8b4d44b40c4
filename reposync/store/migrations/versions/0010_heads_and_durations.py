"""The schema of 0.2.1: the newest known head of each repository, and the time of all attempts of a run, which 0011 adds
up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("repositories", sa.Column("head_commit", sa.Text))
    op.add_column("repositories", sa.Column("lag_since", sa.DateTime(timezone=True)))
    op.add_column("sync_runs", sa.Column("first_started_at", sa.DateTime(timezone=True)))
    op.add_column("sync_runs", sa.Column("earlier_seconds", sa.Float, nullable=False, server_default=sa.text("0")))
    op.execute("""
        CREATE INDEX ix_repositories_inactive ON repositories (id) WHERE NOT is_active AND paused_reason IS NULL""")
    # An index that only 0.1 wrote becomes the first version of its repository.
    op.execute("""
        INSERT INTO index_versions (id, repository_id, number, state, settings, attributes, generation, collection,
            physical, index_identity, commit_sha, committed_at, epoch, created_at, live_at)
        SELECT id, id, 1, CASE WHEN last_sync_at IS NULL THEN 'building' ELSE 'live' END, '{}', attributes, generation,
            collection, COALESCE(indexed_collection, collection), index_identity, last_commit, last_committed_at, epoch,
            updated_at, last_sync_at
        FROM repositories WHERE epoch > 0 AND NOT EXISTS (
            SELECT 1 FROM index_versions WHERE repository_id = repositories.id)""")
    op.execute("""
        UPDATE repositories SET live_version = id WHERE live_version IS NULL AND EXISTS (
            SELECT 1 FROM index_versions WHERE index_versions.id = repositories.id AND state = 'live')""")
