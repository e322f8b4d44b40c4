"""The start of a run, and the time of its attempts before the latest one. `started_at` and `duration_seconds` stay
those of the latest attempt: pods of 0.2 write them beside this version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_SECONDS = {
    "postgresql": "extract(epoch FROM ended_at - started_at)",
    "sqlite": "(julianday(ended_at) - julianday(started_at)) * 86400.0",
}


def upgrade() -> None:
    op.add_column("sync_runs", sa.Column("first_started_at", sa.DateTime(timezone=True)))
    op.add_column("sync_runs", sa.Column("earlier_seconds", sa.Float, nullable=False, server_default=sa.text("0")))
    # Rows that stand for several attempts span the pauses between them; those did nothing.
    seconds = _SECONDS[op.get_context().dialect.name]
    earlier = "run_id = sync_runs.id AND (attempt < sync_runs.attempt OR sync_runs.status IN ('queued', 'retrying'))"
    op.execute(f"""
        UPDATE sync_runs SET
            first_started_at = (SELECT min(started_at) FROM run_attempts WHERE run_id = sync_runs.id),
            earlier_seconds = COALESCE((SELECT sum({seconds}) FROM run_attempts
                WHERE {earlier} AND times = 1 AND ended_at > started_at), 0)
        WHERE attempt > 1 OR status IN ('queued', 'retrying')""")  # noqa: S608
