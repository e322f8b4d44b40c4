"""Settings decide the version of an index: nothing holds a live one any more."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("ALTER TABLE repositories DROP COLUMN index_hold")
