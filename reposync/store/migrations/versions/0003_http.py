"""For the HTTP API: idempotency keys, and combined filters of the history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.migrations.operations import MOMENT, NEWEST, OVER, key, partial_index, required

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for column in ("repository", "trigger"):
        partial_index(f"ix_sync_runs_{column}_over_newest", "sync_runs", [column, "status", *NEWEST], OVER)
    op.create_table(
        "idempotency_keys",
        *required(sa.Text, "key", "fingerprint", "run_id", "answer"),
        *required(MOMENT, "created_at"),
        key("idempotency_keys", "key"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
