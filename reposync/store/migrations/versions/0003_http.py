"""What the HTTP API needs: the keys of requests that may be repeated, and filters of the history that go together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    over = sa.text("status NOT IN ('queued', 'retrying', 'running')")
    newest = [sa.text("queued_at DESC"), sa.text("id DESC")]
    for column in ("repository", "trigger"):
        op.create_index(
            f"ix_sync_runs_{column}_over_newest",
            "sync_runs",
            [column, "status", *newest],
            sqlite_where=over,
            postgresql_where=over,
        )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
