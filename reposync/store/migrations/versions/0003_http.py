"""What the HTTP API needs: the keys of requests that may be repeated, and pages of one trigger's runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    newest = [sa.text("queued_at DESC"), sa.text("id DESC")]
    op.create_index("ix_sync_runs_trigger_newest", "sync_runs", ["trigger", *newest])
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
