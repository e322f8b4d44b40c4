"""Clocks that are wrong, repeated hand-backs, looks at groups that are fenced by a number, sessions signed out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # How far the clock of each worker's machine is ahead of the database's.
    op.add_column("workers", sa.Column("clock_skew_seconds", sa.Float))
    # With defaults for pods of the version before, which write rows without them.
    op.add_column("run_attempts", sa.Column("times", sa.Integer, nullable=False, server_default=sa.text("1")))
    op.add_column("project_groups", sa.Column("attempt", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    # Programs before do not know the table: they take a signed-out session until it ends by itself.
    op.create_table(
        "ended_sessions",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_sessions"),
    )
    op.create_index("ix_ended_sessions_ended_at", "ended_sessions", ["ended_at"])
