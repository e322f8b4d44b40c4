"""The newest known head of each repository, to tell which indexes are behind it. What only 0.1 wrote becomes what 0.2
writes: its pods cannot work beside this version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("repositories", sa.Column("head_commit", sa.Text))
    op.add_column("repositories", sa.Column("lag_since", sa.DateTime(timezone=True)))
    # An index becomes the first version of its repository. If 0.1 wrote to that beside 0.2, how it was made is unknown.
    op.execute("""
        INSERT INTO index_versions (id, repository_id, number, state, settings, attributes, generation, collection,
            physical, index_identity, commit_sha, committed_at, epoch, created_at, live_at)
        SELECT id, id, 1, CASE WHEN last_sync_at IS NULL THEN 'building' ELSE 'live' END, '{}', attributes, generation,
            collection, COALESCE(indexed_collection, collection), index_identity, last_commit, last_committed_at, epoch,
            updated_at, last_sync_at
        FROM repositories WHERE epoch > 0 AND NOT EXISTS (
            SELECT 1 FROM index_versions WHERE repository_id = repositories.id)""")
    op.execute("""
        UPDATE index_versions SET settings_key = NULL, settings = '{}', fingerprint = NULL, commit_sha = NULL
        WHERE id = repository_id AND state <> 'retired' AND (
            SELECT max(epoch) FROM index_versions each WHERE each.repository_id = index_versions.repository_id
        ) < (SELECT epoch FROM repositories WHERE repositories.id = index_versions.repository_id)""")
    op.execute("""
        UPDATE repositories SET live_version = id WHERE live_version IS NULL AND EXISTS (
            SELECT 1 FROM index_versions WHERE index_versions.id = repositories.id AND state = 'live')""")
    # A run without a request has one for what its row says.
    op.execute("""
        INSERT INTO run_requests (id, run_id, repository_id, "trigger", asked_by, asked_at, scheduled_for, priority,
            max_attempts, "full", repair, removal, approval)
        SELECT id, id, repository_id, "trigger", "trigger", queued_at, scheduled_for, priority, max_attempts, "full",
            repair, removal, CASE WHEN approved THEN COALESCE(brake, '{}') END
        FROM sync_runs WHERE status IN ('queued', 'retrying', 'running', 'blocked') AND NOT EXISTS (
            SELECT 1 FROM run_requests WHERE run_id = sync_runs.id)""")
