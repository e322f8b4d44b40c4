"""Columns that only programs before this one used."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"

_UNUSED = (
    *("attributes", "indexed_collection", "index_identity", "resolved_from", "content_fingerprint"),
    "scheduled_since",
)


def upgrade() -> None:
    for name in _UNUSED:
        op.execute(f"ALTER TABLE repositories DROP COLUMN {name}")
