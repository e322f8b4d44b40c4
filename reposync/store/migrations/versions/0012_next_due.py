"""When a schedule is due is a column of its repository. What is scheduled is due at once: the first turn of a scheduler
sets the moment, and knows by `last_tick_at` which ticks are settled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

# SQLite prefers the index that was created last, if several fit.
_PREFERRED = {
    "ix_sync_runs_active": "(repository_id) WHERE status IN",
    "ix_sync_runs_active_newest": "(queued_at DESC, id DESC) WHERE status IN",
    "ix_sync_runs_over_newest": "(status, queued_at DESC, id DESC) WHERE status NOT IN",
}


def upgrade() -> None:
    op.add_column("repositories", sa.Column("next_due_at", sa.DateTime(timezone=True)))
    op.execute("""
        UPDATE repositories SET last_tick_at = scheduled_since
        WHERE last_tick_at IS NULL OR last_tick_at < scheduled_since""")
    op.execute("""
        UPDATE repositories SET next_due_at = created_at
        WHERE is_active AND cron_expression IS NOT NULL""")
    op.execute("CREATE INDEX ix_repositories_next_due_at ON repositories (next_due_at)")
    op.execute("DROP INDEX uq_sync_runs_tick")
    op.execute("CREATE INDEX ix_sync_runs_repository_id ON sync_runs (repository_id)")
    if op.get_context().dialect.name == "sqlite":
        for name, definition in _PREFERRED.items():
            op.execute(f"DROP INDEX {name}")
            op.execute(f"CREATE INDEX {name} ON sync_runs {definition} ('queued', 'retrying', 'running')")
