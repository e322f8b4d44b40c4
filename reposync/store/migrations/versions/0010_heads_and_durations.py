"""The schema of 0.2.1: the newest known head of each repository, and the time of all attempts of a run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0007"

_SECONDS = {
    "postgresql": "extract(epoch FROM ended_at - started_at)",
    "sqlite": "(julianday(ended_at) - julianday(started_at)) * 86400.0",
}


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
    # Rows that stand for several attempts span the pauses between them; those did nothing.
    seconds = _SECONDS[op.get_context().dialect.name]
    earlier = "run_id = sync_runs.id AND (attempt < sync_runs.attempt OR sync_runs.status IN ('queued', 'retrying'))"
    op.execute(f"""
        UPDATE sync_runs SET
            first_started_at = (SELECT min(started_at) FROM run_attempts WHERE run_id = sync_runs.id),
            earlier_seconds = COALESCE((SELECT sum({seconds}) FROM run_attempts
                WHERE {earlier} AND times = 1 AND ended_at > started_at), 0)
        WHERE attempt > 1 OR status IN ('queued', 'retrying')""")  # noqa: S608
